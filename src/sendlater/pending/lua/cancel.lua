-- Take a schedule back.
--
-- keys: due record state batches
-- args: id version
-- returns: cancelled, delivering (claimed already, too late), unknown, or changed when `version` is
--          given and is not the schedule's

local score = redis.call('ZSCORE', due, id)
if score then
    if version ~= '' then
        local packed = '\207' .. struct.pack('>I8', tonumber(score)) .. redis.call('HGET', record, id)
        if string.sub(redis.sha1hex(packed), 1, #version) ~= version then
            return 'changed'
        end
    end
    redis.call('ZREM', due, id)
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
