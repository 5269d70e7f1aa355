-- Write schedules, and how far their inbox partitions have been read, in one step.
--
-- keys: due record seen state wake changes touched beyond overtaken surplus batches aside
-- args: owner journal rejected_count:number sources:number
-- uses: holds tags
-- rest: source seen_before seen_after for each source, then
--       id due_ms record, id due_ms record, ... where due_ms may also be
--       empty: cancels the id; with a record of topic/partition/position, only a version that was
--              read from that partition at that position or before
--       change|due_ms: the copy of a change; ignored by a store that has made the change, see move
--       if CONDITION|due_ms: written only if the condition holds for what stands under the id after
--              the rows before it, otherwise dropped and counted; on a journal see decide
--       again VERSION|due_ms: the copy of a version (topic/partition/position) of a journal, see
--              spark/journal/rewrite.py
--       again VERSION PLANNED_MS CHANGES|due_ms: the same of a recurring schedule, and how far it has come
-- returns: how many rows were applied
--
-- full: refuses
--
-- What is due beyond the horizon stays in the journal only, unless an older version is claimed: the
-- older one's tombstone will follow this record, and compaction would leave only that (see overtaken).
-- What recurs stays here wherever it is due: it comes from the journal by the time it was written at.
--
-- A new version ends the earlier ones: a claimed row is marked, so that a crash does not put it back
-- (see release), and a row set aside is dropped.
--
-- Safe to repeat: rows are applied only while `seen` stands where the reader found it. Otherwise the
-- reader is refused (ELSEWHERE) and must look again: another one has read the same records, or the
-- store lost its last moments. Without sources it is a direct write, which is always accepted.

local first = rest + 3 * sources
for i = rest, first - 1, 3 do
    local stands = redis.call('HGET', seen, ARGV[i]) or ''
    if stands ~= ARGV[i + 1] then
        return redis.error_reply('ELSEWHERE ' .. ARGV[i] .. ' stands at ' .. stands)
    end
end
local grows = false
for i = first + 1, #ARGV, 3 do
    if ARGV[i] ~= '' then
        grows = true
        break
    end
end
if grows then
    -- A full Redis refuses this before anything is done.
    redis.call('HSET', state, 'room', 1)
else
    -- It does not refuse what begins so: cancellations free memory, and positions need none.
    redis.call('UNLINK', state .. ':none')
end

local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local scores, records, count, added, cancelled, known = {}, {}, 0, 0, 0, 0
local tombstones, later, unmet = 0, 0, 0
-- Of a journal the store keeps only what is due within the horizon.
local horizon, planned, planning = math.huge, math.huge, false
if journal ~= '' then
    local stands = redis.call('HMGET', state, 'horizon', 'planned')
    horizon = tonumber(stands[1] or '') or math.huge
    planned = tonumber(stands[2] or '') or math.huge
    planning = stands[1] ~= stands[2]
end

-- Claimed rows of these ids, id -> {batch = row}: one call per batch.
local claimed = {}
local open = #ARGV > first and redis.call('HKEYS', batches) or {}
for _, name in ipairs(open) do
    local ids = {}
    for i = first, #ARGV, 3 do
        ids[#ids + 1] = ARGV[i]
    end
    local batch = batches .. ':' .. name
    local found = redis.call('HMGET', batch, unpack(ids))
    for i = 1, #ids do
        if found[i] then
            local rows = claimed[ids[i]] or {}
            rows[batch] = found[i]
            claimed[ids[i]] = rows
        end
    end
end
local has_aside = redis.call('HLEN', aside) > 0

-- A newer version of this id is known: end what is claimed or set aside.
local function overtake(id)
    for batch, row in pairs(claimed[id] or {}) do
        -- The mark is the row's first byte: a signed msgpack number instead of an unsigned one.
        redis.call('HSET', batch, id, '\211' .. string.sub(row, 2))
    end
    if has_aside then
        redis.call('HDEL', aside, id)
    end
end

local with_tags = {}
local function write()
    if #scores > 0 then
        local new = redis.call('ZADD', due, unpack(scores))
        if has_tags and 2 * new < #scores then
            local ids, stood = {}, {}
            for i = 2, #scores, 2 do
                ids[#ids + 1] = scores[i]
            end
            for i, tags in ipairs(redis.call('HMGET', due .. ':tags', unpack(ids))) do
                if tags then
                    stood[ids[i]] = tags
                end
            end
            unindex(stood)
        end
        redis.call('HSET', record, unpack(records))
        for id, row in pairs(with_tags) do
            index(id, row[1], row[2])
        end
        added, scores, records, with_tags = added + new, {}, {}, {}
    end
end

local function take_out(id)
    local gone = redis.call('ZREM', due, id)
    if gone == 1 then
        untag(id)
    end
    redis.call('HDEL', record, id)
    return gone
end

-- The value of a msgpack integer that is not negative, and where it ends (cmsgpack cannot read what
-- Python packs).
local function whole(text, at)
    local first = string.byte(text, at) or 255
    local size = ({[204] = 1, [205] = 2, [206] = 4, [207] = 8, [208] = 1, [209] = 2, [210] = 4, [211] = 8})[first]
    if size and #text >= at + size then
        return struct.unpack('>I' .. size, text, at + 1), at + 1 + size
    end
    return first < 128 and first or -1, at + 1
end

-- Where a packed record tells the place it was read from, if that is on this topic, with partition and
-- position: it ends with topic, partition, position and a timestamp.
local function place(packed, topic)
    local at = string.find(packed, topic, math.max(1, #packed - #topic - 26), true)
    while at do
        local number, after = whole(packed, at + #topic)
        local position, last = whole(packed, after)
        if select(2, whole(packed, last)) == #packed + 1 then
            return at, number, position
        end
        at = string.find(packed, topic, at + 1, true)
    end
end

-- Compares what stands under an id with a version: 0 the same, above 0 later or read elsewhere, below
-- 0 earlier, nil when nothing stands.
local function beside(id, version)
    local packed = redis.call('HGET', record, id) or (has_aside and redis.call('HGET', aside, id))
    if not packed then
        return nil
    end
    local topic, partition, position = string.match(version, '^(.+)/(%d+)/(%d+)$')
    local at, number, stands = place(packed, topic or '/')
    return at and number == tonumber(partition) and stands - tonumber(position) or 1
end

-- Whether a row is the copy of what stands under an id: it differs only in where and when it was read.
-- The copy of a cancellation has no row.
local function is_copy(row, id)
    local packed = redis.call('HGET', record, id)
    for i = rest, first - 1, 3 do
        local topic = string.match(ARGV[i], '^(.*)/%d+$')
        local here, there = place(row, topic), place(packed, topic)
        if here and there then
            return string.sub(row, 1, here) == string.sub(packed, 1, there)
        end
    end
    return false
end

-- Where the value after this one begins.
local function after(text, at)
    local first = string.byte(text, at) or 192
    if first == 192 then
        return at + 1
    elseif first >= 160 and first < 192 then
        return at + 1 + first - 160
    end
    local size = ({[196] = 1, [197] = 2, [198] = 4, [217] = 1, [218] = 2, [219] = 4})[first]
    if size then
        return at + 1 + size + struct.unpack('>I' .. size, text, at + 1)
    end
    return select(2, whole(text, at))
end

-- How far the plan of a packed record has come, and its changes since; nil if it does not recur.
local function planned_in(packed)
    -- Topic, partition, key and value are in front of the headers; a plan is the first of these.
    local at = after(packed, after(packed, after(packed, after(packed, (select(2, tags_of(packed, 1)))))))
    at = at + (({[220] = 3, [221] = 5})[string.byte(packed, at) or 0] or 1)
    if string.sub(packed, at, at + 15) ~= '\196\14sendlater-plan' then
        return nil
    end
    local plan = string.sub(packed, at + 16, after(packed, at + 16) - 1)
    return tonumber(string.match(plan, '"planned_ms":(%d+)')), tonumber(string.match(plan, '"changes":(%d+)') or 0)
end

-- Where a packed record begins to tell the place it was read from, its topic and partition, its position.
local function origin(packed)
    local at = select(2, tags_of(packed, 1))
    for _ = 1, 4 do
        at = after(packed, at)
    end
    local first = string.byte(packed, at)
    local size = ({[220] = 2, [221] = 4})[first]
    local left = size and struct.unpack('>I' .. size, packed, at + 1) or first ~= 192 and first - 144 or 0
    at = at + 1 + (size or 0)
    for _ = 0, left do
        at = after(packed, at)
    end
    local partition = after(packed, at)
    local skipped = ({[196] = 2, [217] = 2, [197] = 3, [218] = 3})[string.byte(packed, at)] or 1
    local number, position = whole(packed, partition)
    return at, string.sub(packed, at + skipped, partition - 1) .. '/' .. number, (whole(packed, position))
end

-- Whether a condition holds for what stands under an id; nil if that is known already.
--
-- The record stays on its journal as the newest of its id. So what stands afterwards, the new schedule or
-- the old one, has its place there, and is written again behind it as a copy of that version (see
-- overtaken). Where nothing stands, its tombstone is written (see surplus).
local function decide(only_if, id, due_ms, row)
    local score = redis.call('ZSCORE', due, id)
    local packed = score and '\207' .. struct.pack('>I8', tonumber(score) % LIMITED) .. redis.call('HGET', record, id)
        or (has_aside and redis.call('HGET', aside, id))
    local met = holds(only_if, tonumber(due_ms), packed and 'pending' or claimed[id] and 'claimed' or '', packed)
    if journal == '' then
        return met
    end
    local begins, source, position = origin(row)
    if packed then
        local at, from, stands = origin(string.sub(packed, 10))
        if from == source and stands >= position then
            return nil
        elseif not met then
            local moved = string.sub(packed, 10, at + 8) .. string.sub(row, begins)
            redis.call('HSET', score and record or aside, id, (score and '' or string.sub(packed, 1, 9)) .. moved)
        end
    end
    if packed or met then
        redis.call('SADD', overtaken, id)
    else
        redis.call('HSET', surplus, id, string.format('if %s/%.0f', source, position))
    end
    return met
end

local earliest = math.huge
for i = first, #ARGV, 3 do
    local id, due_ms = ARGV[i], ARGV[i + 1]
    local change, again, stands, only_if, position, stood, changed, changed_since
    if string.find(due_ms, '|', 1, true) then
        change, due_ms = string.match(due_ms, '^(.*)|(.*)$')
        again, position, changed = string.match(journal ~= '' and change or '', '^again (%S+) ?(%d*) ?(%d*)$')
        only_if = string.match(change, '^if (.+)$')
    end
    if again then
        write()
        stands = beside(id, again)
        position = tonumber(position)
        if stands == 0 and position then
            stood, changed_since = planned_in(redis.call('HGET', record, id) or '')
            if stood == position then
                stood, position = changed_since, tonumber(changed)
            end
        end
    elseif planning then
        local about = due_ms == '' and ARGV[i + 2] or ''
        redis.call('SADD', touched, about == '' and id or '\0' .. about .. '\0' .. id)
    end
    local held = true
    if only_if then
        write()
        held = decide(only_if, id, due_ms, ARGV[i + 2])
    end
    if not held then
        -- A direct write repeats what was decided when the record was read.
        unmet = unmet + (held == false and first > rest and 1 or 0)
    elseif again and (stands or 0) >= 0 then
        -- Not a new version: what stands keeps its position, and its tombstone will name that.
        if stood and stood < position then
            -- This store went back, and has forgotten what was delivered.
            redis.call('ZADD', due, due_ms, id)
            redis.call('HSET', record, id, ARGV[i + 2])
            index(id, due_ms, (tags_of(ARGV[i + 2], 1)))
            earliest = math.min(earliest, tonumber(due_ms))
        elseif (stands or 0) > 0 or stood and (stood > position or redis.call('ZSCORE', due, id) % LIMITED ~= tonumber(due_ms)) then
            -- Compaction would keep only the copy.
            redis.call('SADD', overtaken, id)
        elseif not stands and (tonumber(due_ms) <= planned or planned_in(ARGV[i + 2])) then
            redis.call('HSETNX', surplus, id, again)
        end
    elseif change and redis.call('ZREM', changes, change) == 1 then
        count = count + 1
        known = known + 1
        if journal ~= '' then
            write()
        end
        local score = journal ~= '' and redis.call('ZSCORE', due, id)
        if score and not is_copy(ARGV[i + 2], id) then
            -- Something newer, which on the journal is before this copy: compaction would remove it.
            redis.call('SADD', overtaken, id)
        elseif journal ~= '' and due_ms ~= '' then
            -- Its tombstone must name this copy, or the copy would stay on the journal forever.
            if score then
                redis.call('HSET', record, id, ARGV[i + 2])
                untag(id)
                index(id, score, (tags_of(ARGV[i + 2], 1)))
            else
                redis.call('HSET', surplus, id, ARGV[i + 2])
            end
        end
    elseif due_ms == '' then
        write()
        tombstones = tombstones + 1
        -- Our own tombstone is read here; a newer schedule of its id may have been parked before.
        if ARGV[i + 2] ~= '' and (beside(id, ARGV[i + 2]) or 0) > 0 then
            -- On the journal this tombstone follows what stands, so compaction would remove that.
            redis.call('SADD', overtaken, id)
        else
            local gone = take_out(id) + redis.call('HDEL', aside, id)
            cancelled = cancelled + math.min(gone, 1)
            if ARGV[i + 2] == '' then
                overtake(id)
            end
        end
    elseif tonumber(due_ms) > horizon and not claimed[id] and not planned_in(ARGV[i + 2]) then
        write()
        overtake(id)
        take_out(id)
        later = later + 1
        if planning then
            -- A step that is tried again reads further, and finds this version on the journal.
            redis.call('SREM', touched, id)
            redis.call('SADD', beyond, id)
        end
    else
        overtake(id)
        scores[#scores + 1], scores[#scores + 2] = due_ms, id
        records[#records + 1], records[#records + 2] = id, ARGV[i + 2]
        if string.byte(ARGV[i + 2]) == 155 then
            with_tags[id] = {due_ms, (tags_of(ARGV[i + 2], 1))}
        elseif with_tags[id] then
            with_tags[id] = nil
        end
        earliest = math.min(earliest, tonumber(due_ms))
        count = count + 1
    end
end
write()

for i = rest, first - 1, 3 do
    redis.call('HSET', seen, ARGV[i], ARGV[i + 2])
end
if earliest < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', earliest)
end
redis.call('HINCRBY', state, 'parked', count - known)
redis.call('HINCRBY', state, 'replaced', count - known - added)
redis.call('HINCRBY', state, 'cancelled', cancelled)
redis.call('HINCRBY', state, 'tombstones', tombstones)
if later > 0 then
    redis.call('HINCRBY', state, 'later_since', later)
end
if unmet > 0 then
    redis.call('HINCRBY', state, 'unmet', unmet)
end
redis.call('HINCRBY', state, 'rejected', rejected_count)
return count
