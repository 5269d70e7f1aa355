-- Move rows of a batch aside: their target topic is not known to take them.
--
-- keys: batch aside
-- rest: id, id, ...
-- returns: how many rows were moved

local count = 0
for i = rest, #ARGV do
    local packed = redis.call('HGET', batch, ARGV[i])
    if packed then
        redis.call('HSET', aside, ARGV[i], packed)
        redis.call('HDEL', batch, ARGV[i])
        count = count + 1
    end
end
return count
