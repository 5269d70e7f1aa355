-- Record that intake has read past positions without a record: transaction markers, gaps.
--
-- keys: passed state
-- args: owner run batch:number
-- rest: source position, source position, ...
-- returns: 1 when it was noted, 0 when this shard does not know that batch of intake
--
-- A shard that does not know the batch has gone back, and must not count these positions as read.

local known_run, known_batch = string.match(redis.call('HGET', state, 'intake') or '', '^(%-?%d+)/(%-?%d+)$')
if known_run ~= run or tonumber(known_batch) < batch then
    return 0
end
for i = rest, #ARGV, 2 do
    redis.call('HSET', passed, ARGV[i], ARGV[i + 1])
end
return 1
