-- Cancel schedules.
--
-- keys: due record state batches changes aside touched wake
-- args: now_ms:number reserve_ms:number keep_ms:number changes_max:number
-- uses: tags back prefetched recall
-- rest: id version change, id version change, ...
-- sealed: refuses
-- full: goes on
-- returns: for each cancelled, delivering (claimed already, too late), unknown, changed when `version` is
--          given and is not the schedule's, or reserved while somebody creates one with this id, see put.lua
--
-- The copy of the cancellation on the inbox has the name `change`, as that of a move: what is read before
-- the copy, and was written after this, is newer and stays. With too many names, the copy is a cancellation.

local function is_reserved(id)
    local created_ms = redis.call('ZSCORE', changes, 'new ' .. id)
    return created_ms and tonumber(created_ms) > now_ms - reserve_ms
end

local names
local function is_claimed(id)
    names = names or redis.call('HKEYS', batches)
    for _, name in ipairs(names) do
        if redis.call('HEXISTS', batches .. ':' .. name, id) == 1 then
            return true
        end
    end
    return false
end

local gone, indexed, is_gone, made = {}, {}, {}, {}

local function cancelled(id, version, change)
    if is_reserved(id) then
        return 'reserved'
    end
    local score = not is_gone[id] and redis.call('ZSCORE', due, id)
    local packed = score and '\207' .. struct.pack('>I8', tonumber(score) % LIMITED) .. redis.call('HGET', record, id)
        or not is_gone[id] and redis.call('HGET', aside, id)
    if not packed then
        return is_claimed(id) and 'delivering' or 'unknown'
    end
    if version ~= '' and string.sub(redis.sha1hex(packed), 1, #version) ~= version then
        return 'changed'
    end
    gone[#gone + 1], is_gone[id] = id, true
    indexed[id] = score and tags_of(packed, 10) or nil
    if change ~= '' then
        made[#made + 1] = change
    end
    return 'cancelled'
end

local asked = {}
for i = rest, #ARGV, 3 do
    asked[#asked + 1] = ARGV[i]
end
recall(asked)
local answers = {}
for i = rest, #ARGV, 3 do
    answers[#answers + 1] = cancelled(ARGV[i], ARGV[i + 1], ARGV[i + 2])
end
if #gone > 0 then
    redis.call('ZREM', due, unpack(gone))
    unindex(indexed)
    redis.call('HDEL', record, unpack(gone))
    redis.call('HDEL', aside, unpack(gone))
    redis.call('HINCRBY', state, 'cancelled', #gone)
    local stands = redis.call('HMGET', state, 'horizon', 'planned')
    if stands[1] ~= stands[2] then
        redis.call('SADD', touched, unpack(gone)) -- planning must not write them again
    end
end
if #made > 0 then
    redis.call('ZREMRANGEBYSCORE', changes, '-inf', now_ms - keep_ms)
    local scores = {}
    for i = 1, math.min(#made, changes_max - redis.call('ZCARD', changes)) do
        scores[#scores + 1], scores[#scores + 2] = now_ms, made[i]
    end
    if #scores > 0 then
        redis.call('ZADD', changes, unpack(scores))
    end
end
return answers
