-- Put a row that was set aside back to pending, as it was or as a rejected one under a new id.
--
-- keys: due record aside wake state
-- args: owner aside_id id due_ms:number packed_record rejected_count:number
-- returns: 1, or 0 when it is no longer aside
--
-- A schedule whose id was written again meanwhile stays as written: the newest wins.

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
if redis.call('HDEL', aside, aside_id) == 0 then
    return 0
end
if redis.call('ZADD', due, 'NX', due_ms, id) == 1 then
    redis.call('HSET', record, id, packed_record)
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', due_ms)
end
if rejected_count > 0 then
    redis.call('HINCRBY', state, 'rejected', rejected_count)
end
return 1
