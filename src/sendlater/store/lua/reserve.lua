-- Reserve the next tokens of a limited topic for one shard. Called on the topic's home shard only.
--
-- keys: state limits
-- args: owner topic now_ms:number interval_ms:number burst:number ahead_ms:number chunk_ms:number wanted:number
-- full: goes on
-- also: leaving
-- returns: {from_ms, count}: so many tokens, one per interval, the first at from_ms; when count is 0,
--          ask again then
--
-- The home knows one thing of a topic: from when on tokens are left. A token is given once, to whoever
-- asks first, and is gone if that one dies. Reserving reaches ahead_ms into the future, so that shards
-- take turns: who holds tokens does not ask for more.
-- A topic that is new here, or new to this owner, begins without a burst: what was delivered a moment
-- ago is not known. What an older owner had reserved and not used counts no more: one that is leaving
-- gets none, and leaves what is limited to the next.

if owner ~= standing_owner then
    return {string.format('%.6f', now_ms + 1000), 0}
end
local now_at = string.format('%.6f', now_ms)
local of, stands = string.match(redis.call('HGET', limits .. '-from', topic) or '0 ' .. now_at, '^(%S*) (%S+)$')
local from_ms = tonumber(stands)
-- A clock that was far ahead must not stop a topic for good.
if of ~= owner or from_ms > now_ms + ahead_ms + chunk_ms + interval_ms + 60000 then
    from_ms = math.min(from_ms, now_ms + interval_ms)
end
from_ms = math.max(from_ms, now_ms - (burst - 1) * interval_ms)
if from_ms > now_ms + ahead_ms then
    return {string.format('%.6f', from_ms - ahead_ms), 0}
end
local ready = from_ms <= now_ms and math.floor((now_ms - from_ms) / interval_ms + 1e-6) + 1 or 0
local count = math.min(wanted, math.max(ready, math.ceil(chunk_ms / interval_ms), 1))
redis.call('HSET', limits .. '-from', topic, owner .. ' ' .. string.format('%.6f', from_ms + count * interval_ms))
return {string.format('%.6f', from_ms), count}
