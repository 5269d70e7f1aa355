-- Add to counters and to the list of last deliveries; only people and metrics read them.
--
-- keys: tally recent
-- args: names_max:number recent_max:number recent_count:number
-- rest: delivery, delivery, ... (recent_count of them), name, count, name, count, ...
-- full: goes on
-- returns: 1
--
-- Names contain topics, which users choose: beyond names_max names, a new one counts as "other" of its
-- kind, under the part of the name up to its first colon.

for i = rest, rest + recent_count - 1 do
    redis.call('LPUSH', recent, ARGV[i])
end
if recent_count > 0 then
    redis.call('LTRIM', recent, 0, recent_max - 1)
end
local names = redis.call('HLEN', tally)
for i = rest + recent_count, #ARGV, 2 do
    local name = ARGV[i]
    if names >= names_max and redis.call('HEXISTS', tally, name) == 0 then
        name = string.match(name, '^[^:]*') .. ':'
    end
    redis.call('HINCRBY', tally, name, ARGV[i + 1])
end
return 1
