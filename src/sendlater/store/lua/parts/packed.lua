-- Where the parts of a packed record are; see codec.py. Needs tags.

-- The value of a msgpack integer that is not negative, and where it ends (cmsgpack cannot read what
-- Python packs).
local function whole(text, at)
    local first = string.byte(text, at) or 255
    local size = ({[204] = 1, [205] = 2, [206] = 4, [207] = 8, [208] = 1, [209] = 2, [210] = 4, [211] = 8})[first]
    if size and #text >= at + size then
        return struct.unpack('>I' .. size, text, at + 1), at + 1 + size
    end
    return first < 128 and first or -1, at + 1
end

-- Where a packed record tells the place it was read from, if that is on this topic, with partition and
-- position: it ends with topic, partition, position and a timestamp. The topic is text or bytes, and what
-- tells its length is in front: without that, `schedules` would be found in `eu-schedules`.
local function place(packed, topic)
    local size = #topic
    if size > 255 then
        return nil
    end
    local text = size < 32 and string.char(160 + size) or '\217' .. string.char(size)
    for _, head in ipairs({text, '\196' .. string.char(size)}) do
        local named = head .. topic
        local at = string.find(packed, named, math.max(1, #packed - #named - 26), true)
        while at do
            local number, after = whole(packed, at + #named)
            local position, last = whole(packed, after)
            if select(2, whole(packed, last)) == #packed + 1 then
                return at, number, position
            end
            at = string.find(packed, named, at + 1, true)
        end
    end
end

-- Where the value after this one begins.
local function after(text, at)
    local first = string.byte(text, at) or 192
    if first == 192 then
        return at + 1
    elseif first >= 160 and first < 192 then
        return at + 1 + first - 160
    end
    local size = ({[196] = 1, [197] = 2, [198] = 4, [217] = 1, [218] = 2, [219] = 4})[first]
    if size then
        return at + 1 + size + struct.unpack('>I' .. size, text, at + 1)
    end
    return select(2, whole(text, at))
end

-- Where the headers begin: topic, partition, key and value are in front of them.
local function headers_of(packed)
    local at = select(2, tags_of(packed, 1))
    for _ = 1, 4 do
        at = after(packed, at)
    end
    return at
end

-- How far the plan of a packed record has come, and its changes since; nil if it does not recur: a plan
-- is the first header.
local function planned_in(packed)
    local at = headers_of(packed)
    at = at + (({[220] = 3, [221] = 5})[string.byte(packed, at) or 0] or 1)
    if string.sub(packed, at, at + 15) ~= '\196\14sendlater-plan' then
        return nil
    end
    local plan = string.sub(packed, at + 16, after(packed, at + 16) - 1)
    return tonumber(string.match(plan, '"planned_ms":(%d+)')), tonumber(string.match(plan, '"changes":(%d+)') or 0)
end

-- Where a packed record begins to tell the place it was read from, its topic and partition, its position, its
-- timestamp.
local function origin(packed)
    local at = headers_of(packed)
    local first = string.byte(packed, at)
    local size = ({[220] = 2, [221] = 4})[first]
    local left = size and struct.unpack('>I' .. size, packed, at + 1) or first ~= 192 and first - 144 or 0
    at = at + 1 + (size or 0)
    for _ = 0, left do
        at = after(packed, at)
    end
    local partition = after(packed, at)
    local skipped = ({[196] = 2, [217] = 2, [197] = 3, [218] = 3})[string.byte(packed, at)] or 1
    local number, position = whole(packed, partition)
    local stands, stamp = whole(packed, position)
    return at, string.sub(packed, at + skipped, partition - 1) .. '/' .. number, stands, (whole(packed, stamp))
end
