-- Write schedules, and how far their inbox partitions have been read, in one step.
--
-- keys: due record seen state wake changes touched beyond overtaken surplus batches aside once
-- args: owner journal rejected_count:number sources:number once_max:number once_kept_ms:number cancelled_max:number
-- uses: holds tags packed elsewhere back prefetched recall
-- sealed: refuses
-- also: reading
-- rest: source seen_before seen_after for each source, then
--       id due_ms record, id due_ms record, ... where due_ms may also be
--       empty: cancels the id; the record is `from`, topic/partition and timestamp. Or it is
--              topic/partition/position: then only a version that was read from that partition at that
--              position or before; behind it, after a blank, when it was due as it left, see has_moved
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
-- The versions of an id on one partition are read in their order, those on two are not: see parts/elsewhere.lua.
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
local tombstones, later, unmet, outdated = 0, 0, 0, 0
-- Of a journal the store keeps only what is due within the horizon.
local horizon, planned, planning = math.huge, math.huge, false
if journal ~= '' then
    local stands = redis.call('HMGET', state, 'horizon', 'planned')
    horizon = tonumber(stands[1] or '') or math.huge
    planned = tonumber(stands[2] or '') or math.huge
    planning = stands[1] ~= stands[2]
end

-- What is known of these ids, id -> {key = row}, with one call per key: claimed rows, and ends.
local claimed = {}
local ids, batches_open = {}, {}
if #ARGV > first then
    for i = first, #ARGV, 3 do
        ids[#ids + 1] = ARGV[i]
    end
    recall(ids)
    batches_open = redis.call('HKEYS', batches)
end
local function look_for(found, key)
    for i, row in ipairs(redis.call('HMGET', key, unpack(ids))) do
        if row then
            found[ids[i]] = found[ids[i]] or {}
            found[ids[i]][key] = row
        end
    end
end
for _, name in ipairs(batches_open) do
    look_for(claimed, batches .. ':' .. name)
end
for _, key in ipairs(ended) do
    if #ids > 0 and redis.call('EXISTS', key) == 1 then
        look_for(ends, key)
    end
end
local has_aside = redis.call('HLEN', aside) > 0

-- The mark is the row's first byte: a signed msgpack number instead of an unsigned one.
local function mark(batch, id, row)
    redis.call('HSET', batch, id, '\211' .. string.sub(row, 2))
end

-- Something of this id was read: end what is claimed or set aside, unless that is newer. Whether it is, and how
-- many rows were dropped.
local function overtake(id, source, position, stamp_ms)
    local is_old, row = false, has_aside and redis.call('HGET', aside, id)
    for batch, taken in pairs(claimed[id] or {}) do
        if stays(id, string.sub(taken, 10), source, position, stamp_ms) then
            is_old = true
        else
            mark(batch, id, taken)
        end
    end
    if row and stays(id, string.sub(row, 10), source, position, stamp_ms) then
        return true, 0
    end
    return is_old, row and redis.call('HDEL', aside, id) or 0
end

-- The same for a schedule, which a cancellation may have ended before it was read. Not where a condition
-- has decided, or somebody writes to the store itself.
local decided = {}
local function is_old(id, row)
    if not (claimed[id] or has_aside or ends[id]) then
        return false
    elseif first == rest or decided[id] then
        overtake(id)
        return false
    end
    local _, source, position, stamp_ms = origin(row)
    if overtake(id, source, position, stamp_ms) then
        return true
    elseif has_ended_later(id, source, stamp_ms) then
        bury(id, source, position)
        return true
    end
    return false
end

-- Of rows whose id stands already, or is among them twice, those that are newer, and what tags stood of these.
local function newer_rows()
    local ids, latest, stood, newer = {}, {}, {}, {}
    for i = 2, #scores, 2 do
        ids[#ids + 1] = scores[i]
    end
    for i, packed in ipairs(redis.call('HMGET', record, unpack(ids))) do
        local id, row = ids[i], records[2 * i]
        local before, old = latest[id] or packed, false
        if before and first > rest and not decided[id] then
            local _, source, position, stamp_ms = origin(row)
            old = stays(id, before, source, position, stamp_ms)
        end
        if not old then
            latest[id] = row
            newer[#newer + 1] = i
        end
    end
    for i, tags in ipairs(has_tags and redis.call('HMGET', due .. ':tags', unpack(ids)) or {}) do
        stood[ids[i]] = latest[ids[i]] and tags or nil
    end
    outdated = outdated + #ids - #newer
    count = count - #ids + #newer
    return newer, stood
end

local function write()
    if #scores == 0 then
        return
    end
    local new = redis.call('ZADD', due, 'NX', unpack(scores))
    if 2 * new < #scores then
        local newer, stood = newer_rows()
        local some_scores, some_records = {}, {}
        for n, i in ipairs(newer) do
            some_scores[2 * n - 1], some_scores[2 * n] = scores[2 * i - 1], scores[2 * i]
            some_records[2 * n - 1], some_records[2 * n] = records[2 * i - 1], records[2 * i]
        end
        scores, records = some_scores, some_records
        unindex(stood)
        if #scores > 0 then
            redis.call('ZADD', due, unpack(scores))
        end
    end
    local with_tags = {}
    for i = 2, #records, 2 do
        local id, has = records[i - 1], string.byte(records[i]) == 155
        with_tags[id] = has and {scores[i - 1], (tags_of(records[i], 1))} or nil
    end
    if #records > 0 then
        redis.call('HSET', record, unpack(records))
    end
    for id, row in pairs(with_tags) do
        index(id, row[1], row[2])
    end
    added, scores, records = added + new, {}, {}
end

local function take_out(id)
    local gone = redis.call('ZREM', due, id)
    if gone == 1 then
        untag(id)
    end
    redis.call('HDEL', record, id)
    return gone
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
    local packed = redis.call('HGET', record, id) or ''
    for i = rest, first - 1, 3 do
        local topic = string.match(ARGV[i], '^(.*)/%d+$')
        local here, there = place(row, topic), place(packed, topic)
        if here and there then
            return string.sub(row, 1, here) == string.sub(packed, 1, there)
        end
    end
    return false
end

-- What would stand under an id if what stood there when its condition was decided had left before, with
-- the version of that: a store that went back decides again, and reads only afterwards that it had.
local otherwise = overtaken .. ':otherwise'
local has_otherwise = journal ~= '' and redis.call('HLEN', otherwise) > 0
local function kept_otherwise(id)
    local kept = has_otherwise and redis.call('HGET', otherwise, id) or ''
    local blank = string.find(kept, ' ', 1, true)
    if blank then
        return string.sub(kept, 1, blank - 1), string.sub(kept, blank + 1)
    end
end

-- What is claimed of a version has left, and was to come again at planned_ms: a store that went back has
-- forgotten that. Whether it was so; a crash puts it back no more.
local function has_gone_on(id, version, planned_ms)
    local topic, partition, position = string.match(version, '^(.+)/(%d+)/(%d+)$')
    local found = false
    for batch, row in pairs(planned_ms and claimed[id] or {}) do
        local packed = string.sub(row, 10)
        local at, number, stands = place(packed, topic)
        local is_same = at and number == tonumber(partition) and stands == tonumber(position)
        if is_same and string.byte(row) == 207 and (planned_in(packed) or math.huge) < planned_ms then
            mark(batch, id, row)
            found = true
        end
    end
    return found
end

-- A packed record as if it had been read where another one was.
local function in_place(packed, row)
    return string.sub(packed, 1, origin(packed) - 1) .. string.sub(row, (origin(row)))
end

local function keep_otherwise(id, only_if, due_ms, row, met, stood)
    local left, other = kept_otherwise(id)
    if not left then
        left, other = stood, ''
    end
    local held = holds(only_if, tonumber(due_ms), other ~= '' and 'pending' or '', other)
    if held and met then
        redis.call('HDEL', otherwise, id)
        return
    elseif held then
        other = '\207' .. struct.pack('>I8', due_ms) .. row
    elseif other ~= '' then
        other = string.sub(other, 1, 9) .. in_place(string.sub(other, 10), row)
    end
    redis.call('HSET', otherwise, id, left .. ' ' .. other)
    has_otherwise = true
end

-- Of `once`, where nothing stands: none that was created so is remembered, but for this record itself, which
-- a store that is filled again without being emptied reads once more (see store/rebuild.py). By the server's
-- own clock: no task's clock that is wrong makes it forget.
local asker = once .. ':asker'
local function forget_once(ids)
    if #ids > 0 then
        redis.call('ZREM', once, unpack(ids))
        redis.call('HDEL', asker, unpack(ids))
    end
    return #ids
end
local function is_first(id, due_ms, row)
    local now_ms = tonumber(redis.call('TIME')[1]) * 1000
    repeat
        local old = redis.call('ZRANGEBYSCORE', once, '-inf', now_ms, 'LIMIT', 0, 1000)
    until forget_once(old) == 0
    local version = ''
    if journal ~= '' then
        local _, source, position, stamp_ms = origin(row)
        version = string.format('%s/%.0f %.0f', source, position, stamp_ms)
    end
    local is_new = redis.call('ZADD', once, 'NX', math.max(due_ms, now_ms) + once_kept_ms, id) == 1
    if is_new and version ~= '' then
        redis.call('HSET', asker, id, version)
    end
    local is_same = not is_new and version ~= '' and redis.call('HGET', asker, id) == version
    local over = math.min(redis.call('ZCARD', once) - once_max, 1000)
    if over > 0 then
        forget_once(redis.call('ZRANGE', once, 0, over - 1))
    end
    return is_new or is_same
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
    if only_if == 'once' and not packed and not claimed[id] then
        met = is_first(id, tonumber(due_ms), row)
    end
    if journal == '' then
        return met
    end
    local _, source, position = origin(row)
    if packed then
        local _, from, stands = origin(string.sub(packed, 10))
        if from == source and stands >= position then
            return nil
        end
        keep_otherwise(id, only_if, due_ms, row, met, from .. '/' .. stands)
        if not met then
            local moved = in_place(string.sub(packed, 10), row)
            redis.call('HSET', score and record or aside, id, (score and '' or string.sub(packed, 1, 9)) .. moved)
        end
    end
    if packed or met then
        redis.call('SADD', overtaken, id)
    else
        redis.call('HSET', surplus, id, 'if ' .. source .. '/' .. position)
    end
    return met
end

-- Of a store that went back, or was filled anew, what the copy of a change and a tombstone tell together.
-- The tombstone names the version that stood when the copy had not been read, and when that was due: if
-- the copy is due then, it has left as moved by that change. Kept per id: `copy DUE_MS` or `left DUE_MS`,
-- whichever was read first.
local moves = surplus .. ':moves'
local has_moves = journal ~= '' and redis.call('HLEN', moves) > 0
local function note_move(id, told, at_ms)
    redis.call('HSET', moves, id, told .. ' ' .. at_ms)
    has_moves = true
end
local function is_due(id, at_ms)
    local score = redis.call('ZSCORE', due, id)
    return score and math.floor(score % LIMITED) == tonumber(at_ms)
end
local function has_moved(id, left_ms)
    local packed = left_ms ~= '' and not is_due(id, left_ms) and redis.call('HGET', record, id)
    return packed and not planned_in(packed)
end

local earliest = math.huge
-- What stands has left before the condition was decided: here is what stands instead.
local function stand_otherwise(id, other)
    local _, source, position = origin(redis.call('HGET', record, id) or string.sub(redis.call('HGET', aside, id), 10))
    take_out(id)
    redis.call('HDEL', aside, id)
    redis.call('HDEL', otherwise, id)
    if other == '' then
        redis.call('HSET', surplus, id, 'if ' .. source .. '/' .. position)
        return
    end
    local due_ms, packed = struct.unpack('>I8', other, 2), string.sub(other, 10)
    redis.call('ZADD', due, due_ms, id)
    redis.call('HSET', record, id, packed)
    index(id, due_ms, (tags_of(packed, 1)))
    redis.call('SADD', overtaken, id)
    earliest = math.min(earliest, due_ms)
end

for i = first, #ARGV, 3 do
    local id, due_ms = ARGV[i], ARGV[i + 1]
    local about, left_ms, source, stamp_ms = '', nil, nil, nil
    if due_ms == '' then
        source, stamp_ms = string.match(ARGV[i + 2], '^from (%S+) (%d+)$')
        stamp_ms = tonumber(stamp_ms or '')
        about, left_ms = string.match(source and '' or ARGV[i + 2], '^(%S*) ?(%d*)$')
    end
    local change, again, stands, only_if, position, stood, changed, changed_since, is_touched
    if string.find(due_ms, '|', 1, true) then
        change, due_ms = string.match(due_ms, '^(.*)|(.*)$')
        again, position, changed = string.match(journal ~= '' and change or '', '^again (%S+) ?(%d*) ?(%d*)$')
        only_if = string.match(change, '^if (.+)$')
    end
    if again then
        write()
        local left = kept_otherwise(id)
        if left == again then
            -- Of what stood before and after the decision: a store that went back forgot how far it had come.
            local packed = redis.call('HGET', record, id)
            ARGV[i + 2] = packed and in_place(ARGV[i + 2], packed) or ARGV[i + 2]
            stands = packed and 0 or 1
        else
            stands = beside(id, again)
            if (stands or 0) < 0 and redis.call('HGET', surplus, id) == 'if ' .. again then
                -- It was being delivered when that condition did not hold, is put back, and has yet to take its place.
                stands = 1
            elseif stands == 0 and has_otherwise then
                redis.call('HDEL', otherwise, id)
            end
        end
        position = tonumber(position)
        if stands == 0 and position then
            stood, changed_since = planned_in(redis.call('HGET', record, id) or '')
            if stood == position then
                stood, position = changed_since, tonumber(changed)
            end
        end
    elseif planning then
        is_touched = redis.call('SADD', touched, about == '' and id or '\0' .. about .. '\0' .. id) == 1
    end
    local held, has_gone = true, false
    if has_moves and not again and about == '' then
        has_gone = change and redis.call('HGET', moves, id) == 'left ' .. due_ms
        redis.call('HDEL', moves, id)
    end
    if has_otherwise and not only_if and not again and about == '' then
        redis.call('HDEL', otherwise, id)
    end
    if only_if then
        write()
        held = decide(only_if, id, due_ms, ARGV[i + 2])
        decided[id] = true
    end
    if not held then
        -- A direct write repeats what was decided when the record was read.
        unmet = unmet + (held == false and first > rest and 1 or 0)
    elseif again and (stands or 0) >= 0 then
        -- Not a new version: what stands keeps its position, and its tombstone will name that.
        if stood and stood < position or not stands and has_gone_on(id, again, position) then
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
    elseif change and (redis.call('ZREM', changes, change) == 1 or has_gone) then
        count = count + 1
        known = known + 1
        if journal ~= '' then
            write()
        end
        if has_gone and is_copy(ARGV[i + 2], id) then
            take_out(id)
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
                index(id, tonumber(score) % LIMITED, (tags_of(ARGV[i + 2], 1)))
            else
                redis.call('HSET', surplus, id, ARGV[i + 2])
            end
        end
    elseif due_ms == '' then
        write()
        tombstones = tombstones + 1
        -- Our own tombstone is read here; a newer schedule of its id may have been parked before.
        local stands = about ~= '' and beside(id, about) or nil
        local moved = stands == 0 and has_moved(id, left_ms)
        local is_newer = (stands or 0) > 0
        if is_newer and has_moves and redis.call('HGET', moves, id) == 'copy ' .. left_ms and is_due(id, left_ms) then
            is_newer = false
        end
        if moved then
            note_move(id, 'left', left_ms)
        elseif has_moves and not is_newer then
            redis.call('HDEL', moves, id)
        end
        if is_newer then
            local left, other = kept_otherwise(id)
            if left == about then
                stand_otherwise(id, other)
            else
                -- On the journal this tombstone follows what stands, so compaction would remove that.
                redis.call('SADD', overtaken, id)
            end
        elseif not moved or redis.call('ZCARD', changes) == 0 then
            -- It stays if the copy of a change is to come: then it was moved here, most likely.
            local old, dropped = false, 0
            if about == '' then
                local packed = redis.call('HGET', record, id)
                old, dropped = overtake(id, source, nil, stamp_ms)
                old = packed and stays(id, packed, source, nil, stamp_ms) or old
            else
                dropped = redis.call('HDEL', aside, id)
            end
            if not old then
                if has_otherwise then
                    redis.call('HDEL', otherwise, id)
                end
                if source then
                    remember_end(id, source, stamp_ms, cancelled_max)
                end
                cancelled = cancelled + math.min(take_out(id) + dropped, 1)
            end
        end
    elseif is_old(id, ARGV[i + 2]) then
        outdated = outdated + 1
        if is_touched then
            redis.call('SREM', touched, id)
        end
    elseif tonumber(due_ms) > horizon and not claimed[id] and not planned_in(ARGV[i + 2]) then
        write()
        local packed = redis.call('HGET', record, id)
        local _, from, position, at_ms = origin(ARGV[i + 2])
        if packed and first > rest and stays(id, packed, from, position, at_ms) then
            outdated = outdated + 1
        else
            take_out(id)
            remember_end(id, from, at_ms, cancelled_max)
            later = later + 1
            if planning then
                -- A step that is tried again reads further, and finds this version on the journal.
                redis.call('SREM', touched, id)
                redis.call('SADD', beyond, id)
            end
        end
    else
        scores[#scores + 1], scores[#scores + 2] = due_ms, id
        records[#records + 1], records[#records + 2] = id, ARGV[i + 2]
        earliest = math.min(earliest, tonumber(due_ms))
        count = count + 1
        if change and journal ~= '' and not again and not only_if and not planned_in(ARGV[i + 2]) then
            note_move(id, 'copy', due_ms)
        end
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
if outdated > 0 then
    redis.call('HINCRBY', state, 'outdated', outdated)
end
if unmet > 0 then
    redis.call('HINCRBY', state, 'unmet', unmet)
end
redis.call('HINCRBY', state, 'rejected', rejected_count)
return count
