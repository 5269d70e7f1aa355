-- Begin a new run of a lane or of the intake: tasks of earlier runs are refused from now on.
--
-- keys: state batches
-- args: owner what at_least:number
-- full: goes on
-- also: heir
-- returns: the run's number, at_least or more
--
-- Called on every shard, then again with the highest answer, so that all shards agree. Attempts of
-- a lane's earlier runs are removed: for batches without rows nothing else removes them.

local run = tonumber(redis.call('HGET', state, what) or '0')
if at_least > 0 then
    run = math.max(run, at_least)
else
    run = run + 1
end
redis.call('HSET', state, what, run)
local lane = string.match(what, '^lane:(%d+)$')
for _, name in ipairs(lane and redis.call('HKEYS', batches .. '-attempts') or {}) do
    local of_lane, of_run = string.match(name, '^(%d+):(%d+):')
    if of_lane == lane and tonumber(of_run) < run then
        redis.call('HDEL', batches .. '-attempts', name)
    end
end
return run
