-- Close a batch on this shard: its rows are those that the attempt knows, and no more will come.
--
-- keys: state batches
-- args: owner name attempt
-- uses: prefetched
-- full: goes on
-- also: heir leaving
-- returns: 1
--
-- Refused (ENDED) if another attempt is at work. So every attempt whose output Spark may take has
-- the same rows. A closed batch stays closed when Spark repeats it.

local standing = redis.call('HGET', batches .. '-attempts', name)
if standing ~= attempt and not string.find(standing or '', '^closed') then
    return redis.error_reply('ENDED another attempt works on batch ' .. name)
end
redis.call('HSET', batches .. '-attempts', name, 'closed')
end_prefetching(name)
return 1
