-- One schedule, wherever it is.
--
-- keys: due record batches
-- args: id
-- returns: {state, packed}, packed as in claim; or nothing

local score = redis.call('ZSCORE', due, id)
if score then
    return {'pending', '\207' .. struct.pack('>I8', tonumber(score)) .. redis.call('HGET', record, id)}
end
for _, name in ipairs(redis.call('HKEYS', batches)) do
    local packed = redis.call('HGET', batches .. ':' .. name, id)
    if packed then
        return {'claimed', packed}
    end
end
return false
