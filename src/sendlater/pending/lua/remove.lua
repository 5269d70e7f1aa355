-- Remove rows without a trace, before they are read again from their journal.
--
-- keys: due record state
-- args: owner
-- rest: id, id, ...
-- returns: how many rows were there

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
local count = 0
for i = rest, #ARGV do
    redis.call('ZREM', due, ARGV[i])
    count = count + redis.call('HDEL', record, ARGV[i])
end
return count
