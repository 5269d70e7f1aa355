-- How many are due in each of several adjacent ranges, and the target topics of a sample of each.
--
-- keys: due record
-- args: samples_max:number
-- uses: tags
-- rest: edge_ms, edge_ms, ...
-- returns: {count, {topic, topic, ...}, count, {...}, ...}, one pair for each [edge, next edge)
--
-- The sample is spread evenly by rank; it is all of them if there are at most samples_max.
-- A packed record begins with its topic, after its tags: a string with a head of one byte (short) or
-- two.

local found = {}
local low = redis.call('ZCOUNT', due, '-inf', '(' .. ARGV[rest])
for i = rest, #ARGV - 1 do
    local high = redis.call('ZCOUNT', due, '-inf', '(' .. ARGV[i + 1])
    local count = high - low
    local topics = {}
    local samples = math.min(count, samples_max)
    for n = 0, samples - 1 do
        local rank = low + math.floor((n + 0.5) * count / samples)
        local packed = redis.call('HGET', record, redis.call('ZRANGE', due, rank, rank)[1])
        local _, at = tags_of(packed, 1)
        local head, size = string.byte(packed, at, at + 1)
        if head >= 160 and head < 192 then
            topics[n + 1] = string.sub(packed, at + 1, at + head - 160)
        else
            topics[n + 1] = string.sub(packed, at + 2, at + 1 + size)
        end
    end
    found[#found + 1] = count
    found[#found + 1] = topics
    low = high
end
return found
