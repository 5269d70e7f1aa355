-- Begin an attempt at a batch on this shard: from now on only this attempt claims into it.
--
-- keys: state batches batch
-- args: owner lane run name number:number attempt
-- uses: prefetched
-- full: goes on
-- also: heir leaving
-- returns: 'new', 'open' (it holds rows of an earlier attempt) or 'closed' (and takes no more)
--
-- Spark may run a task again while the first try is still alive. What an earlier attempt has claimed
-- is in the batch, and this attempt must deliver it too. Later claims of the earlier attempt are
-- refused, because this one would not know of them. So is what it would take out of the batch: this
-- one has read the same rows, and may deliver them.

if redis.call('HGET', state, 'lane:' .. lane) ~= run then
    return redis.error_reply('ENDED run ' .. run .. ' of lane ' .. lane)
end
local ended_run, ended_number = string.match(redis.call('HGET', state, 'ended:' .. lane) or '', '^(%d+):(%d+)$')
if ended_run == run and number <= tonumber(ended_number) then
    return redis.error_reply('ENDED batch ' .. name .. ' is settled')
end
if string.find(redis.call('HGET', batches .. '-attempts', name) or '', '^closed') then
    redis.call('HSET', batches .. '-attempts', name, 'closed:' .. attempt)
    return 'closed'
end
redis.call('HSET', batches .. '-attempts', name, attempt)
if redis.call('EXISTS', batch) == 1 then
    return 'open'
end
end_prefetching(name)
return 'new'
