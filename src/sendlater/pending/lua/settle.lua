-- Drop a batch whose rows the broker has acknowledged.
--
-- keys: state batches batch
-- args: name
-- returns: how many schedules were delivered
--
-- Harmless to repeat, and from an older owner: the batch is either still there, and delivered,
-- or has been released, and then there is nothing to drop.

local count = redis.call('HLEN', batch)
redis.call('UNLINK', batch)
redis.call('HDEL', batches, name)
if count > 0 then
    redis.call('HINCRBY', state, 'settled', count)
end
return count
