-- Let what waits for a limit that is no more go on, some rows at a time.
--
-- keys: due state limits wake
-- args: owner count_max:number
-- rest: topic, topic, ...: those that are limited still
-- full: goes on
-- returns: how many topics are left to look at

local limited = {}
for i = rest, #ARGV do
    limited[ARGV[i]] = true
end
local left = 0
for _, topic in ipairs(redis.call('SMEMBERS', limits)) do
    local round = limits .. ':' .. topic
    for _, field in ipairs(limited[topic] and {} or redis.call('HKEYS', round)) do
        local queue = round .. field
        local rows = string.sub(field, 1, 1) == ':' and count_max > 0
            and redis.call('ZRANGE', queue, 0, count_max - 1, 'WITHSCORES') or {}
        count_max = count_max - #rows / 2
        for i = 1, #rows, 2 do
            redis.call('ZREM', queue, rows[i])
            if tonumber(redis.call('ZSCORE', due, rows[i]) or '') == LIMITED + rows[i + 1] then
                redis.call('ZADD', due, rows[i + 1], rows[i])
                redis.call('HDEL', limits .. '-since', rows[i])
            end
        end
    end
    if not limited[topic] then
        if count_max > 0 then
            redis.call('UNLINK', round)
            redis.call('SREM', limits, topic)
        else
            left = left + 1
        end
    end
end
redis.call('XADD', wake, 'MAXLEN', 1, '*', 'limits', left)
return left
