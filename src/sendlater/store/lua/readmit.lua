-- Put a row that was set aside back to pending, as it was or as a rejected one under a new id.
--
-- keys: due record aside wake state
-- args: owner aside_id version id due_ms:number packed_record rejected_count:number
-- uses: tags
-- full: goes on
-- returns: 1, or 0 when the row set aside is gone or has changed
--
-- `version` is the start of the row's digest: a row that was moved, replaced or cancelled meanwhile
-- is not the one that was checked. A pending schedule of the same id stays: the newest wins.

local packed = redis.call('HGET', aside, aside_id)
if not packed or string.sub(redis.sha1hex(packed), 1, #version) ~= version then
    return 0
end
redis.call('HDEL', aside, aside_id)
if redis.call('ZADD', due, 'NX', due_ms, id) == 1 then
    redis.call('HSET', record, id, packed_record)
    index(id, due_ms, (tags_of(packed_record, 1)))
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', due_ms)
end
if rejected_count > 0 then
    redis.call('HINCRBY', state, 'rejected', rejected_count)
end
return 1
