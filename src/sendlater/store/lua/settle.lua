-- Drop a batch whose rows the broker has acknowledged.
--
-- keys: state batches batch
-- args: name
-- full: goes on
-- returns: how many schedules were delivered
--
-- Safe to repeat, also for an older owner: either the batch is still there, and was delivered, or it
-- was released, and there is nothing to drop. Nothing is claimed into it any more.
-- A server that was restarted refuses (see scripts.py): it may have forgotten that rows were taken out
-- of the batch, and those have not been delivered.

if name == '' then
    return redis.error_reply('ENDED no batch')
end
if redis.call('HEXISTS', batches .. '-ripe', name) == 1 then
    return redis.error_reply('ENDED batch ' .. name .. ' holds what is not due')
end
local count = redis.call('HLEN', batch)
redis.call('UNLINK', batch)
redis.call('HDEL', batches, name)
redis.call('HDEL', batches .. '-attempts', name)
local lane, run, number = string.match(name, '^(%d+):(%d+):(%d+):')
if run and redis.call('HGET', state, 'lane:' .. lane) == run then
    local ended_run, ended = string.match(redis.call('HGET', state, 'ended:' .. lane) or '', '^(%d+):(%d+)$')
    if ended_run ~= run or tonumber(number) > tonumber(ended) then
        redis.call('HSET', state, 'ended:' .. lane, run .. ':' .. number)
    end
end
if count > 0 then
    redis.call('HINCRBY', state, 'settled', count)
end
return count
