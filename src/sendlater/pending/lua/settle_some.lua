-- Drop rows of an unsettled batch that have been found on their target topics.
--
-- keys: state batch
-- args: owner
-- rest: id, id, ...
-- returns: how many rows were dropped

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
local count = 0
for i = rest, #ARGV do
    count = count + redis.call('HDEL', batch, ARGV[i])
end
redis.call('HINCRBY', state, 'settled', count)
return count
