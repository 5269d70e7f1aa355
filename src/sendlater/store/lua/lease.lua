-- Take, renew or (with lease_ms 0) give back the right to be the active service of a space.
--
-- keys: lease
-- args: holder lease_ms:number
-- full: goes on
-- returns: 1 when `holder` has it now, 0 when another has

local standing = redis.call('GET', lease)
if standing and standing ~= holder then
    return 0
end
if lease_ms == 0 then
    redis.call('DEL', lease)
else
    redis.call('SET', lease, holder, 'PX', lease_ms)
end
return 1
