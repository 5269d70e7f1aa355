-- Give a pending schedule another due time.
--
-- keys: due wake
-- args: id due_ms:number
-- returns: 1 when it was moved, 0 when it is not pending

if not redis.call('ZSCORE', due, id) then
    return 0
end
local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
redis.call('ZADD', due, due_ms, id)
if due_ms < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', due_ms)
end
return 1
