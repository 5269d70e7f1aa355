-- The index of tags: per tag a sorted set beside `due`, which holds what is in `due` and has the tag;
-- and a hash id -> tags, so that a schedule leaves the index without its record being read. All of it
-- changes in the step in which `due` does. What waits for the limit of its topic has its due time here.

-- The tags of a packed record that begins at `at`, and where its topic begins; see codec.py.
local function tags_of(packed, at)
    if string.byte(packed, at) ~= 155 then
        return nil, at + 1
    end
    local head, high, low = string.byte(packed, at + 1, at + 3)
    local first = at + (head == 196 and 3 or 4)
    local after = first + (head == 196 and high or high * 256 + low)
    return string.sub(packed, first, after - 1), after
end

-- A schedule comes to `due` with these tags (nil: none), or gets another due time there.
local function index(id, due_ms, tags)
    if not tags then
        return
    end
    if not has_tags then
        redis.call('HSET', state, 'tagged', 1)
        has_tags = true
    end
    redis.call('HSET', due .. ':tags', id, tags)
    for tag in string.gmatch(tags, '[^,]+') do
        redis.call('ZADD', due .. ':tag:' .. tag, due_ms, id)
    end
end

-- Schedules leave `due`: id -> tags of those that have some.
local function unindex(rows)
    local ids, by_tag = {}, {}
    for id, tags in pairs(rows) do
        ids[#ids + 1] = id
        for tag in string.gmatch(tags, '[^,]+') do
            local some = by_tag[tag] or {}
            some[#some + 1] = id
            by_tag[tag] = some
        end
    end
    if #ids > 0 then
        redis.call('HDEL', due .. ':tags', unpack(ids))
    end
    for tag, some in pairs(by_tag) do
        redis.call('ZREM', due .. ':tag:' .. tag, unpack(some))
    end
end

-- The same where the record is not at hand. No command where no schedule has ever had tags.
local function untag(id)
    unindex({[id] = has_tags and redis.call('HGET', due .. ':tags', id) or nil})
end
