-- Move schedules that are due into one batch, oldest first.
--
-- keys: due record state batches batch
-- args: owner lane run name number:number attempt now_ms:number count_max:number bytes_max:number
-- uses: tags
-- full: goes on
-- returns: {id, packed, id, packed, ..., next}, where packed is a msgpack uint64 due_ms and the record,
--          and next is the due_ms of what is pending now ('' when nothing is);
--          or, when nothing is due, the next due_ms as a string ('' when nothing is pending);
--          or 'held' when what is due must wait until intake has read the inboxes (see bound);
--          or 'draining' when this owner has been asked to stop
--
-- A batch keeps its rows until it is settled: a reader that lost the answer reads the batch again.
-- Refused (ENDED) if nobody would settle the rows: for a task of a dead run of the lane, for an
-- attempt that another one has followed, and for every caller once the batch is closed or settled.
-- Removes before it writes: at its memory limit Redis lets a script begin only with what frees memory.

local standing = redis.call('HMGET', state, 'lane:' .. lane, 'ended:' .. lane, 'draining', 'held', 'bound')
if standing[1] ~= run then
    return redis.error_reply('ENDED run ' .. run .. ' of lane ' .. lane)
end
local ended_run, ended_number = string.match(standing[2] or '', '^(%d+):(%d+)$')
if ended_run == run and number <= tonumber(ended_number) then
    return redis.error_reply('ENDED batch ' .. name .. ' is settled')
end
if (redis.call('HGET', batches .. '-attempts', name) or '') ~= attempt then
    return redis.error_reply('ENDED batch ' .. name .. ' is closed, or another attempt works on it')
end
if standing[3] == owner then
    return 'draining'
end
if standing[4] == owner then
    return 'held'
end
local until_ms = math.min(now_ms, tonumber(standing[5] or '') or math.huge)

local ids = redis.call('ZRANGEBYSCORE', due, '-inf', until_ms, 'WITHSCORES', 'LIMIT', 0, count_max)
if #ids == 0 then
    local next_ms = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
    if next_ms and tonumber(next_ms) <= now_ms then
        return 'held'
    end
    return next_ms or ''
end
-- In steps: a thousand large records must not be in memory at once.
local step, bytes, missed, late_ms = 50, 0, 0, now_ms - 1000
local rows, names, with_tags = {}, {}, {}
for first = 1, #ids, 2 * step do
    local some = {}
    for i = first, math.min(first + 2 * step, #ids) - 1, 2 do
        some[#some + 1] = ids[i]
    end
    local records = redis.call('HMGET', record, unpack(some))
    for i = 1, #some do
        local due_ms = tonumber(ids[first + 2 * i - 1])
        bytes = bytes + #records[i]
        if #names > 0 and bytes > bytes_max then
            break
        end
        missed = missed + (due_ms < late_ms and 1 or 0)
        names[#names + 1] = some[i]
        if string.byte(records[i]) == 155 then
            with_tags[some[i]] = tags_of(records[i], 1)
        end
        rows[#rows + 1] = some[i]
        rows[#rows + 1] = '\207' .. struct.pack('>I8', due_ms) .. records[i]
    end
    if bytes > bytes_max then
        break
    end
end
redis.call('ZREM', due, unpack(names))
redis.call('HDEL', record, unpack(names))
unindex(with_tags)
redis.call('HSET', batch, unpack(rows))
redis.call('HSET', batches, name, lane)
if missed > 0 then
    redis.call('HINCRBY', state, 'missed', missed)
end
-- It saves the reader a call that finds nothing.
rows[#rows + 1] = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or ''
return rows
