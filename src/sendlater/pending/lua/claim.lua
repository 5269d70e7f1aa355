-- Move schedules that are due into one batch, oldest first.
--
-- keys: due record state batches batch
-- args: owner lane run name now_ms count_max:number
-- returns: {id, packed, id, packed, ...}, where packed is a msgpack uint64 due_ms and the record;
--          or, when nothing is due, the next due_ms as a string ('' when nothing is pending);
--          or 'draining' when this owner has been asked to stop
--
-- A batch holds its rows until settled, so a reader that lost the answer reads the batch again.
-- A task of a dead run of its lane, or of an older owner, is refused: nobody would settle its rows.

local standing = redis.call('HMGET', state, 'owner', 'lane:' .. lane, 'draining', 'held')
if standing[1] ~= owner then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. (standing[1] or '0'))
end
if standing[2] ~= run then
    return redis.error_reply('ENDED run ' .. run .. ' of lane ' .. lane)
end
if standing[3] == owner then
    return 'draining'
end
if standing[4] == owner then
    -- Nothing yet: intake has to catch up first.
    return ''
end

local ids = redis.call('ZRANGEBYSCORE', due, '-inf', now_ms, 'WITHSCORES', 'LIMIT', 0, count_max)
if #ids == 0 then
    return redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or ''
end
local names = {}
for i = 1, #ids, 2 do
    names[#names + 1] = ids[i]
end
local records = redis.call('HMGET', record, unpack(names))
local missed, late_ms = 0, tonumber(now_ms) - 1000
for i = 1, #records do
    local due_ms = tonumber(ids[2 * i])
    missed = missed + (due_ms < late_ms and 1 or 0)
    ids[2 * i] = '\207' .. struct.pack('>I8', due_ms) .. records[i]
end
if missed > 0 then
    redis.call('HINCRBY', state, 'missed', missed)
end
redis.call('ZREM', due, unpack(names))
redis.call('HDEL', record, unpack(names))
redis.call('HSET', batch, unpack(ids))
redis.call('HSET', batches, name, lane)
return ids
