-- How many are due in each of several adjacent ranges, and the target topics of a sample of each.
--
-- keys: due record
-- args: samples_max:number
-- rest: edge_ms, edge_ms, ...
-- returns: {count, {topic, topic, ...}, count, {...}, ...}, one pair for each [edge, next edge)
--
-- The sample is spread evenly by rank; it is all of them if there are at most samples_max.
-- A packed record is a msgpack array of ten. The first is the topic, a string with a head of one byte
-- (short) or two.

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
        local head = string.byte(packed, 2)
        if head >= 160 and head < 192 then
            topics[n + 1] = string.sub(packed, 3, 2 + head - 160)
        else
            topics[n + 1] = string.sub(packed, 4, 3 + string.byte(packed, 3))
        end
    end
    found[#found + 1] = count
    found[#found + 1] = topics
    low = high
end
return found
