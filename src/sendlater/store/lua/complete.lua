-- Record that a shard has seen its inboxes up to positions, and is a complete copy of `journals`.
--
-- keys: seen state undecided
-- args: owner journals told:number
-- rest: source position, source position, ..., then (the last `told` parts)
--       source what, ...: which records there are read once more, see store/rebuild.py
-- full: goes on
-- returns: 1

for i = rest, #ARGV - told, 2 do
    redis.call('HSET', seen, ARGV[i], ARGV[i + 1])
end
if journals ~= '' then
    redis.call('HSET', state, 'journals', journals)
    redis.call('UNLINK', undecided)
end
for i = #ARGV - told + 1, #ARGV, 2 do
    redis.call('HSET', undecided, ARGV[i], ARGV[i + 1])
end
return 1
