-- Commit an intake batch: this shard has seen the inboxes up to the batch's ends.
--
-- keys: seen state
-- args: owner run batch:number
-- rest: source seen_before seen_after, source seen_before seen_after, ...
-- full: goes on
-- returns: 1
--
-- Refused (ELSEWHERE) unless every source stands where the batch's tasks left it: a store that lost
-- what they wrote must not count it as seen. Safe to repeat.

local done = run .. '/' .. batch
if redis.call('HGET', state, 'intake') == done then
    return 1
end
for i = rest, #ARGV, 3 do
    local stands = redis.call('HGET', seen, ARGV[i]) or ''
    if stands ~= ARGV[i + 1] then
        return redis.error_reply('ELSEWHERE ' .. stands)
    end
end
for i = rest, #ARGV, 3 do
    redis.call('HSET', seen, ARGV[i], ARGV[i + 2])
end
redis.call('HSET', state, 'intake', done)
return 1
