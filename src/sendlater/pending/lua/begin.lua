-- Begin a new run of a lane or of the intake: tasks of earlier runs are refused from now on.
--
-- keys: state
-- args: owner what at_least:number
-- full: goes on
-- returns: the run's number, at_least or more
--
-- Called on every shard, then once more with the highest answer, so that all shards agree.

local run = tonumber(redis.call('HGET', state, what) or '0')
if at_least > 0 then
    run = math.max(run, at_least)
else
    run = run + 1
end
redis.call('HSET', state, what, run)
return run
