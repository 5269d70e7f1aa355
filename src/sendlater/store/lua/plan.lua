-- Write schedules that were found by reading a whole journal, unless something newer is known.
--
-- keys: due record state wake touched beyond
-- args: owner rejected_count:number
-- uses: tags
-- rest: id due_ms record version, id due_ms record version, ...
-- returns: how many rows were written
--
-- Intake goes on meanwhile. What is pending under an id is newer than what was found; so is what
-- intake has seen of an id since the reading began (`touched`), even when that is gone again. A
-- tombstone of ours counts for its own version only.

local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local earliest, count = math.huge, 0
for i = rest, #ARGV, 4 do
    local id, due_ms = ARGV[i], ARGV[i + 1]
    local gone = '\0' .. ARGV[i + 3] .. '\0' .. id
    local known = redis.call('SISMEMBER', touched, id) + redis.call('SISMEMBER', touched, gone)
        + redis.call('SISMEMBER', beyond, id)
    if known == 0 and redis.call('ZADD', due, 'NX', due_ms, id) == 1 then
        redis.call('HSET', record, id, ARGV[i + 2])
        index(id, due_ms, (tags_of(ARGV[i + 2], 1)))
        earliest = math.min(earliest, tonumber(due_ms))
        count = count + 1
    end
end
if earliest < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', earliest)
end
redis.call('HINCRBY', state, 'parked', count)
redis.call('HINCRBY', state, 'rejected', rejected_count)
return count
