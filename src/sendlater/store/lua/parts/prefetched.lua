-- Whether a row of a batch is prefetched: not due yet (see claim), where what is due until ripe_ms is.
local function is_prefetched(row, ripe_ms)
    return string.byte(row) == 207 and struct.unpack('>I8', row, 2) > ripe_ms
end

-- From here on a batch has prefetched nothing: all it holds is claimed.
local function end_prefetching(name)
    redis.call('HDEL', batches .. '-ripe', name)
    redis.call('UNLINK', batches .. '-recalled:' .. name)
end
