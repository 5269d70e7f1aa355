-- Begin a new run of a lane or of the intake: tasks of earlier runs are refused from now on.
--
-- keys: state
-- args: owner what at_least:number
-- returns: the run's number, at_least or more
--
-- Called on every shard, then once more with the highest answer, so that all shards agree.

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
local run = tonumber(redis.call('HGET', state, what) or '0')
if at_least > 0 then
    run = math.max(run, at_least)
else
    run = run + 1
end
redis.call('HSET', state, what, run)
return run
