-- Put rows of an unsettled batch back to pending, some at a time.
--
-- keys: due record state wake batches batch
-- args: owner name cursor count_max:number
-- uses: tags back prefetched
-- full: goes on
-- returns: the next cursor, and how many rows the batch still holds
--
-- A row whose id was written again or cancelled since it was claimed (park has marked it) is
-- dropped: the newest wins, in any batch and in any order of releases.

-- From the cursor on: a step of a scan returns nothing where the hash is empty already, as its beginning soon is.
local found = redis.call('HSCAN', batch, cursor, 'COUNT', count_max)
local rows = found[2]
for i = 1, #rows, 2 do
    local id, packed = rows[i], rows[i + 1]
    redis.call('HDEL', batch, id)
    if string.byte(packed) == 207 then
        back(id, packed)
    end
end
local left = redis.call('HLEN', batch)
if left == 0 then
    redis.call('HDEL', batches, name)
    redis.call('HDEL', batches .. '-attempts', name)
    end_prefetching(name)
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'released', name)
end
return {found[1], left}
