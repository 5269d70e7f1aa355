-- Set the due time up to which schedules may be claimed: what is due later waits for intake.
--
-- keys: state wake
-- args: owner bound_ms
-- full: goes on
-- returns: 1
--
-- The bound is in the shard, like the positions it depends on: a store that goes back loses both.
-- The first bound after a hold ends the hold and wakes the waiting tasks.

redis.call('HSET', state, 'bound', bound_ms)
if redis.call('HDEL', state, 'held') == 1 then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'bound', bound_ms)
end
return 1
