-- Set fields of a hash, or remove them where the value is empty, and wake whoever waits.
--
-- keys: hash wake
-- args: word
-- rest: field, value, field, value, ...
-- full: goes on
-- returns: 1

for i = rest, #ARGV, 2 do
    if ARGV[i + 1] == '' then
        redis.call('HDEL', hash, ARGV[i])
    else
        redis.call('HSET', hash, ARGV[i], ARGV[i + 1])
    end
end
if word ~= '' then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', word, '1')
end
return 1
