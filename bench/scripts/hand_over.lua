-- Hands one of an account over to its heir.
--
-- ARGV[1]  the account, a hash whose `heir` names another account
--
-- Returns the heir. Which keys it writes, only the data tell.

local heir = redis.call('HGET', ARGV[1], 'heir')
redis.call('HINCRBY', ARGV[1], 'given', 1)
redis.call('HINCRBY', heir, 'got', 1)
return heir
