-- Give a pending schedule another due time.
--
-- keys: due record wake batches changes tally aside state
-- args: id due_ms:number instead version change now_ms:number reserve_ms:number keep_ms:number changes_max:number
-- uses: tags back prefetched recall
-- sealed: refuses
-- returns: {'moved', packed}, {'delivering'}, {'unknown'}, {'changed'} when `version` is given and
--          is not the schedule's, {'paused'}, {'busy'} when too many changes wait for their copies, or
--          {'reserved'} while somebody creates a schedule with this id, see put.lua
--
-- `instead` is its record from now on; '': as it is. What is paused moves only with a record.
--
-- A copy of the change, named `change`, follows on the inbox: a store that goes back needs it. This
-- store keeps the name until intake reads the copy, and then ignores the copy: the schedule may have
-- been delivered by then. Names whose copy never came are dropped after keep_ms.

local created_ms = redis.call('ZSCORE', changes, 'new ' .. id)
if created_ms and tonumber(created_ms) > now_ms - reserve_ms then
    return {'reserved'}
end
recall({id})
local score = redis.call('ZSCORE', due, id)
local set_aside = not score and redis.call('HGET', aside, id)
if not score and not set_aside then
    for _, name in ipairs(redis.call('HKEYS', batches)) do
        if redis.call('HEXISTS', batches .. ':' .. name, id) == 1 then
            return {'delivering'}
        end
    end
    return {'unknown'}
end
local packed = set_aside and string.sub(set_aside, 10) or redis.call('HGET', record, id)
local standing = set_aside or '\207' .. struct.pack('>I8', tonumber(score) % LIMITED) .. packed
if version ~= '' and string.sub(redis.sha1hex(standing), 1, #version) ~= version then
    return {'changed'}
end
if instead ~= '' then
    packed = instead
elseif score and tonumber(score) == PAUSED and string.find(packed, '"paused":true', 1, true) then
    return {'paused'}
end
if change ~= '' then
    redis.call('ZREMRANGEBYSCORE', changes, '-inf', now_ms - keep_ms)
    if redis.call('ZCARD', changes) >= changes_max then
        return {'busy'}
    end
    redis.call('ZADD', changes, now_ms, change)
end
local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or '') or math.huge
-- What was set aside is pending again: when it is due, its target is asked anew.
redis.call('HDEL', aside, id)
redis.call('ZADD', due, due_ms, id)
if set_aside or instead ~= '' then
    redis.call('HSET', record, id, packed)
end
index(id, due_ms, (tags_of(packed, 1)))
if due_ms < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', due_ms)
end
redis.call('HINCRBY', tally, 'rescheduled', 1)
return {'moved', '\207' .. struct.pack('>I8', due_ms) .. packed}
