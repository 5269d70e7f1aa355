-- Cancel a schedule.
--
-- keys: due record state batches changes aside
-- args: id version change now_ms:number reserve_ms:number keep_ms:number changes_max:number
-- uses: tags
-- sealed: refuses
-- full: goes on
-- returns: cancelled, delivering (claimed already, too late), unknown, changed when `version` is given
--          and is not the schedule's, or reserved while somebody creates one with this id, see put.lua
--
-- The copy of the cancellation on the inbox has the name `change`, as that of a move: what is read before
-- the copy, and was written after this, is newer and stays. With too many names, the copy is a cancellation.

local created_ms = redis.call('ZSCORE', changes, 'new ' .. id)
if created_ms and tonumber(created_ms) > now_ms - reserve_ms then
    return 'reserved'
end
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
    if change ~= '' then
        redis.call('ZREMRANGEBYSCORE', changes, '-inf', now_ms - keep_ms)
        if redis.call('ZCARD', changes) < changes_max then
            redis.call('ZADD', changes, now_ms, change)
        end
    end
    return 'cancelled'
end
for _, name in ipairs(redis.call('HKEYS', batches)) do
    if redis.call('HEXISTS', batches .. ':' .. name, id) == 1 then
        return 'delivering'
    end
end
return 'unknown'
