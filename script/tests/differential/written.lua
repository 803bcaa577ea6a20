return 1
--
return -1
--
return 3.99
--
return -3.99
--
return 1e100
--
return -1e100
--
return 0/0
--
return 1/0
--
return 'x'
--
return ''
--
return true
--
return false
--
return nil
--
return
--
return {1,2,3}
--
return {1,2,nil,3}
--
return {}
--
return {{},{1},{{2}}}
--
return {true,false,1}
--
return {'a',{ok='b'},{err='C d'}}
--
return {ok='fine'}
--
return {err='BAD thing'}
--
return {err='BAD thing', ignore_error_stats_update=true}
--
return {err=1}
--
return {ok=1}
--
return {ok='a\r\nb'}
--
return {err='a\r\nb\r\n'}
--
return {err='', ok='x'}
--
return {map={1,2}}
--
return {map={a=1}}
--
return {map={}}
--
return {set={a=true}}
--
return {set={}}
--
return {double=3}
--
return {double=0.5}
--
return {double=1/0}
--
return {double=-1/0}
--
return {double='x'}
--
return {double='3'}
--
return {big_number='123'}
--
return {big_number='12\r3'}
--
return {big_number=12}
--
return {verbatim_string={format='txt',string='abc'}}
--
return {verbatim_string={format='tx',string='abc'}}
--
return {verbatim_string={format='txty',string='abc'}}
--
return {verbatim_string={format='t\rt',string='abc'}}
--
return {verbatim_string={format='txt'}, 7}
--
return {verbatim_string=1, 7}
--
return {err='A',ok='B',double=1,map={},set={},big_number='1',verbatim_string={format='txt',string='a'}}
--
return {ok='B',double=1,map={},set={},big_number='1',verbatim_string={format='txt',string='a'}}
--
return {double=1,map={},set={},big_number='1',verbatim_string={format='txt',string='a'}}
--
return {map={},set={},big_number='1',verbatim_string={format='txt',string='a'}}
--
return {set={},big_number='1',verbatim_string={format='txt',string='a'}}
--
return {big_number='1',verbatim_string={format='txt',string='a'}}
--
return setmetatable({},{__index=function(t,k) return 'yes' end})
--
return setmetatable({1,2},{__index={3,4,5}})
--
redis.setresp(3) return true
--
redis.setresp(3) return false
--
redis.setresp(3) return {true,false,nil,1}
--
redis.setresp(3) return redis.call('get','nokey')
--
redis.setresp(3) redis.call('hset','h','a','1') return redis.call('hgetall','h')
--
redis.setresp(3) redis.call('sadd','s','a') return redis.call('smembers','s')
--
redis.setresp(3) redis.call('zadd','z','1.5','a') return redis.call('zscore','z','a')
--
redis.setresp(3) redis.call('zadd','z','1.5','a') return redis.call('zscore','z','a').double
--
redis.setresp(3) redis.call('hset','h','a','1') return redis.call('hgetall','h').map.a
--
redis.setresp(3) redis.call('hset','h','a','1') return type(redis.call('hgetall','h').map)
--
redis.setresp(3) return tostring(redis.call('get','nokey'))
--
redis.setresp(3) return {redis.call('get','nokey'), 1}
--
return tostring(redis.call('get','nokey'))
--
return redis.call('get','nokey')
--
return redis.call('set','a','b')
--
return redis.call('set','a','b').ok
--
redis.call('set','a','b') return redis.call('get','a')
--
redis.call('set',KEYS[1],ARGV[1]) return redis.call('get',KEYS[1])
--
return redis.call('incrby','n',ARGV[2])
--
redis.call('rpush','l',1,2,3) return redis.call('lrange','l',0,-1)
--
redis.call('set','x',3.5) return redis.call('get','x')
--
redis.call('set','x',1e15) return redis.call('get','x')
--
redis.call('set','x',-7) return redis.call('get','x')
--
redis.call('set','x',123456789012) return redis.call('get','x')
--
redis.call('set','x',1e30) return redis.call('get','x')
--
redis.call('set','x',1/0) return redis.call('get','x')
--
redis.call('set','x',-1/0) return redis.call('get','x')
--
redis.call('set','x',0/0) return redis.call('get','x')
--
redis.call('set','x',-(0/0)) return redis.call('get','x')
--
redis.call('set','x',2^53) return redis.call('get','x')
--
return redis.call('foo')
--
return redis.pcall('foo')
--
return redis.call('get')
--
return redis.pcall('get')
--
return redis.call()
--
return redis.pcall()
--
return redis.call({})
--
return redis.pcall({})
--
return redis.call('get', nil)
--
return redis.call('get', true)
--
return redis.call('set','x',{})
--
redis.call('set','s','x') return redis.call('incr','s')
--
redis.call('set','s','x') return redis.pcall('incr','s')
--
redis.call('set','s','x') return redis.call('lpush','s','1')
--
redis.call('set','s','x') return redis.pcall('lpush','s','1').err
--
redis.call('set','s','x') return {redis.pcall('lpush','s','1'), 1}
--
redis.call('set','s','x') return tostring(redis.pcall('lpush','s','1').ignore_error_stats_update)
--
local ok, e = pcall(redis.call, 'foo') return {tostring(ok), e}
--
local ok, e = pcall(redis.call) return {tostring(ok), e}
--
local ok, e = pcall(redis.call, 'get') return {type(e), e}
--
local ok, e = xpcall(function() return redis.call('foo') end, function(e) return e.err end) return {tostring(ok), e}
--
local ok, e = xpcall(function() return redis.call('foo') end, function(e) return type(e) end) return e
--
local ok, e = xpcall(function() error('x') end, function(e) return e .. '!' end) return e
--
local ok, e = xpcall(function() error({1}) end, function(e) return e[1] end) return e
--
local ok, e = xpcall(function() return 1, 2 end, function(e) return e end) return e
--
return {xpcall(function() return 1, 2 end, function(e) return e end)}
--
return {pcall(function() return 1, 2 end)}
--
return {pcall(error)}
--
return {select('#', pcall(error))}
--
return {pcall(error, 'x')}
--
return {pcall(error, {err='X y'})}
--
return {pcall(error, {err=12})}
--
local ok, e = pcall(error, {code=12}) return e.code
--
local ok, e = pcall(function() local x = nil; x() end) return e
--
local ok, e = pcall(function() return foo end) return e
--
local ok, e = pcall(function() foo = 1 end) return e
--
local ok, e = pcall(string.rep) return e
--
local ok, e = pcall(string.rep, 'x') return e
--
local ok, e = pcall(function() return ('x'):rep({}) end) return e
--
local ok, e = pcall(function() return string.rep() end) return e
--
local ok, e = pcall(function() string.rep({}) end) return e
--
local ok, e = pcall(function() table.insert(1, 2) end) return e
--
local ok, e = pcall(function() table.insert({}, 1, 2, 3) end) return e
--
local ok, e = pcall(function() table.insert({}) end) return e
--
local ok, e = pcall(function() table.insert({}, 'x', 1) end) return e
--
local ok, e = pcall(function() table.remove(1) end) return e
--
local ok, e = pcall(function() table.sort(1) end) return e
--
local ok, e = pcall(function() table.sort({}, 1) end) return e
--
local ok, e = pcall(function() table.sort({1, 'x'}) end) return e
--
local ok, e = pcall(function() table.concat({{}}) end) return e
--
local ok, e = pcall(function() unpack(1) end) return e
--
local ok, e = pcall(function() unpack({}, 'x') end) return e
--
local ok, e = pcall(function() pairs(1) end) return e
--
local ok, e = pcall(function() ipairs(1) end) return e
--
local ok, e = pcall(function() next(1) end) return e
--
local ok, e = pcall(function() next({}, 1) end) return e
--
local ok, e = pcall(function() rawget(1, 1) end) return e
--
local ok, e = pcall(function() rawset(1, 1, 1) end) return e
--
local ok, e = pcall(function() rawset({}, nil, 1) end) return e
--
local ok, e = pcall(function() setmetatable(1, {}) end) return e
--
local ok, e = pcall(function() setmetatable({}, 1) end) return e
--
local ok, e = pcall(function() setmetatable({}) end) return e
--
local ok, e = pcall(function() setmetatable(setmetatable({}, {__metatable = 1}), {}) end) return e
--
local ok, e = pcall(function() getmetatable() end) return e
--
local ok, e = pcall(function() xpcall(1) end) return e
--
local ok, e = pcall(function() tostring() end) return e
--
local ok, e = pcall(function() collectgarbage('x') end) return e
--
local ok, e = pcall(function() loadstring({}) end) return e
--
local ok, e = pcall(function() load('x') end) return e
--
local ok, e = pcall(function() coroutine.resume(1) end) return e
--
local ok, e = pcall(function() assert(false) end) return e
--
local ok, e = pcall(function() assert(nil, 'msg') end) return e
--
local ok, e = pcall(function() error('x', 0) end) return e
--
local ok, e = pcall(function() error('x', 1) end) return e
--
local ok, e = pcall(function() error('x', 2) end) return e
--
error('x')
--
error('x', 0)
--
error('x', 2)
--
error({err='MYCODE x'})
--
error({err='x'})
--
error({err='x', source='y', line='z'})
--
error({err=12})
--
error(nil)
--
error()
--
error(12)
--
error(1.5)
--
error(true)
--
error({err='x', ignore_error_stats_update=true})
--
assert(false)
--
assert(false, 'msg')
--
assert(false, {err='X y'})
--
return error('x')
--
local function f() error('x') end f()
--
local function f() error('x', 2) end f()
--
local function f() error('x') end return f()
--
string.rep()
--
string.rep({})
--
return string.rep()
--
local x = nil + 1
--
local x = {} .. 'a'
--
local x = #nil
--
local x = nil; x.y = 1
--
local x = nil; return x.y
--
local x = {} < {}
--
local x = 1 < 'x'
--
x()
--
KEYS.x()
--
local x x()
--
redis.foo()
--
return redis.foo
--
return foo
--
return _G.foo
--
return rawget(_G, 'foo')
--
x = 1
--
_G.x = 1
--
rawset(_G, 'x', 1)
--
redis.foo = 1
--
redis.call = 1
--
string.foo = 1
--
KEYS = 1
--
table.insert(redis, 1)
--
table.remove(redis)
--
rawset(redis, 'x', 1)
--
setmetatable(redis, {})
--
setmetatable(_G, nil)
--
setmetatable(_G, {})
--
getmetatable('').__index = nil
--
getmetatable('').x = nil
--
return type(getmetatable(''))
--
return type(getmetatable('').__index)
--
return type(getmetatable(_G))
--
return type(getmetatable(redis))
--
return type(getmetatable({}))
--
return getmetatable(setmetatable({}, {__metatable = 'x'}))
--
return type(_G)
--
return tostring(_G == _G._G)
--
return type(next(redis))
--
local t = {} for k, v in pairs(redis) do if k ~= 'register_function' then t[#t+1] = k .. type(v) end end table.sort(t) return t
--
local t = {} for k, v in pairs(coroutine) do t[#t+1] = k end table.sort(t) return t
--
local t = {} for k, v in pairs(table) do t[#t+1] = k end table.sort(t) return t
--
local t = {} for k, v in pairs(math) do t[#t+1] = k end table.sort(t) return t
--
local t = {} for k, v in next, math do t[#t+1] = k end table.sort(t) return t
--
return type(redis.call)
--
return rawget(redis, 'LOG_DEBUG')
--
return {redis.LOG_DEBUG,redis.LOG_VERBOSE,redis.LOG_NOTICE,redis.LOG_WARNING,redis.REPL_NONE,redis.REPL_AOF,redis.REPL_SLAVE,redis.REPL_REPLICA,redis.REPL_ALL}
--
return {redis.REDIS_VERSION, redis.REDIS_VERSION_NUM}
--
return redis.error_reply('x')
--
return redis.error_reply('FOO x')
--
return redis.error_reply('-FOO x')
--
return redis.error_reply('-FOO')
--
return redis.error_reply('')
--
return redis.error_reply('-')
--
return redis.error_reply('- a')
--
return redis.error_reply('a\r\nb\r\n')
--
return redis.error_reply()
--
return redis.error_reply(1)
--
return redis.error_reply('a', 'b')
--
return redis.status_reply('x')
--
return redis.status_reply('a\r\nb\r\n')
--
return redis.status_reply()
--
return redis.status_reply(1)
--
return redis.sha1hex('abc')
--
return redis.sha1hex('')
--
return redis.sha1hex(12)
--
return redis.sha1hex(1e20)
--
return redis.sha1hex({})
--
return redis.sha1hex()
--
return redis.sha1hex('a', 'b')
--
redis.log()
--
redis.log('a', 'b')
--
redis.log(9, 'b')
--
redis.log(-1, 'b')
--
redis.log(3, 'x')
--
redis.setresp()
--
redis.setresp(4)
--
redis.setresp('3') return true
--
redis.setresp(2.9) return true
--
redis.setresp({})
--
redis.set_repl()
--
redis.set_repl(9)
--
redis.set_repl(-1)
--
return redis.set_repl(3)
--
return redis.replicate_commands()
--
return redis.acl_check_cmd('get', 'x')
--
return redis.acl_check_cmd('nosuch', 'x')
--
return redis.acl_check_cmd()
--
return redis.acl_check_cmd({})
--
return KEYS
--
return ARGV
--
return #KEYS
--
return KEYS[3]
--
KEYS[1] = 'changed' return KEYS
--
ARGV.x = 1 return ARGV.x
--
x x
--
return )
--
return 'abc
--
for
--
goto x
--
return 0x10
--
return 1e
--
return ...
--
return {...}
--
break
--
local a <const> = 1
--
return loadstring('return 1')()
--
return {loadstring('x x')}
--
return {loadstring('x x', '@name')}
--
return {loadstring('x x', '=name')}
--
return {loadstring('x x', 'name')}
--
return {load(function() return nil end)}
--
local n = 0 return load(function() n = n + 1 return ({'return ', '7'})[n] end)()
--
return {load(function() error('x') end)}
--
return {load(function() return {} end)}
--
local f = loadstring('error("x")') f()
--
local f = loadstring('return foo') f()
--
local f = loadstring('y = 1') f()
--
local f = loadstring('return KEYS[1]') return f()
--
return {string.byte('abc', 1, -1)}
--
return string.format('%5.2f|%d|%s|%q|%x|%c|%g', 3.14159, 42, 'x', 'a"b\n', 255, 65, 0.1)
--
return string.format('%s %s', 1, nil)
--
return string.format('%d', 'x')
--
return string.format('%y', 1)
--
return string.format('%s')
--
return ('x'):rep(3)
--
return ('x'):rep(0)
--
return ('x'):rep(-1)
--
return ('ab'):rep(5000):len()
--
return ('x'):rep('3')
--
return ('abc'):upper():lower():reverse():sub(2)
--
return ('abc'):len()
--
return #'abc'
--
return 10 .. ''
--
return 0.1 .. ''
--
return 1e15 .. ''
--
return 1e14 .. ''
--
return 123456789012345678 .. ''
--
return -0 .. ''
--
return 1/0 .. ''
--
return tostring(1e100)
--
return tostring(2^53)
--
return tonumber('0x10')
--
return tonumber('10', 2)
--
return tonumber('  5  ')
--
return tostring(tonumber('x'))
--
return tonumber('1e2')
--
local all = {}
for _, text in ipairs({'0', '-0', '00', '007', '-7', '+7', '', '-', '12 ', ' 12', '12x', '1_000', '9007199254740993', '-9007199254740993',
  '9223372036854775807', '-9223372036854775808', '9223372036854775808', '18446744073709551616', '123456789012345678901234567890'}) do
  local number = tonumber(text)
  all[#all + 1] = number and string.format('%.17g %.3g', number, 1 / number) or 'none'
end
return all
--
return {tostring(tonumber(12)), tostring(tonumber(nil)), tostring(tonumber({})), tostring(tonumber(true)), tostring(tonumber('12', 10))}
--
return {pcall(tonumber)}
--
return tonumber()
--
return tonumber('1', 99)
--
return {unpack({1,2,3})}
--
return {unpack({1,2,3}, 2)}
--
return {unpack({1,2,3}, 2, 3)}
--
return {unpack({1,2,3}, 3, 2)}
--
return {unpack({1,2,3}, '2')}
--
return {unpack({1,2,3}, -1, 1)}
--
return {select(2, 'a', 'b', 'c')}
--
return {select(-1, 'a', 'b', 'c')}
--
return select('#', nil, nil)
--
return select(0)
--
local t = {3,1,2} table.sort(t) return t
--
local t = {3,1,2} table.sort(t, function(a, b) return a > b end) return t
--
local t = {5,4,3,2,1} table.sort(t, function(a, b) return true end) return t
--
local t = {1,2,3} table.insert(t, 2, 9) return t
--
local t = {1,2,3} table.insert(t, 9) return t
--
local t = {1,2,3} table.insert(t, '2', 9) return t
--
local t = {1,2,3} table.insert(t, 1.7, 9) return t
--
local t = {1,2,3} table.insert(t, nil) return t
--
local t = {1,2,3} return {table.remove(t), t}
--
local t = {1,2,3} return {table.remove(t, 1), t}
--
local t = {1,2,3} return {tostring(table.remove(t, 7)), t}
--
local t = {} return tostring(table.remove(t))
--
return select('#', table.remove({}))
--
return select('#', table.remove({1}, 5))
--
return select('#', table.insert({}, 1))
--
return table.concat({1,2,'x'}, ',')
--
return table.concat({1,2,'x'}, ',', 2)
--
return table.concat({1,2,'x'}, ',', 2, 2)
--
return table.maxn({1,2,[10]=3})
--
return table.getn({1,2,3})
--
table.setn({}, 1)
--
local t = {} table.foreach({a=1}, function(k, v) t[#t+1] = k end) return t
--
local t = {} table.foreachi({5,6}, function(k, v) t[#t+1] = v end) return t
--
return math.floor(3.7)
--
return tostring(math.huge)
--
return math.max(1, 5, 3)
--
return tostring(math.pi)
--
return math.fmod(7, 3)
--
return {math.modf(3.7)}
--
return math.random(1, 10)
--
return {math.random(1,1000), math.random(1,1000), math.random(1,1000)}
--
return tostring(math.random())
--
return {tostring(math.random()), math.random(5), math.random(3, 9)}
--
math.randomseed(42) return {math.random(1,1000), math.random(1,1000)}
--
math.randomseed(-1) return {math.random(1,1000), math.random(1,1000)}
--
math.randomseed(1.5) return {math.random(1,1000), math.random(1,1000)}
--
math.randomseed('7') return {math.random(1,1000), math.random(1,1000)}
--
math.randomseed()
--
math.randomseed('x')
--
return math.random(0)
--
return math.random(5, 1)
--
return math.random(1, 2, 3)
--
return math.random('x')
--
return math.random(2.9)
--
return tostring(math.random(0.5))
--
local co = coroutine.create(function(a) local b = coroutine.yield(a + 1) return b * 2 end) local _, x = coroutine.resume(co, 1) local _, y = coroutine.resume(co, 5) return {x, y, coroutine.status(co)}
--
local co = coroutine.create(function() error('x') end) return {coroutine.resume(co)}
--
local co = coroutine.create(function() error({err='X y'}) end) return {coroutine.resume(co)}
--
local co = coroutine.create(function() return redis.call('foo') end) return {coroutine.resume(co)}
--
local co = coroutine.create(function() return 1 end) coroutine.resume(co) return {coroutine.resume(co)}
--
return coroutine.wrap(function() error('x') end)()
--
return coroutine.wrap(function() return redis.call('foo') end)()
--
return coroutine.wrap(function() return redis.call('set', 'a', 'b') end)()
--
return {coroutine.wrap(function() return 1, 2 end)()}
--
coroutine.yield(1)
--
return tostring(coroutine.running())
--
return pcall(coroutine.yield, 1)
--
local co = coroutine.wrap(function() pcall(function() coroutine.yield(1) end) return 2 end) return co()
--
local t = setmetatable({}, {__tostring = function() return 'shown' end}) return tostring(t)
--
local t = setmetatable({}, {__call = function(self, x) return x end}) return t(5)
--
local t = setmetatable({}, {__eq = function() return true end}) return tostring(t == setmetatable({}, getmetatable(t)))
--
local t = setmetatable({}, {__newindex = function() error('no') end}) t.x = 1
--
return type(collectgarbage('count'))
--
return collectgarbage('collect')
--
return collectgarbage()
--
return type(gcinfo())
--
return _VERSION
--
return type(assert)
--
return assert(1, 2)
--
return {type(1), type('x'), type(nil), type({}), type(print)}
--
return io
--
return print
--
return dofile
--
return require
--
return debug
--
return newproxy
--
return loadfile
--
return module
--
return package
--
return setfenv
--
return getfenv
--
return tostring(rawequal(KEYS, KEYS))
--
return {1, {2, {3, {4}}}}
--
return {1, 'a', 2.5, true, {ok='x'}, {err='Y z'}}
--
return {[1]='a', [2]='b', [4]='d'}
--
return function() end
--
return coroutine.create(function() end)
--
return redis
--
return redis.call
--
if true then return 5 end
--
do return 6 end
--
-- only a comment
local a = 1
--
#!lua
return 1
--
#!lua flags=no-writes
return 1
--
return redis.call('echo', ('x'):rep(100000)):len()
--
local t = {} for i = 1, 1000 do t[i] = i end return t
--
return redis.call('type', 'x')
--
return redis.call('type', 'x').ok
--
return redis.call('time')[3]
--
local x = redis.call('set', 'x', '\0\1\2') return redis.call('get', 'x')
--
return '\0\255'
--
return foo['\255']
--
return _G['a\255b']
--
return _G[1]
--
return _G[{}]
--
return _G[true]

--
return redis.error_reply('\r\n\r\nx\r\ny\r\n')
--
return redis.error_reply('-\r\nCODE x')
--
return redis.error_reply('a\0b')
--
return {err = '\r\nx\0y'}
--
return {ok = 'a\0b\r\n'}
--
error('\r\na\0b\r\n')
--
error({err = '\r\nx y\r\n'})
--
return {big_number = '\255\0'}
--
local renamed = unpack
return renamed(nil)
--
return unpack(nil)
--
return unpack({}, 1, 9000)
--
return {unpack({1, 2, 3}, 2, 1e100)}
--
return table.insert({}, 'x', 1)
--
local insert = table.insert
return insert({})
--
local t = {1, 2, 3} table.insert(t, -1, 'x') return {t[-1], t[0], t[1], #t}
--
local t = {1, 2, 3} table.insert(t, '2', 'x') return {table.remove(t, '0x2'), table.remove(t, 9), #t}
--
return {pcall(table.insert, redis, 1)}
--
return {pcall(setmetatable, redis, {})}
--
return {pcall(setmetatable, redis, 1)}
--
return {pcall(rawset, redis, 'x')}
--
return {pcall(unpack)}
--
return {pcall(table.sort, {3, 1, 2, 5, 4}, function() return true end)}
--
return table.sort({3, 1, 2, 5, 4}, function() return true end)
--
for k in next, nil do end
--
for k in pairs() do end
--
return load(nil)
--
return load('x')
--
local t = {} return t:load()
--
return loadstring()
--
return {math.random('0x10')}
--
return math.random(nil)
--
return {math.random(-2^31, 2^31 - 1), math.random(1e100, 1)}
--
return #{pcall(error, {code = 1})}
--
return {pcall(error, {err = 12})}
--
return {pcall(coroutine.wrap(function() error('x') end))}
--
return {pcall(coroutine.wrap(function() error({err = 'x'}) end))}
--
return coroutine.wrap(function() local t = nil + 1 end)()
--
return {pcall(function() return coroutine.wrap(function() return unpack(nil) end)() end)}
--
local f = coroutine.wrap(function(a) return a, coroutine.yield(a) end) return {f(1, 2), f(3, 4)}
--
local f = coroutine.wrap(function() end) f() f()
--
coroutine.wrap('x')
--
coroutine.resume('x')
--
return xpcall(function() error('x') end)
--
return {xpcall(error, function(e) return 'handled ' .. tostring(e) end)}
--
return {xpcall(error, 1)}
--
return #('x'):rep(2^32 + 1)
--
return {getmetatable(redis) == nil, getmetatable('').__index == string}

--
return {unpack({}, 0/0, 5)}
--
return {unpack({1}, -1e300, 2e300)}
--
return #('x'):rep(1e300)

--
error(cjson.null)

--
local function f(n) if n > 0 then return pcall(f, n - 1) end return n end return {select("#", f(190))}

--
return {pcall(string.gsub, 'a', 'a', math.fmod)}
--
return {pcall(string.gsub, 'a', 'a', next)}
