-- Move schedules that are due into one batch, oldest first.
--
-- keys: due record state batches batch limits touched
-- args: owner lane run name number:number attempt now_ms:number count_max:number bytes_max:number ahead_ms:number ahead_min:number dense_ms:number near_ms:number near_per_ms:number holds_ahead
-- uses: tags waiting
-- rest: for each limited topic: topic interval_ms kept_ms from_ms count callers, caller weight for each
--       caller; from_ms and count are tokens reserved since the last call (see reserve)
-- full: goes on
-- also: heir leaving
-- returns: {id, packed, id, packed, ..., next}, where packed is a msgpack uint64 due_ms and the record,
--          and next is the due_ms of what is pending now ('' when nothing is);
--          or, when nothing is due, the next due_ms as a string ('' when nothing is pending);
--          or 'held' when what is due must wait until intake has read the inboxes (see bound);
--          or 'heir' when the caller is not yet the owner, but the next one;
--          or 'draining' when this owner has been asked to stop, or has handed over and may go.
--          With limits, if anything waits for one, there is one element more: {{id, waited_ms, ...} of rows
--          that have waited, {topic, how many wait, when the next token counts ('': none left), ...}}
--
-- With an ahead_ms after now_ms, and where at least ahead_min are due until then, it also takes what is due
-- until then: it prefetches. While the batch has more rows than it would leave, it does so only near_ms before
-- they are due, or as long before as the rest takes at near_per_ms: until then that is for another batch. What
-- a batch has prefetched is a row like any other, but goes back to pending when somebody changes or cancels it
-- (see parts/recall.lua), until it is ripe: due by a later claim into this batch. With holds_ahead (not '') the
-- batch may hold such rows. Then there is always one element more, {_, _, {ripe_ms, id, ...}}: the caller may
-- deliver what is due until ripe_ms, but none of these ids, which went back.
--
-- What is for a limited topic waits (see parts/waiting.lua) until there is a token, unless its due time
-- has half a millisecond more: so it was asked for at once (see Move).
--
-- A batch keeps its rows until it is settled: a reader that lost the answer reads the batch again.
-- Refused (ENDED) if nobody would settle the rows: for a task of a dead run of the lane, for an
-- attempt that another one has followed, and for every caller once the batch is closed or settled.
-- Removes before it writes: at its memory limit Redis lets a script begin only with what frees memory.

local standing = redis.call('HMGET', state, 'lane:' .. lane, 'ended:' .. lane, 'draining', 'held', 'bound', 'heir', 'left', 'planned')
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
if owner ~= standing_owner and owner == standing[6] then
    return 'heir'
end
if standing[3] == owner or standing[7] == owner then
    return 'draining'
end
if standing[4] == standing_owner then
    return 'held'
end
local until_ms = math.min(now_ms, tonumber(standing[5] or '') or math.huge)

local ahead
if holds_ahead ~= '' then
    local ripe_ms = tonumber(redis.call('HGET', batches .. '-ripe', name) or '')
    ahead = {math.max(ripe_ms or until_ms, until_ms)}
    if ripe_ms then
        redis.call('HSET', batches .. '-ripe', name, ahead[1])
        for _, id in ipairs(redis.call('SMEMBERS', batches .. '-recalled:' .. name)) do
            ahead[#ahead + 1] = id
        end
        redis.call('UNLINK', batches .. '-recalled:' .. name)
    end
end
local take_ms = until_ms
if ahead_ms > now_ms then
    local left = redis.call('ZCOUNT', due, '(' .. until_ms, ahead_ms)
    if left > 0 and left >= ahead_min then
        local first = redis.call('ZRANGEBYSCORE', due, '(' .. until_ms, ahead_ms, 'WITHSCORES', 'LIMIT', 0, 1)
        local first_ms = tonumber(first[2])
        local is_dense, at_ms = false, first_ms
        while not is_dense and at_ms <= ahead_ms do
            local slice_end_ms = math.min(at_ms + dense_ms, ahead_ms + 1)
            is_dense = redis.call('ZCOUNT', due, at_ms, '(' .. slice_end_ms) >= ahead_min
            at_ms = at_ms + dense_ms
        end
        local is_near = first_ms - now_ms <= math.max(near_ms, left / near_per_ms)
        if is_dense and (is_near or redis.call('HLEN', batch) <= left) then
            take_ms = ahead_ms
        end
    end
end

local ids = redis.call('ZRANGEBYSCORE', due, '-inf', take_ms, 'WITHSCORES', 'LIMIT', 0, count_max)
local limited = rest <= #ARGV and waiting()
local waits = limited and redis.call('EXISTS', limits) == 1
if #ids == 0 and not ahead then
    local next_ms = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]
    if next_ms and tonumber(next_ms) <= now_ms and not waits then
        return 'held'
    end
    if not waits then
        return next_ms or ''
    end
end
-- In steps: a thousand large records must not be in memory at once.
local step, bytes, missed, late_ms = 50, 0, 0, now_ms - 1000
local rows, names, with_tags, last_ms = {}, {}, {}, 0
-- Planning looks in the journal for what is due after this: there it is until intake reads its tombstone.
local planned, unplanned = tonumber(standing[8] or '') or math.huge, {}
local function take(id, due_ms, packed)
    names[#names + 1] = id
    last_ms = math.max(last_ms, math.floor(due_ms))
    if due_ms > planned then
        unplanned[#unplanned + 1] = id
    end
    rows[#rows + 1] = id
    rows[#rows + 1] = '\207' .. struct.pack('>I8', due_ms) .. packed
    if string.byte(packed) == 155 then
        with_tags[id] = tags_of(packed, 1)
    end
end
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
        local topic = limited and due_ms % 1 == 0 and limited.topic_of(records[i])
        if topic and limited.limits[topic] then
            limited.wait(topic, some[i], due_ms, records[i], now_ms)
            waits = true
        else
            take(some[i], due_ms, records[i])
        end
    end
    if bytes > bytes_max then
        break
    end
end
local told = {{}, {}, ahead}
if waits and owner == standing_owner then
    local room = math.max(count_max - #names, 100)
    local function take_waiting(id, due_ms, packed, waited_ms)
        take(id, due_ms, packed)
        told[1][#told[1] + 1] = id
        told[1][#told[1] + 1] = waited_ms
        bytes, room = bytes + #packed, room - 1
        return bytes <= bytes_max
    end
    local topics = redis.call('SMEMBERS', limits)
    table.sort(topics)
    for _, topic in ipairs(topics) do
        if limited.limits[topic] then
            local left, next_ms = limited.admit(limited.limits[topic], now_ms, until_ms, room, take_waiting)
            told[2][#told[2] + 1] = topic
            told[2][#told[2] + 1] = left
            told[2][#told[2] + 1] = next_ms and string.format('%.0f', math.ceil(next_ms)) or ''
        end
    end
end
if #names > 0 then
    redis.call('ZREM', due, unpack(names))
    redis.call('HDEL', record, unpack(names))
    unindex(with_tags)
    redis.call('HSET', batch, unpack(rows))
    redis.call('HSET', batches, name, lane)
    if ahead and last_ms > ahead[1] then
        redis.call('HSET', batches .. '-ripe', name, ahead[1])
    end
    if #unplanned > 0 then
        redis.call('SADD', touched, unpack(unplanned))
    end
end
if missed > 0 then
    redis.call('HINCRBY', state, 'missed', missed)
end
-- It saves the reader a call that finds nothing.
rows[#rows + 1] = redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or ''
if #told[2] > 0 or ahead then
    rows[#rows + 1] = told
end
return rows
