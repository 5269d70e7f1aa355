-- Write a schedule if a condition about what stands under its id holds.
--
-- keys: due record state wake batches changes aside
-- args: id due_ms:number packed_record only_if now_ms:number reserve_ms:number keep_ms:number changes_max:number near_ms:number
-- uses: holds tags back prefetched recall
-- sealed: refuses
-- full: refuses
-- returns: {verdict, standing, packed}; verdict: put, stands (the condition does not hold), reserved
--          (somebody else is creating it), or busy when too many changes wait for their copies;
--          standing: what stood under the id: pending, claimed, or empty
--
-- With reserve_ms above 0 nothing is written: the id is reserved for so long, see store/conditional.py. What is due
-- within near_ms counts as claimed then, but for `later`: it may be before the record that is to follow is read.
-- Otherwise, as in park, a new version ends the earlier ones: a claimed row is marked, so that a crash
-- does not put it back, and a row set aside is dropped.

recall({id})
local score = redis.call('ZSCORE', due, id)
local packed = score and '\207' .. struct.pack('>I8', tonumber(score) % LIMITED) .. redis.call('HGET', record, id)
    or redis.call('HGET', aside, id)
local stands, claimed = packed and 'pending' or '', {}
for _, name in ipairs(redis.call('HKEYS', batches)) do
    local row = redis.call('HGET', batches .. ':' .. name, id)
    if row then
        claimed[batches .. ':' .. name] = row
        if stands == '' then
            stands, packed = 'claimed', '\207' .. string.sub(row, 2)
        end
    end
end
local near = reserve_ms > 0 and score and tonumber(score) < LIMITED and tonumber(score) < now_ms + near_ms
if near and only_if ~= 'later' then
    stands = 'claimed'
end
local reservation = 'new ' .. id
if (tonumber(redis.call('ZSCORE', changes, reservation) or '') or -math.huge) > now_ms - reserve_ms then
    return {'reserved', stands, packed or ''}
end
if not holds(only_if, due_ms, stands, packed) then
    return {'stands', stands, packed or ''}
end
-- A full Redis refuses this before anything is done.
redis.call('HSET', state, 'room', 1)
if reserve_ms > 0 then
    redis.call('ZREMRANGEBYSCORE', changes, '-inf', now_ms - keep_ms)
    if redis.call('ZCARD', changes) >= changes_max then
        return {'busy', stands, packed or ''}
    end
    redis.call('ZADD', changes, now_ms, reservation)
    return {'put', stands, packed or ''}
end
for batch, row in pairs(claimed) do
    redis.call('HSET', batch, id, '\211' .. string.sub(row, 2))
end
redis.call('HDEL', aside, id)
local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local added = redis.call('ZADD', due, due_ms, id)
redis.call('HSET', record, id, packed_record)
if score then
    unindex({[id] = tags_of(packed, 10)})
end
index(id, due_ms, (tags_of(packed_record, 1)))
if due_ms < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', due_ms)
end
redis.call('HINCRBY', state, 'parked', 1)
redis.call('HINCRBY', state, 'replaced', 1 - added)
return {'put', stands, packed or ''}
