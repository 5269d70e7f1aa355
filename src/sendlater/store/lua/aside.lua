-- Set rows of a batch aside: it is not known whether their target topic takes them.
--
-- keys: batch aside
-- rest: id, id, ...
-- full: goes on
-- returns: how many rows were moved
--
-- A row whose id was written again or cancelled since the claim (see park) is only removed.

local count = 0
for i = rest, #ARGV do
    local packed = redis.call('HGET', batch, ARGV[i])
    if packed then
        redis.call('HDEL', batch, ARGV[i])
        if string.byte(packed) == 207 then
            redis.call('HSET', aside, ARGV[i], packed)
            count = count + 1
        end
    end
end
return count
