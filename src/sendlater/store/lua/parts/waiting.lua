-- What waits for the limit of its topic: its score in `due` is LIMITED + due_ms, so that claims do not see
-- it, and whoever looks for its id does. Beside that each topic's callers have a queue. A queue may
-- name rows that are gone, changed or waiting elsewhere since: whoever takes a row from it looks.
-- Keys are `limits` (the topics something waits for), `limits:TOPIC` (of each caller its place in the
-- round; `virtual`: how far the round is; `tokens`: what was reserved for this shard, see reserve.lua),
-- `limits:TOPIC:CALLER` (id -> due_ms), and `limits-since` (id -> when it began to wait).
--
-- Called only where there are limits: making these functions takes time, too.

local function waiting()

local CALLERS_MAX, LOOKS_MAX = 100, 1000
local TEXTS = {[196] = 1, [197] = 2, [198] = 4, [217] = 1, [218] = 2, [219] = 4}
local WHOLES = {[204] = 1, [205] = 2, [206] = 4, [207] = 8, [208] = 1, [209] = 2, [210] = 4, [211] = 8}

-- Where the content of the msgpack value at a place begins, and where the next value does.
local function content(packed, at)
    local head = string.byte(packed, at)
    local size = TEXTS[head]
    if size then
        local first = at + 1 + size
        return first, first + struct.unpack('>I' .. size, packed, at + 1)
    end
    if head >= 160 and head < 192 then
        return at + 1, at + 1 + head - 160
    end
    return at + 1, at + 1 + (WHOLES[head] or 0)
end

-- The topic of a packed record, and where its next value begins. Asked of every row that is claimed, so
-- the two usual forms come first.
local function topic_of(packed)
    local at = string.byte(packed) == 155 and select(2, tags_of(packed, 1)) or 2
    local head = string.byte(packed, at)
    if head >= 160 and head < 192 then
        return string.sub(packed, at + 1, at + head - 160), at + head - 159
    end
    if head == 196 then
        local after = at + 2 + string.byte(packed, at + 1)
        return string.sub(packed, at + 2, after - 1), after
    end
    local first, after = content(packed, at)
    return string.sub(packed, first, after - 1), after
end

-- Who sent a record (header CALLER_SERVICE), and the last instant at which it may be delivered.
local function caller_and_expiry(packed, due_ms)
    local at, first = select(2, topic_of(packed)), nil
    for _ = 1, 3 do
        first, at = content(packed, at)
    end
    local head, count = string.byte(packed, at), 0
    if head == 220 or head == 221 then
        local size = head == 220 and 2 or 4
        count, at = struct.unpack('>I' .. size, packed, at + 1), at + 1 + size
    else
        count, at = head == 192 and 0 or head - 144, at + 1
    end
    local caller, name = '', ''
    for i = 1, count do
        first, head = content(packed, at)
        if i % 2 == 1 then
            name = string.sub(packed, first, head - 1)
        elseif name == 'CALLER_SERVICE' and caller == '' then
            caller = string.sub(packed, first, head - 1)
        end
        at = head
    end
    local size = WHOLES[string.byte(packed, at)]
    local low = string.byte(packed, at + (size or 0))
    if low % 32 < 16 or not size then
        return caller, math.huge
    end
    local ms = math.floor(struct.unpack('>I' .. size, packed, at + 1) / 128)
    return caller, ms + (low % 64 >= 32 and due_ms or 0)
end

-- The limits among the arguments from a place on, by topic.
local function given_limits(at)
    local found = {}
    while at <= #ARGV do
        local one = {
            topic = ARGV[at],
            interval_ms = tonumber(ARGV[at + 1]),
            kept_ms = tonumber(ARGV[at + 2]),
            from_ms = tonumber(ARGV[at + 3]),
            count = tonumber(ARGV[at + 4]),
            weights = {},
        }
        for i = at + 6, at + 4 + 2 * ARGV[at + 5], 2 do
            one.weights[ARGV[i]] = tonumber(ARGV[i + 1])
        end
        at = at + 6 + 2 * ARGV[at + 5]
        found[one.topic] = one
    end
    return found
end

-- Let a row that is due wait for the limit of its topic.
local function wait(topic, id, due_ms, packed, now_ms)
    local caller = caller_and_expiry(packed, due_ms)
    local round = limits .. ':' .. topic
    if redis.call('HEXISTS', round, ':' .. caller) == 0 then
        if redis.call('HLEN', round) >= CALLERS_MAX + 2 then
            caller = ''
        end
        redis.call('HSETNX', round, ':' .. caller, redis.call('HGET', round, 'virtual') or 0)
        redis.call('SADD', limits, topic)
    end
    redis.call('ZADD', round .. ':' .. caller, due_ms, id)
    redis.call('HSETNX', limits .. '-since', id, now_ms)
    redis.call('ZADD', due, LIMITED + due_ms, id)
end

-- What stands of a topic: its callers in a fixed order, how many rows each has, and the tokens.
local function round_of(one, round)
    local stands = {callers = {}, places = {}, sizes = {}, left = 0, virtual = 0, from_ms = 0, count = 0}
    local flat = redis.call('HGETALL', round)
    for i = 1, #flat, 2 do
        if flat[i] == 'virtual' then
            stands.virtual = tonumber(flat[i + 1])
        elseif flat[i] == 'tokens' then
            local of, from_ms, count = string.match(flat[i + 1], '^(%S*) (%S+) (%S+)$')
            if of == owner then
                stands.from_ms, stands.count = tonumber(from_ms), tonumber(count)
            end
        else
            local caller = string.sub(flat[i], 2)
            stands.callers[#stands.callers + 1] = caller
            stands.places[caller] = tonumber(flat[i + 1])
            stands.sizes[caller] = redis.call('ZCARD', round .. ':' .. caller)
            stands.left = stands.left + stands.sizes[caller]
        end
    end
    table.sort(stands.callers)
    if one.count > 0 then
        -- None of the tokens counts sooner than it was reserved for.
        stands.from_ms = math.max(stands.count > 0 and stands.from_ms or 0, one.from_ms - stands.count * one.interval_ms)
        stands.count = stands.count + one.count
    end
    return stands
end

-- The caller whose turn it is; nil when nobody has anything left.
local function next_caller(stands, passed)
    local found
    for _, caller in ipairs(stands.callers) do
        if stands.sizes[caller] > 0 and not passed[caller]
            and (not found or stands.places[caller] < stands.places[found]) then
            found = caller
        end
    end
    return found
end

local function keep_round(one, round, stands)
    if stands.left == 0 then
        redis.call('UNLINK', round)
        redis.call('SREM', limits, one.topic)
        return
    end
    local flat = {}
    for _, caller in ipairs(stands.callers) do
        if stands.sizes[caller] == 0 and stands.places[caller] <= stands.virtual then
            redis.call('HDEL', round, ':' .. caller)
        else
            flat[#flat + 1], flat[#flat + 2] = ':' .. caller, string.format('%.9f', stands.places[caller])
        end
    end
    local tokens = owner .. ' ' .. string.format('%.6f', stands.from_ms) .. ' ' .. stands.count
    redis.call('HSET', round, 'virtual', string.format('%.9f', stands.virtual), 'tokens', tokens, unpack(flat))
end

-- Take rows of one topic out of its queues, as many as have tokens; `take` is called with each row.
-- Returns how many wait, and when the next token counts (nil: there is none left).
local function admit(one, now_ms, until_ms, room, take)
    local round = limits .. ':' .. one.topic
    local stands = round_of(one, round)
    local lag_ms = now_ms - one.kept_ms - stands.from_ms
    if stands.count > 0 and lag_ms > 0 then
        local lapsed = math.min(stands.count, math.ceil(lag_ms / one.interval_ms))
        stands.from_ms, stands.count = stands.from_ms + lapsed * one.interval_ms, stands.count - lapsed
    end
    local ready = 0
    if stands.count > 0 and now_ms >= stands.from_ms then
        ready = math.min(stands.count, math.floor((now_ms - stands.from_ms) / one.interval_ms + 1e-6) + 1)
    end
    local passed, looks, before = {}, 0, stands.left
    while ready > 0 and room > 0 and looks < LOOKS_MAX do
        looks = looks + 1
        local caller = next_caller(stands, passed)
        if not caller then
            break
        end
        local queue = round .. ':' .. caller
        local head = redis.call('ZRANGE', queue, 0, 0, 'WITHSCORES')
        local id, due_ms = head[1], tonumber(head[2])
        if due_ms > until_ms then
            passed[caller] = true
        else
            redis.call('ZREM', queue, id)
            stands.sizes[caller], stands.left = stands.sizes[caller] - 1, stands.left - 1
            local score = tonumber(redis.call('ZSCORE', due, id) or '')
            local packed = score == LIMITED + due_ms and redis.call('HGET', record, id)
            if packed and topic_of(packed) == one.topic then
                local since_ms = tonumber(redis.call('HGET', limits .. '-since', id) or '') or now_ms
                local expires_ms = select(2, caller_and_expiry(packed, due_ms))
                room = take(id, due_ms, packed, math.max(0, now_ms - math.max(since_ms, due_ms))) and room - 1 or 0
                -- What has expired is not delivered, and costs the others nothing.
                if expires_ms >= now_ms then
                    ready, stands.count = ready - 1, stands.count - 1
                    stands.from_ms = stands.from_ms + one.interval_ms
                    stands.virtual = stands.places[caller]
                    stands.places[caller] = stands.places[caller] + 1 / (one.weights[caller] or 1)
                end
                redis.call('HDEL', limits .. '-since', id)
            elseif not score or score < LIMITED then
                redis.call('HDEL', limits .. '-since', id)
            end
        end
    end
    if stands.left < before or one.count > 0 or stands.left == 0 then
        keep_round(one, round, stands)
    end
    return stands.left, stands.count > 0 and stands.from_ms or nil
end

return {topic_of = topic_of, limits = given_limits(rest), wait = wait, admit = admit}
end
