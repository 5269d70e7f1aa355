-- Take ownership of a shard: every script that carries an older number fails from now on.
--
-- keys: state
-- args: number:number token
-- full: goes on
-- returns: 1 when `token` owns the shard under this number now, else 0
--
-- Only one token gets a number: a second caller with another token must ask for a higher number.
-- Safe to repeat with the same token. The earlier owner's bound, hold and draining are removed, who
-- was leaving, and its heir, whose number must be lower too. Refused while the shard is copied to
-- others (see store/reshard.py), unless by who does that: a service is told to end.

local standing = redis.call('HMGET', state, 'owner', 'token', 'heir', 'resharding')
if standing[4] and standing[4] ~= token then
    return redis.error_reply('FENCED the space is being laid out anew by `sendlater reshard`')
end
local current = tonumber(standing[1] or '0')
if number == current and token == standing[2] then
    return 1
end
if number <= math.max(current, tonumber(standing[3] or '0')) then
    return 0
end
redis.call('HDEL', state, 'draining', 'held', 'bound', 'heir', 'heir-token', 'ready', 'asked', 'leaving', 'reading', 'left')
redis.call('HSET', state, 'owner', number, 'token', token)
return 1
