-- What is prefetched: rows that a batch holds before they are due (see claim). Up to then they go back to
-- pending when somebody asks for them. Needs back and prefetched.

-- Put rows of a batch back; the task that holds them hears of it before it delivers anything more.
local function put_back(name, rows)
    local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2] or '') or math.huge
    local earliest = math.huge
    for id, row in pairs(rows) do
        redis.call('HDEL', batches .. ':' .. name, id)
        redis.call('SADD', batches .. '-recalled:' .. name, id)
        earliest = math.min(earliest, back(id, row) or math.huge)
    end
    if earliest < head then
        redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', earliest)
    end
end

-- Put back what is prefetched of these ids, in whatever batch.
local function recall(ids)
    local ripe = #ids > 0 and redis.call('HGETALL', batches .. '-ripe') or {}
    for i = 1, #ripe, 2 do
        local name, rows = ripe[i], {}
        for n, row in ipairs(redis.call('HMGET', batches .. ':' .. name, unpack(ids))) do
            if row and is_prefetched(row, tonumber(ripe[i + 1])) then
                rows[ids[n]] = row
            end
        end
        if next(rows) then
            put_back(name, rows)
        end
    end
end
