-- Take rows that have expired out of a batch, and put what is delivered instead of each to pending.
--
-- keys: due record state batches wake batch
-- args: owner name attempt
-- uses: tags
-- rest: id, id of the schedule instead ('': none), its due_ms, its record, id, ...
-- full: goes on
-- also: leaving
-- returns: how many rows had expired
--
-- A row whose id was written again or cancelled since the claim (see park) is only removed. What is
-- delivered instead lies on the same shard, whatever its id.
-- Refused (ENDED) for an attempt that another one has followed: that one has the same rows.

local standing = redis.call('HGET', batches .. '-attempts', name) or ''
if standing ~= attempt and standing ~= 'closed:' .. attempt then
    return redis.error_reply('ENDED another attempt works on batch ' .. name)
end
local count = 0
for i = rest, #ARGV, 4 do
    local packed = redis.call('HGET', batch, ARGV[i])
    if packed then
        redis.call('HDEL', batch, ARGV[i])
        if string.byte(packed) == 207 then
            count = count + 1
            if ARGV[i + 1] ~= '' and redis.call('ZADD', due, 'NX', ARGV[i + 2], ARGV[i + 1]) == 1 then
                redis.call('HSET', record, ARGV[i + 1], ARGV[i + 3])
                index(ARGV[i + 1], ARGV[i + 2], (tags_of(ARGV[i + 3], 1)))
                redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', ARGV[i + 2])
            end
        end
    end
end
return count
