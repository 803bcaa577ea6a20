-- Takes the order of two articles and has the customer's account pay for them.
--
-- KEYS[1]  the cart, a hash with `quantity` and `price`
-- KEYS[2]  the stock of the first article
-- KEYS[3]  the stock of the second
-- KEYS[4]  the customer, a hash with `name` and `account`
-- KEYS[5]  the department's takings
-- KEYS[6]  the department's latest orders, a list
-- KEYS[7]  the department's figures, a sorted set
-- KEYS[8]  the receipt
-- ARGV[1]  the number of the customer's account
-- ARGV[2]  the number of the order
--
-- Returns what is left in the account, and how many orders the list has. The account's key is not declared.

local cart = redis.call('HMGET', KEYS[1], 'quantity', 'price')
local quantity = tonumber(cart[1])
local total = 2 * quantity * tonumber(cart[2])

local first = tonumber(redis.call('GET', KEYS[2]))
local second = tonumber(redis.call('GET', KEYS[3]))
if first < quantity or second < quantity then
  return redis.error_reply('ERR an article is out of stock')
end

local customer = redis.call('HMGET', KEYS[4], 'name', 'account')
local account = 'account:' .. ARGV[1]
if tonumber(redis.call('GET', account)) < total then
  return redis.error_reply('ERR the account does not hold enough')
end

redis.call('DECRBY', KEYS[2], quantity)
redis.call('DECRBY', KEYS[3], quantity)
local left = redis.call('DECRBY', account, total)
redis.call('HINCRBY', KEYS[1], 'ordered', 1)
redis.call('EXPIRE', KEYS[1], 86400)
redis.call('HINCRBY', KEYS[4], 'orders', 1)
redis.call('HSET', KEYS[4], 'latest', ARGV[2])
redis.call('INCRBY', KEYS[5], total)
redis.call('LPUSH', KEYS[6], ARGV[2])
redis.call('LTRIM', KEYS[6], 0, 9)
redis.call('ZINCRBY', KEYS[7], 1, 'orders')
redis.call('ZINCRBY', KEYS[7], 2 * quantity, 'articles')
redis.call('SET', KEYS[8], customer[1] .. ' has paid ' .. total)
redis.call('EXPIRE', KEYS[8], 86400)
return {left, redis.call('LLEN', KEYS[6])}
