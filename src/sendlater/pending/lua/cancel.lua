-- Take a schedule back.
--
-- keys: due record state batches
-- args: id
-- returns: cancelled, delivering (claimed already, too late) or unknown

if redis.call('ZREM', due, id) == 1 then
    redis.call('HDEL', record, id)
    redis.call('HINCRBY', state, 'cancelled', 1)
    return 'cancelled'
end
for _, name in ipairs(redis.call('HKEYS', batches)) do
    if redis.call('HEXISTS', batches .. ':' .. name, id) == 1 then
        return 'delivering'
    end
end
return 'unknown'
