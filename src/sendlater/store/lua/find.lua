-- One schedule, wherever it is.
--
-- keys: due record batches aside
-- args: id
-- returns: {state, packed}, packed as in claim; or nothing

local score = redis.call('ZSCORE', due, id)
if score then
    return {'pending', '\207' .. struct.pack('>I8', tonumber(score) % LIMITED) .. redis.call('HGET', record, id)}
end
local packed = redis.call('HGET', aside, id)
if packed then
    return {'pending', packed}
end
for _, name in ipairs(redis.call('HKEYS', batches)) do
    packed = redis.call('HGET', batches .. ':' .. name, id)
    if packed then
        return {'claimed', '\207' .. string.sub(packed, 2)}
    end
end
return false
