-- Remove rows before they are read again from their journal; counters stay.
--
-- keys: due record state
-- args: owner
-- rest: id, id, ...
-- full: goes on
-- returns: how many rows were there

local count = 0
for i = rest, #ARGV do
    redis.call('ZREM', due, ARGV[i])
    count = count + redis.call('HDEL', record, ARGV[i])
end
return count
