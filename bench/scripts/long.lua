-- Counts a key up, one by one.
--
-- KEYS[1]  the key
-- ARGV[1]  how often

local key = KEYS[1]
local n_times = tonumber(ARGV[1])
for _ = 1, n_times do
  redis.call('INCR', key)
end
return n_times
