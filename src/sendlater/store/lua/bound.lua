-- Say up to which due time schedules may be claimed: what is due later waits for intake.
--
-- keys: state wake
-- args: owner bound_ms
-- full: goes on
-- returns: 1
--
-- The bound lies in the shard beside the positions it speaks of: a store that goes back takes it
-- along. The first one lets go of tasks that were held since this owner began.

redis.call('HSET', state, 'bound', bound_ms)
if redis.call('HDEL', state, 'held') == 1 then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'bound', bound_ms)
end
return 1
