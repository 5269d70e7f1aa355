-- Whether a packed record passes a filter by its topic and a header; see page. Needs tags.

local function has_header(packed)
    local _, stop = string.find(packed, header_name, 1, true)
    while stop do
        if string.find(string.sub(packed, stop + 2, stop + 5 + #header_value), header_value, 1, true) then
            return true
        end
        _, stop = string.find(packed, header_name, stop + 1, true)
    end
    return false
end

local function passes(packed)
    local _, at = tags_of(packed, 1)
    return (topic_a == '' or string.sub(packed, at, at + #topic_a - 1) == topic_a
        or string.sub(packed, at, at + #topic_b - 1) == topic_b)
        and (header_name == '' or has_header(packed))
end
