-- Put what a batch has prefetched back to pending, some at a time.
--
-- keys: due record state wake batches
-- args: name cursor count_max:number attempt
-- uses: tags back prefetched recall
-- full: goes on
-- returns: the next cursor; 0 after the last row
--
-- For an attempt that begins ('': for nobody) the batch has prefetched nothing when all is back: what it claims
-- is ripe, although it may look no further ahead.
-- Safe to repeat, and for everybody: what is due already stays where it is.

local ripe_ms = tonumber(redis.call('HGET', batches .. '-ripe', name) or '')
if not ripe_ms then
    return '0'
end
local found = redis.call('HSCAN', batches .. ':' .. name, cursor, 'COUNT', count_max)
local rows = {}
for i = 1, #found[2], 2 do
    if is_prefetched(found[2][i + 1], ripe_ms) then
        rows[found[2][i]] = found[2][i + 1]
    end
end
if next(rows) then
    put_back(name, rows)
end
if found[1] == '0' and attempt ~= '' and redis.call('HGET', batches .. '-attempts', name) == attempt then
    end_prefetching(name)
end
return found[1]
