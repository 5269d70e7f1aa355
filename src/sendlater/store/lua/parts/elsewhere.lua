-- Of an id on two partitions the version whose record has the later timestamp is the newer one, as in a rebuild
-- (see spark/journal/standing.py): Kafka has no order between them. Needs packed.

-- What ended last, and might still be before an older version on another partition: cancellations, and what is
-- due beyond the horizon, id -> topic/partition and timestamp. Those of long ago are in the second one.
local ended = {seen .. ':cancelled', seen .. ':cancelled:before'}
-- What they have of the ids in question, id -> {key = row}.
local ends = {}

-- Whether it ended later than at this instant, on another partition.
local function has_ended_later(id, source, stamp_ms)
    for _, told in pairs(ends[id] or {}) do
        local from, ended_ms = string.match(told, '^(.+) (%S+)$')
        if from ~= source and tonumber(ended_ms) > stamp_ms then
            return true
        end
    end
    return false
end
local function remember_end(id, source, stamp_ms, count_max)
    if has_ended_later(id, source, stamp_ms) then
        return
    end
    if redis.call('HLEN', ended[1]) >= count_max then
        redis.call('RENAME', ended[1], ended[2])
    end
    ends[id] = ends[id] or {}
    -- Lua by itself would write 1e+15, and lose digits.
    ends[id][ended[1]] = source .. ' ' .. string.format('%.0f', stamp_ms)
    redis.call('HSET', ended[1], id, ends[id][ended[1]])
end

-- An older version on another partition needs a tombstone on its journal: compaction might leave only that.
local elsewhere = surplus .. ':elsewhere'
local function bury(id, source, position)
    if journal ~= '' and position then
        redis.call('HSET', elsewhere, source .. '/' .. position, id)
    end
end

-- Whether what is known of an id is newer than what was read here, and stays. A cancellation has no position.
local function stays(id, packed, source, position, stamp_ms)
    local _, from, stands, written_ms = origin(packed)
    if not source or from == source or from == '/0' then
        return false
    elseif written_ms > stamp_ms then
        bury(id, source, position)
        return true
    end
    bury(id, from, stands)
    return false
end
