-- Put recurring schedules from a batch back to pending, when their occurrences are on their way.
--
-- keys: due record state batches wake batch
-- args: owner name attempt
-- uses: tags back
-- rest: id, id, ...
-- full: goes on
-- also: leaving
-- returns: 1
--
-- Not sooner: the next occurrence, claimed by another lane, could overtake this one. On a journal the
-- later one tells how far the plan has come, so that an emptied store would leave out this one.
-- What was written again or cancelled since (see park) is dropped.
-- Refused (ENDED) for an attempt that another one has followed: that one has the same rows.

if (redis.call('HGET', batches .. '-attempts', name) or '') ~= attempt then
    return redis.error_reply('ENDED batch ' .. name .. ' is closed, or another attempt works on it')
end
local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local earliest = math.huge
for i = rest, #ARGV do
    local id, packed = ARGV[i], redis.call('HGET', batch, ARGV[i])
    if packed then
        redis.call('HDEL', batch, id)
        local due_ms = string.byte(packed) == 207 and back(id, packed)
        earliest = math.min(earliest, due_ms or math.huge)
    end
end
if earliest < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', earliest)
end
return 1
