-- Write schedules, and how far their inbox partition has been read, in one step.
--
-- keys: due record seen state wake changes
-- args: owner source seen_before seen_after rejected_count:number
-- rest: id due_ms record, id due_ms record, ... (an empty due_ms cancels the id; change|due_ms is the
--       copy of a change, passed over by a store that has made it: see move)
-- returns: how many rows were applied
--
-- Safe to repeat: a row is applied only while `seen` stands where the reader found it, so the
-- second of two readers of the same records, or a reader ahead of a store that lost its last
-- moments, is refused (ELSEWHERE) and must look again. An empty source is a direct write, always taken.

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= '' and owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
if source ~= '' then
    local stands = redis.call('HGET', seen, source) or ''
    if stands ~= seen_before then
        return redis.error_reply('ELSEWHERE ' .. stands)
    end
    redis.call('HSET', seen, source, seen_after)
end

local head = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2]) or math.huge
local scores, records, count, added, cancelled, known = {}, {}, 0, 0, 0, 0

local function write()
    if #scores > 0 then
        added = added + redis.call('ZADD', due, unpack(scores))
        redis.call('HSET', record, unpack(records))
        scores, records = {}, {}
    end
end

local earliest = math.huge
for i = rest, #ARGV, 3 do
    local id, due_ms = ARGV[i], ARGV[i + 1]
    local change
    if string.find(due_ms, '|', 1, true) then
        change, due_ms = string.match(due_ms, '^(.*)|(.*)$')
    end
    if change and redis.call('ZREM', changes, change) == 1 then
        count = count + 1
        known = known + 1
    elseif due_ms == '' then
        write()
        if redis.call('ZREM', due, id) == 1 then
            redis.call('HDEL', record, id)
            cancelled = cancelled + 1
        end
    else
        scores[#scores + 1], scores[#scores + 2] = due_ms, id
        records[#records + 1], records[#records + 2] = id, ARGV[i + 2]
        earliest = math.min(earliest, tonumber(due_ms))
        count = count + 1
    end
end
write()

if earliest < head then
    redis.call('XADD', wake, 'MAXLEN', 1, '*', 'due_ms', earliest)
end
redis.call('HINCRBY', state, 'parked', count - known)
redis.call('HINCRBY', state, 'replaced', count - known - added)
redis.call('HINCRBY', state, 'cancelled', cancelled)
redis.call('HINCRBY', state, 'rejected', rejected_count)
return count
