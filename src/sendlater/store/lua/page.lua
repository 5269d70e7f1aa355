-- Pending schedules that pass a filter, within a range of due times, after a place in due order.
--
-- keys: due record
-- args: from_ms to_ms after_ms after_id count_max:number look_max:number id_prefix topic_a topic_b header_name header_value backwards
-- uses: tags passes
-- returns: {place_ms, place_id, id, packed, score, id, packed, score, ...}, packed as in claim; the place, a
--          score too, is where the next page begins, empty at the end of the range
--
-- A binary search over ranks finds the place, because a million ids may have the same due time; they
-- are ordered by bytes. An empty after_ms starts at from_ms, or at to_ms if `backwards` is not empty.
-- Looks at look_max rows at most.
-- A packed record begins with its topic, after its tags: topic_a and topic_b are the two ways it may
-- be written. For one tag, `due` is that tag's own sorted set.
-- A header's value follows its name after a msgpack head of one to five bytes. Only the beginning of
-- the value is compared here; the caller compares all of it.

-- Whether an id comes before another by bytes; Lua's own comparison depends on the locale.
local function before(id, other)
    for i = 1, math.min(#id, #other) do
        local a, b = string.byte(id, i), string.byte(other, i)
        if a ~= b then
            return a < b
        end
    end
    return #id < #other
end

local first = redis.call('ZCOUNT', due, '-inf', '(' .. from_ms)
local past = redis.call('ZCOUNT', due, '-inf', to_ms)
if after_ms ~= '' then
    local low = redis.call('ZCOUNT', due, '-inf', '(' .. after_ms)
    local high = redis.call('ZCOUNT', due, '-inf', after_ms)
    while low < high do
        local middle = math.floor((low + high) / 2)
        local id = redis.call('ZRANGE', due, middle, middle)[1]
        if before(id, after_id) or (id == after_id and backwards == '') then
            low = middle + 1
        else
            high = middle
        end
    end
    if backwards == '' then
        first = math.max(first, low)
    else
        past = math.min(past, low)
    end
end
local found = {'', ''}
if past <= first then
    return found
end
local left = past - first
local rows, at, last, step
if backwards == '' then
    rows = redis.call('ZRANGE', due, first, math.min(past, first + look_max) - 1, 'WITHSCORES')
    at, last, step = 1, #rows - 1, 2
else
    rows = redis.call('ZRANGE', due, math.max(first, past - look_max), past - 1, 'WITHSCORES')
    at, last, step = #rows - 1, 1, -2
end
for i = at, last, step do
    local id = rows[i]
    if string.sub(id, 1, #id_prefix) == id_prefix then
        local packed = redis.call('HGET', record, id)
        if passes(packed) then
            found[#found + 1] = id
            found[#found + 1] = '\207' .. struct.pack('>I8', tonumber(rows[i + 1]) % LIMITED) .. packed
            found[#found + 1] = rows[i + 1]
        end
    end
    left = left - 1
    if #found - 2 >= 3 * count_max or i == last then
        if left > 0 then
            found[1], found[2] = rows[i + 1], id
        end
        break
    end
end
return found
