-- Close a batch on this shard: its rows are those that the attempt knows, and no more will come.
--
-- keys: state batches
-- args: owner name attempt
-- full: goes on
-- returns: 1
--
-- Refused (ENDED) unless this attempt is the one at work. Whichever attempt's output Spark then
-- takes, it is of the same rows. A closed batch is closed for its repetition too.

local standing = redis.call('HGET', batches .. '-attempts', name)
if standing ~= attempt and standing ~= 'closed' then
    return redis.error_reply('ENDED another attempt works on batch ' .. name)
end
redis.call('HSET', batches .. '-attempts', name, 'closed')
return 1
