-- Move the horizon: intake writes what is due up to it, planning writes the rest later.
--
-- keys: state touched beyond
-- args: owner horizon planned later begun
-- full: goes on
-- returns: 1
--
-- While `planned` is before `horizon`, planning looks up in the journals what is due between the two.
-- Ids that intake sees meanwhile are kept in `touched`, also while a step is tried again. An empty
-- horizon is infinitely far.
--
-- With `begun` this is the end of a step. Refused (ELSEWHERE) if the horizon is another one: a store
-- that lost the beginning of the step has passed over records that planning has not written either.

local before = redis.call('HMGET', state, 'horizon', 'planned')
local stands = before[1] or ''
if begun ~= '' and stands ~= horizon then
    return redis.error_reply('ELSEWHERE horizon ' .. stands)
end
if horizon == planned or before[1] == before[2] then
    redis.call('UNLINK', touched)
end
redis.call('UNLINK', beyond)
redis.call('HSET', state, 'horizon', horizon, 'planned', planned)
-- `later` was counted; `later_since` is what intake has passed over since that count began.
local since = tonumber(redis.call('HGET', state, 'later_since') or '0')
if later == '' then
    redis.call('HSET', state, 'later_mark', since)
else
    local mark = tonumber(redis.call('HGET', state, 'later_mark') or '0')
    redis.call('HSET', state, 'later', later, 'later_since', since - mark, 'later_mark', 0)
end
return 1
