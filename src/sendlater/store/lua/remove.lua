-- Remove rows before they are read again from their journal; counters stay.
--
-- keys: due record state
-- args: owner
-- uses: tags
-- rest: id, id, ...
-- full: goes on
-- returns: how many rows were there

local count = 0
for i = rest, #ARGV do
    if redis.call('ZREM', due, ARGV[i]) == 1 then
        untag(ARGV[i])
    end
    count = count + redis.call('HDEL', record, ARGV[i])
end
return count
