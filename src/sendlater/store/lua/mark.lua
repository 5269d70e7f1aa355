-- Set fields of a hash (an empty value removes one) and wake waiting tasks with `word`, if not empty.
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
