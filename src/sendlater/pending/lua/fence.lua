-- Take ownership of a shard: every script that carries an older number fails from now on.
--
-- keys: state
-- args: owner:number
-- returns: the owner now standing, which is not the one asked for when another start was faster

local current = tonumber(redis.call('HGET', state, 'owner') or '0')
if owner > current then
    redis.call('HSET', state, 'owner', owner)
    redis.call('HDEL', state, 'draining')
    return owner
end
return current
