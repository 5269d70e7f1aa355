-- How many are due in each of several adjacent ranges; and of a sample of each, the target topics, and
-- how many recur.
--
-- keys: due record
-- args: samples_min:number samples_sum:number
-- uses: tags
-- rest: edge_ms, edge_ms, ...
-- returns: {count, {topic, topic, ...}, recur, count, {...}, ...}, three for each [edge, next edge)
--
-- The sample of a range is spread evenly by rank: samples_min, or the range's part of samples_sum if that is
-- more; it is all of them if there are not so many.
-- A packed record begins with its topic, after its tags: a string with a head of one byte (short) or
-- two. What recurs has its plan as the first header.

local PLAN = '\196\14sendlater-plan'
-- Bytes of a msgpack head, and of a size in it: nil and small numbers, numbers, bytes and text.
local HEADS = {[192] = {1, 0}, [196] = {2, 1}, [197] = {3, 2}, [198] = {5, 4}, [204] = {2, 0}, [205] = {3, 0},
    [206] = {5, 0}, [207] = {9, 0}, [217] = {2, 1}, [218] = {3, 2}, [219] = {5, 4}}

local function after(packed, at)
    local head = string.byte(packed, at)
    if head >= 160 and head < 192 then
        return at + 1 + head - 160
    end
    local length, sized = unpack(HEADS[head] or HEADS[192])
    local size = 0
    for n = 1, sized do
        size = size * 256 + string.byte(packed, at + n)
    end
    return at + length + size
end

-- Whether it recurs: `at` is where its partition begins; key and value are between it and the headers.
local function recurs(packed, at)
    at = after(packed, after(packed, after(packed, at)))
    local head = string.byte(packed, at)
    local first = head == 220 and at + 3 or at + 1
    return head ~= 192 and string.sub(packed, first, first + #PLAN - 1) == PLAN
end

local below = {}
for i = rest, #ARGV do
    below[#below + 1] = redis.call('ZCOUNT', due, '-inf', '(' .. ARGV[i])
end
local sum = math.max(1, below[#below] - below[1])
local found = {}
for i = 1, #below - 1 do
    local low, count = below[i], below[i + 1] - below[i]
    local topics, recur = {}, 0
    local samples = math.min(count, math.max(samples_min, math.floor(samples_sum * count / sum)))
    for n = 0, samples - 1 do
        local rank = low + math.floor((n + 0.5) * count / samples)
        local packed = redis.call('HGET', record, redis.call('ZRANGE', due, rank, rank)[1])
        local _, at = tags_of(packed, 1)
        local head = string.byte(packed, at)
        local follows = after(packed, at)
        topics[n + 1] = string.sub(packed, at + (head < 192 and 1 or 2), follows - 1)
        recur = recur + (recurs(packed, follows) and 1 or 0)
    end
    found[#found + 1] = count
    found[#found + 1] = topics
    found[#found + 1] = recur
end
return found
