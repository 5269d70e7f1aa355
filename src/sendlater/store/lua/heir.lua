-- Announce who owns a shard next: until then it may begin runs and batches, and claim nothing.
--
-- keys: state
-- args: number:number token
-- full: goes on
-- returns: 1 when `token` is the heir under this number now, else 0
--
-- Only one token gets a number, as with owners (see fence). A later heir takes the place of this one.

local standing = redis.call('HMGET', state, 'owner', 'heir', 'heir-token')
local owner, heir = tonumber(standing[1] or '0'), tonumber(standing[2] or '0')
if number == heir and token == standing[3] then
    return 1
end
if number <= math.max(owner, heir) then
    return 0
end
redis.call('HDEL', state, 'ready', 'asked')
redis.call('HSET', state, 'heir', number, 'heir-token', token)
return 1
