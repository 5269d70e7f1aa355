-- Write down how far a change of a space's layout is: see store/reshard.py.
--
-- keys: plan
-- args: token told
-- returns: 1, or 0 if the change is another command's by now, or has ended
--
-- A command that was paused for longer than its lease lasts must not go on with what has ended.
local stands = redis.call('GET', plan)
if not stands or cjson.decode(stands).token ~= token then
    return 0
end
-- A write that takes no memory comes first, so that a full Redis does not refuse the next one. (Scripts
-- that say `full: goes on` name another key for that, which in a cluster is on another node than this.)
redis.call('PERSIST', plan)
redis.call('SET', plan, told)
return 1
