-- Admits a caller's request if there were not too many within a window that slides.
--
-- KEYS[1]  the caller's requests, a sorted set by their times
-- ARGV[1]  how many are admitted within a window
-- ARGV[2]  the window in milliseconds
-- ARGV[3]  tells apart requests of the same microsecond
--
-- Returns whether the request is admitted, and how many more are.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit = tonumber(ARGV[1])
local window = tonumber(ARGV[2])

redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - window)
local n_before = redis.call('ZCARD', KEYS[1])
if n_before >= limit then
  return {0, 0}
end
redis.call('ZADD', KEYS[1], now, time[1] .. '.' .. time[2] .. ':' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], window)
return {1, limit - n_before - 1}
