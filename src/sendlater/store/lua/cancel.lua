-- Cancel a schedule.
--
-- keys: due record state batches aside
-- args: id version
-- uses: tags
-- full: goes on
-- returns: cancelled, delivering (claimed already, too late), unknown, or changed when `version` is
--          given and is not the schedule's

local score = redis.call('ZSCORE', due, id)
local packed = score and '\207' .. struct.pack('>I8', tonumber(score) % LIMITED) .. redis.call('HGET', record, id)
    or redis.call('HGET', aside, id)
if packed then
    if version ~= '' and string.sub(redis.sha1hex(packed), 1, #version) ~= version then
        return 'changed'
    end
    if redis.call('ZREM', due, id) == 1 then
        unindex({[id] = tags_of(packed, 10)})
    end
    redis.call('HDEL', record, id)
    redis.call('HDEL', aside, id)
    redis.call('HINCRBY', state, 'cancelled', 1)
    return 'cancelled'
end
for _, name in ipairs(redis.call('HKEYS', batches)) do
    if redis.call('HEXISTS', batches .. ':' .. name, id) == 1 then
        return 'delivering'
    end
end
return 'unknown'
