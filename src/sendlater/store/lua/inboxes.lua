-- Store the ids of inbox topics. If an id has changed, forget how far that topic was read.
--
-- keys: seen topics state
-- args: owner
-- rest: topic id, topic id, ...
-- returns: the topics whose id has changed
--
-- The id and the positions change in one step. Safe to repeat. For a new topic only its id is stored.

local current = redis.call('HGET', state, 'owner') or '0'
if owner ~= current then
    return redis.error_reply('FENCED owner ' .. owner .. ' was followed by ' .. current)
end
local changed = {}
for i = rest, #ARGV, 2 do
    local topic, id = ARGV[i], ARGV[i + 1]
    local known = redis.call('HGET', topics, topic)
    if known and known ~= id then
        changed[#changed + 1] = topic
        for _, source in ipairs(redis.call('HKEYS', seen)) do
            if string.match(source, '^(.*)/%d+$') == topic then
                redis.call('HDEL', seen, source)
            end
        end
    end
    redis.call('HSET', topics, topic, id)
end
return changed
