-- Set rows of a batch aside: it is not known whether their target topic takes them.
--
-- keys: batches batch aside
-- args: name attempt
-- rest: id, id, ...
-- full: goes on
-- returns: how many rows were moved
--
-- A row whose id was written again or cancelled since the claim (see park) is only removed.
-- Refused (ENDED) for an attempt that another one has followed: that one delivers the row itself.

local standing = redis.call('HGET', batches .. '-attempts', name) or ''
if standing ~= attempt and standing ~= 'closed:' .. attempt then
    return redis.error_reply('ENDED another attempt works on batch ' .. name)
end
local count = 0
for i = rest, #ARGV do
    local packed = redis.call('HGET', batch, ARGV[i])
    if packed then
        redis.call('HDEL', batch, ARGV[i])
        if string.byte(packed) == 207 then
            redis.call('HSET', aside, ARGV[i], packed)
            count = count + 1
        end
    end
end
return count
