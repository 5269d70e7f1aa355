-- Put a row of a batch back to pending, unless its id stands there already: the newest wins. Its due time if it was
-- put back. Needs tags.
local function back(id, row)
    local due_ms = struct.unpack('>I8', row, 2)
    if redis.call('ZADD', due, 'NX', due_ms, id) == 1 then
        redis.call('HSET', record, id, string.sub(row, 10))
        index(id, due_ms, (tags_of(row, 10)))
        return due_ms
    end
end
