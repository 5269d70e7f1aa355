-- Some of what a batch has prefetched, as far as it passes a filter: beside what is in `due`, see page.
--
-- keys: batches
-- args: name cursor count_max:number from_ms:number to_ms:number id_prefix tag topic_a topic_b header_name header_value
-- uses: tags prefetched passes
-- returns: {cursor, id, packed, id, packed, ...}, packed as in claim; cursor 0 after the last row

local found = {'0'}
local ripe_ms = tonumber(redis.call('HGET', batches .. '-ripe', name) or '')
if not ripe_ms then
    return found
end
local rows = redis.call('HSCAN', batches .. ':' .. name, cursor, 'COUNT', count_max)
found[1] = rows[1]
for i = 1, #rows[2], 2 do
    local id, row = rows[2][i], rows[2][i + 1]
    if is_prefetched(row, ripe_ms) and string.sub(id, 1, #id_prefix) == id_prefix then
        local due_ms, packed = struct.unpack('>I8', row, 2), string.sub(row, 10)
        local has_tag = tag == '' or string.find(',' .. (tags_of(packed, 1) or '') .. ',', ',' .. tag .. ',', 1, true)
        if from_ms <= due_ms and due_ms <= to_ms and has_tag and passes(packed) then
            found[#found + 1] = id
            found[#found + 1] = row
        end
    end
end
return found
