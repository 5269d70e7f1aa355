-- Take, renew or (with lease_ms 0) give back the right to be the active service of a space; and note
-- for people who stands by, and who took over when (unless handovers_max is 0: another lease).
--
-- keys: lease standby handovers
-- args: holder lease_ms:number now_ms:number standby_ms:number handovers_max:number
-- full: goes on
-- returns: 1 when `holder` has it now, 0 when another has

local standing = redis.call('GET', lease)
if standing and standing ~= holder then
    if lease_ms > 0 and handovers_max > 0 then
        redis.call('ZREMRANGEBYSCORE', standby, '-inf', now_ms - standby_ms)
        redis.call('ZADD', standby, now_ms, holder)
    end
    return 0
end
if lease_ms == 0 then
    redis.call('DEL', lease)
    return 1
end
redis.call('SET', lease, holder, 'PX', lease_ms)
if handovers_max == 0 then
    return 1
end
redis.call('ZREM', standby, holder)
local last = redis.call('LINDEX', handovers, 0)
if not last or string.match(last, ' (.+)$') ~= holder then
    redis.call('LPUSH', handovers, now_ms .. ' ' .. holder)
    redis.call('LTRIM', handovers, 0, handovers_max - 1)
end
return 1
