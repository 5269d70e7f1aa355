-- Drop rows of an unsettled batch that have been found on their target topics.
--
-- keys: state batch
-- args: owner
-- rest: id, id, ...
-- full: goes on
-- returns: how many rows were dropped

local count = 0
for i = rest, #ARGV do
    count = count + redis.call('HDEL', batch, ARGV[i])
end
redis.call('HINCRBY', state, 'settled', count)
return count
