-- Put occurrences beside recurring schedules into a batch, and the schedules as they come again. They
-- stay there, claimed, until the occurrences are on their way (see renew).
--
-- keys: state batches batch
-- args: owner name attempt
-- rest: id, id of the occurrence ('': none), the occurrence with its due_ms, next due_ms ('': it does
--       not come again), its record then; id, ...
-- full: goes on
-- also: leaving
-- returns: for each id 1, or 0 if it was not in the batch, written again or cancelled since
--
-- A row whose id was written again or cancelled since the claim (see park) is only removed. Before
-- this script a crash releases the schedule as it was; after it, the occurrence, which is an ordinary
-- row, and the schedule as it comes again. So none is skipped, and none comes twice.
-- Refused (ENDED) for an attempt that another one has followed: that one has the same rows.

if (redis.call('HGET', batches .. '-attempts', name) or '') ~= attempt then
    return redis.error_reply('ENDED batch ' .. name .. ' is closed, or another attempt works on it')
end
local told = {}
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
    if stands and next_ms ~= '' then
        redis.call('HSET', batch, id, '\207' .. struct.pack('>I8', next_ms) .. ARGV[i + 4])
    end
    told[#told + 1] = stands and 1 or 0
end
return told
