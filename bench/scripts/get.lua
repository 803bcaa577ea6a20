-- Returns what is cached under a key.
--
-- KEYS[1]  the key
--
-- A caller that gets nothing computes the value and stores it with a time to live. Two callers may do so at
-- once: both have computed the same, so the later one does no harm. A read does not make a key live longer.

return redis.call('GET', KEYS[1])
