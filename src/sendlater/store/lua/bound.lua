-- Set the due time up to which schedules may be claimed: what is due later waits for intake.
--
-- keys: state wake
-- args: owner bound_ms
-- full: goes on
-- also: leaving
-- returns: 1; 0 if nothing was changed
--
-- The bound is in the shard, like the positions it depends on: a store that goes back loses both.
-- The first bound after a hold ends the hold and wakes the waiting tasks. An owner that is leaving ends
-- none, and only raises the bound: what it has found out is true, but the next one may know of more.

if owner ~= standing_owner then
    local standing = redis.call('HMGET', state, 'held', 'bound')
    if standing[1] or not standing[2] or tonumber(standing[2]) >= tonumber(bound_ms) then
        return 0
    end
end
redis.call('HSET', state, 'bound', bound_ms)
if redis.call('HDEL', state, 'held') == 1 then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'bound', bound_ms)
end
return 1
