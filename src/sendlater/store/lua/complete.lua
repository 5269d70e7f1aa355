-- Record that a shard has seen its inboxes up to positions, and is a complete copy of `journals`.
--
-- keys: seen state
-- args: owner journals
-- rest: source position, source position, ...
-- full: goes on
-- returns: 1

for i = rest, #ARGV, 2 do
    redis.call('HSET', seen, ARGV[i], ARGV[i + 1])
end
if journals ~= '' then
    redis.call('HSET', state, 'journals', journals)
end
return 1
