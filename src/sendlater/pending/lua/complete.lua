-- Say that a shard has seen its inboxes up to positions, and is a complete copy of `journals`.
--
-- keys: seen state
-- args: owner journals
-- rest: source position, source position, ...
-- returns: 1

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
for i = rest, #ARGV, 2 do
    redis.call('HSET', seen, ARGV[i], ARGV[i + 1])
end
if journals ~= '' then
    redis.call('HSET', state, 'journals', journals)
end
return 1
