-- Make the heir the owner of a shard; what is claimed stays with the run that has claimed it.
--
-- keys: state wake
-- args: number bound_stays leaves
-- full: goes on
-- returns: 1 when the heir owns the shard now, else 0: it is the heir no longer
--
-- Called by the owner, or by the heir when no owner is alive. A fence ends the heir, so whoever the
-- heir was announced to is the owner still. Safe to repeat.
-- The bound is about the positions in this shard, so it holds for the next owner too; but not if a
-- server was restarted, and may have lost some of them (bound_stays is empty): then it is held.
-- An owner that is alive goes on for a moment (leaves is not empty): it claims until the field `left`
-- names it, and parks while `reading` does. So nothing waits for the first steps of the next one.

local standing = redis.call('HMGET', state, 'owner', 'heir', 'heir-token', 'held')
if standing[1] == number then
    return 1
end
if standing[2] ~= number then
    return 0
end
redis.call('HSET', state, 'owner', number, 'token', standing[3])
redis.call('HDEL', state, 'draining', 'heir', 'heir-token', 'ready', 'asked', 'leaving', 'reading', 'left')
if leaves ~= '' then
    redis.call('HSET', state, 'leaving', standing[1], 'reading', standing[1])
end
if bound_stays == '' then
    redis.call('HDEL', state, 'bound')
end
if standing[4] or bound_stays == '' then
    redis.call('HSET', state, 'held', number)
end
redis.call('XADD', wake, 'MAXLEN', 1, '*', 'inherited', number)
return 1
