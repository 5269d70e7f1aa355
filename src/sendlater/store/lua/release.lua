-- Put rows of an unsettled batch back to pending, some at a time.
--
-- keys: due record state wake batches batch
-- args: owner name count_max:number
-- uses: tags
-- full: goes on
-- returns: how many rows the batch still holds
--
-- A row whose id was written again or cancelled since it was claimed (park has marked it) is
-- dropped: the newest wins, in any batch and in any order of releases.

local rows = redis.call('HSCAN', batch, 0, 'COUNT', count_max)[2]
for i = 1, #rows, 2 do
    local id, packed = rows[i], rows[i + 1]
    redis.call('HDEL', batch, id)
    local due_ms = struct.unpack('>I8', packed, 2)
    if string.byte(packed) == 207 and redis.call('ZADD', due, 'NX', due_ms, id) == 1 then
        redis.call('HSET', record, id, string.sub(packed, 10))
        index(id, due_ms, (tags_of(packed, 10)))
    end
end
local left = redis.call('HLEN', batch)
if left == 0 then
    redis.call('HDEL', batches, name)
    redis.call('HDEL', batches .. '-attempts', name)
    redis.call('HDEL', batches .. '-ripe', name)
    redis.call('UNLINK', batches .. '-recalled:' .. name)
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'released', name)
end
return left
