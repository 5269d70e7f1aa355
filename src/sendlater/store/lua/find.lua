-- One schedule, wherever it is.
--
-- keys: due record batches aside limits
-- args: id
-- uses: prefetched
-- returns: {state, packed}, packed as in claim; of what waits for a limit also since when; or nothing

local score = redis.call('ZSCORE', due, id)
if score then
    score = tonumber(score)
    local since_ms = score >= LIMITED and redis.call('HGET', limits .. '-since', id) or nil
    return {'pending', '\207' .. struct.pack('>I8', score % LIMITED) .. redis.call('HGET', record, id), since_ms}
end
local packed = redis.call('HGET', aside, id)
if packed then
    return {'pending', packed}
end
for _, name in ipairs(redis.call('HKEYS', batches)) do
    packed = redis.call('HGET', batches .. ':' .. name, id)
    if packed then
        local ripe_ms = tonumber(redis.call('HGET', batches .. '-ripe', name) or '') or math.huge
        return {is_prefetched(packed, ripe_ms) and 'pending' or 'claimed', '\207' .. string.sub(packed, 2)}
    end
end
return false
