-- Put rows of an unsettled batch back to pending, some at a time.
--
-- keys: due record state wake batches batch
-- args: owner name count_max:number
-- returns: how many rows the batch still holds
--
-- A schedule whose id was written again meanwhile stays as written: the newest wins.

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
local rows = redis.call('HSCAN', batch, 0, 'COUNT', count_max)[2]
for i = 1, #rows, 2 do
    local id, packed = rows[i], rows[i + 1]
    if redis.call('ZADD', due, 'NX', struct.unpack('>I8', packed, 2), id) == 1 then
        redis.call('HSET', record, id, string.sub(packed, 10))
    end
    redis.call('HDEL', batch, id)
end
local left = redis.call('HLEN', batch)
if left == 0 then
    redis.call('HDEL', batches, name)
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'released', name)
end
return left
