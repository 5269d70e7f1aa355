-- Pending schedules after a place in due order, within a range of due times.
--
-- keys: due record
-- args: from_ms to_ms after_ms after_id count_max:number
-- returns: {id, packed, id, packed, ...}, packed as in claim
--
-- The place is found by halving ranks, because ids with the same due time are ordered by bytes and
-- there may be a million of them; an empty after_ms starts at from_ms.

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
local last = redis.call('ZCOUNT', due, '-inf', to_ms) - 1
last = math.min(last, first + count_max - 1)
if last < first then
    return {}
end
local rows = redis.call('ZRANGE', due, first, last, 'WITHSCORES')
for i = 1, #rows, 2 do
    local packed = redis.call('HGET', record, rows[i])
    rows[i + 1] = '\207' .. struct.pack('>I8', tonumber(rows[i + 1])) .. packed
end
return rows
