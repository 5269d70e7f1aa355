-- Pending schedules after a place in due order, within a range of due times, that pass a filter.
--
-- keys: due record
-- args: from_ms to_ms after_ms after_id count_max:number look_max:number id_prefix topic_a topic_b
-- returns: {place_ms, place_id, id, packed, id, packed, ...}, packed as in claim; the place is where
--          to look on, empty when the range has been seen to its end
--
-- The place is found by halving ranks, because ids with the same due time are ordered by bytes and
-- there may be a million of them; an empty after_ms starts at from_ms. Looks at look_max rows at most.
-- A packed record begins with its topic: topic_a and topic_b are the two ways it may be written.

local first = redis.call('ZCOUNT', due, '-inf', '(' .. from_ms)
if after_ms ~= '' then
    local low = math.max(first, redis.call('ZCOUNT', due, '-inf', '(' .. after_ms))
    local high = redis.call('ZCOUNT', due, '-inf', after_ms)
    while low < high do
        local middle = math.floor((low + high) / 2)
        if redis.call('ZRANGE', due, middle, middle)[1] <= after_id then
            low = middle + 1
        else
            high = middle
        end
    end
    first = math.max(first, low)
end
local past = redis.call('ZCOUNT', due, '-inf', to_ms)
local found = {'', ''}
if past <= first then
    return found
end
local rows = redis.call('ZRANGE', due, first, math.min(past, first + look_max) - 1, 'WITHSCORES')
for i = 1, #rows, 2 do
    local id = rows[i]
    if string.sub(id, 1, #id_prefix) == id_prefix then
        local packed = redis.call('HGET', record, id)
        if topic_a == '' or string.sub(packed, 1, #topic_a) == topic_a
            or string.sub(packed, 1, #topic_b) == topic_b then
            found[#found + 1] = id
            found[#found + 1] = '\207' .. struct.pack('>I8', tonumber(rows[i + 1])) .. packed
        end
    end
    first = first + 1
    if #found - 2 >= 2 * count_max or i == #rows - 1 then
        if first < past then
            found[1], found[2] = rows[i + 1], id
        end
        break
    end
end
return found
