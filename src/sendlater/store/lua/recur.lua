-- Take recurring schedules out of a batch: put an occurrence of each in its place, and the schedule
-- itself back to pending, due when it comes again.
--
-- keys: due record state batches wake batch
-- args: owner name attempt
-- uses: tags
-- rest: id, id of the occurrence ('': none), the occurrence with its due_ms, next due_ms ('': it does
--       not come again), its record then; id, ...
-- full: goes on
-- returns: for each id 1, or 0 if it was not in the batch, written again or cancelled since
--
-- A row whose id was written again or cancelled since the claim (see park) is only removed. Before
-- this script a crash releases the schedule as it was; after it, the occurrence, which is an ordinary
-- row. So none is skipped, and none comes twice.
-- Refused (ENDED) for an attempt that another one has followed: that one has the same rows.

if (redis.call('HGET', batches .. '-attempts', name) or '') ~= attempt then
    return redis.error_reply('ENDED batch ' .. name .. ' is closed, or another attempt works on it')
end
local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local told, earliest = {}, math.huge
for i = rest, #ARGV, 5 do
    local id, instead, next_ms = ARGV[i], ARGV[i + 1], ARGV[i + 3]
    local packed = redis.call('HGET', batch, id)
    local stands = packed and string.byte(packed) == 207
    if packed then
        redis.call('HDEL', batch, id)
    end
    if stands and instead ~= '' then
        redis.call('HSET', batch, instead, ARGV[i + 2])
    end
    if stands and next_ms ~= '' and redis.call('ZADD', due, 'NX', next_ms, id) == 1 then
        redis.call('HSET', record, id, ARGV[i + 4])
        index(id, next_ms, (tags_of(ARGV[i + 4], 1)))
        earliest = math.min(earliest, tonumber(next_ms))
    end
    told[#told + 1] = stands and 1 or 0
end
if earliest < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', earliest)
end
return told
