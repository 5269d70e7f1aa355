-- Move rows of an unsettled batch into another one, where they stay until they can be looked up.
--
-- keys: state batches batch kept
-- args: owner name lane
-- rest: id, id, ...
-- full: goes on
-- returns: how many rows were moved
--
-- `name` and `lane` are those of the batch that keeps them, see store/unsettled.py.

local count = 0
for i = rest, #ARGV do
    local packed = redis.call('HGET', batch, ARGV[i])
    if packed then
        redis.call('HDEL', batch, ARGV[i])
        redis.call('HSET', kept, ARGV[i], packed)
        redis.call('HSET', batches, name, lane)
        count = count + 1
    end
end
return count
