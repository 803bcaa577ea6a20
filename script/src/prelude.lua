-- Our part of a script's world that is best said in Lua: what must call scripts' functions, and what stands between a script and the
-- tables that all scripts share. No name of this chunk is global, so nothing here can be reached but what it returns.
--
-- A shared table is shown as a front: an empty table whose reads go to the table behind it and whose writes are refused. Functions
-- that read or write tables without metamethods know the fronts by `behind`.

local native, world = ...

local type, next, rawget, rawset, select, tostring = type, next, rawget, rawset, select, tostring
local getmetatable, setmetatable, error, pcall, xpcall = getmetatable, setmetatable, error, pcall, xpcall
local unpack, floor, collectgarbage = unpack, math.floor, collectgarbage
local create, resume = coroutine.create, coroutine.resume
local insert, remove, sort = table.insert, table.remove, table.sort
local visible, locate, bad_argument, compile = native.visible, native.locate, native.bad_argument, native.compile

local behind = {}
local readonly = 'Attempt to modify a readonly table'

local function refuse()
  error(readonly, 2)
end

-- What functions refuse comes without a position, as in Redis.
local function check_writable(t)
  if behind[t] then error(readonly, 0) end
end

local function check_table(t, position, name)
  if type(t) ~= 'table' then bad_argument(position, name, 'table expected, got ' .. native.kind(t)) end
end

local function front(table, metatable)
  local shown = metatable or {}
  shown.__index = shown.__index or table
  shown.__newindex = refuse
  local it = setmetatable({}, shown)
  behind[it] = table
  return it
end

-- Errors.

local function settle(ok, ...)
  if ok then return true, ... end
  return false, visible((...))
end

-- As in Redis, `pcall` gives the text of an error that is a table with one.
local function settle_text(ok, ...)
  if ok then return true, ... end
  local e = visible((...))
  if type(e) == 'table' then
    local text = e.err
    if type(text) == 'string' or type(text) == 'number' then return false, text end
  end
  return false, e
end

local safe = {}

function safe.pcall(...)
  if select('#', ...) == 0 then bad_argument(1, 'pcall', 'value expected') end
  return settle_text(pcall(...))
end

function safe.xpcall(f, ...)
  if select('#', ...) == 0 then bad_argument(2, 'xpcall', 'value expected') end
  local handler = ...
  return settle(xpcall(f, function(e)
    -- What ends the run goes through untouched: an error here would hide it.
    if native.is_ending() then return e end
    return handler(visible(e))
  end))
end

function safe.resume(co, ...)
  if type(co) ~= 'thread' then bad_argument(1, 'resume', 'coroutine expected') end
  return settle(resume(co, ...))
end

-- Tables.

function safe.getmetatable(...)
  if select('#', ...) == 0 then bad_argument(1, 'getmetatable', 'value expected') end
  local v = ...
  if behind[v] and v ~= world._G then return nil end
  return getmetatable(v)
end

function safe.setmetatable(t, ...)
  check_table(t, 1, 'setmetatable')
  local metatable = ...
  if select('#', ...) == 0 or metatable ~= nil and type(metatable) ~= 'table' then
    bad_argument(2, 'setmetatable', 'nil or table expected')
  end
  check_writable(t)
  if getmetatable(t) ~= nil and native.is_locked(t) then native.fail('cannot change a protected metatable') end
  return setmetatable(t, metatable)
end

function safe.next(t, k)
  check_table(t, 1, 'next')
  return next(behind[t] or t, k)
end

function safe.pairs(t)
  check_table(t, 1, 'pairs')
  if behind[t] then return safe.next, t, nil end
  return next, t, nil
end

function safe.rawget(t, k)
  check_table(t, 1, 'rawget')
  return rawget(behind[t] or t, k)
end

function safe.rawset(t, k, v)
  check_table(t, 1, 'rawset')
  check_writable(t)
  return rawset(t, k, v)
end

-- The longest shift that C code may do in one go: longer ones are done in Lua, which can be interrupted.
local SHORT = 100000
-- The largest index that C code can count up to.
local LARGEST = 2147483646
-- C code cannot put more values on its stack.
local MAX_RESULTS = 8000

function safe.insert(t, ...)
  check_table(t, 1, 'insert')
  check_writable(t)
  local n = select('#', ...)
  if n == 1 then
    local v = ...
    rawset(t, #t + 1, v)
    return
  end
  if n ~= 2 then native.fail("wrong number of arguments to 'insert'") end
  local position, v = ...
  if type(position) ~= 'number' then position = native.number(position, 2, 'insert') end
  local last = #t + 1
  if position >= last - SHORT and position <= LARGEST then return insert(t, position, v) end
  position = floor(position)
  for i = last, position + 1, -1 do rawset(t, i, rawget(t, i - 1)) end
  rawset(t, position, v)
end

function safe.remove(t, position)
  check_table(t, 1, 'remove')
  -- A front is empty, so nothing is removed.
  if behind[t] then return end
  if position == nil then return remove(t) end
  if type(position) ~= 'number' then position = native.number(position, 2, 'remove') end
  local last = #t
  if last - position <= SHORT or not (position >= 1) then return remove(t, position) end
  position = floor(position)
  local removed = rawget(t, position)
  for i = position, last - 1 do rawset(t, i, rawget(t, i + 1)) end
  rawset(t, last, nil)
  return removed
end

local function default_order(a, b) return a < b end

-- The order in which 5.1 compares and exchanges decides where equal elements end up, so this follows its quicksort step by step.
local function quicksort(t, low, high, before)
  while low < high do
    if before(t[high], t[low]) then t[low], t[high] = t[high], t[low] end
    if high - low == 1 then break end
    local middle = floor((low + high) / 2)
    if before(t[middle], t[low]) then
      t[middle], t[low] = t[low], t[middle]
    elseif before(t[high], t[middle]) then
      t[middle], t[high] = t[high], t[middle]
    end
    if high - low == 2 then break end
    local pivot = t[middle]
    t[middle], t[high - 1] = t[high - 1], t[middle]
    local i, j = low, high - 1
    while true do
      i = i + 1
      while before(t[i], pivot) do
        if i > high then native.fail('invalid order function for sorting') end
        i = i + 1
      end
      j = j - 1
      while before(pivot, t[j]) do
        if j < low then native.fail('invalid order function for sorting') end
        j = j - 1
      end
      if j < i then break end
      t[i], t[j] = t[j], t[i]
    end
    t[high - 1], t[i] = t[i], t[high - 1]
    if i - low < high - i then
      quicksort(t, low, i - 1, before)
      low = i + 1
    else
      quicksort(t, i + 1, high, before)
      high = i - 1
    end
  end
end

function safe.sort(t, before)
  check_table(t, 1, 'sort')
  if before ~= nil and type(before) ~= 'function' then
    bad_argument(2, 'sort', 'function expected, got ' .. native.kind(before))
  end
  if #t <= SHORT then return sort(t, before) end
  quicksort(t, 1, #t, before or default_order)
end

function safe.unpack(t, i, j)
  check_table(t, 1, 'unpack')
  if i == nil then i = 1 elseif type(i) ~= 'number' then i = native.number(i, 2, 'unpack') end
  if j == nil then j = #t elseif type(j) ~= 'number' then j = native.number(j, 3, 'unpack') end
  if i > j then return end
  -- As much as fits: each argument takes a place of its own.
  if i == 1 and j == #t and j < MAX_RESULTS then return unpack(t) end
  if j - i < MAX_RESULTS and i >= -LARGEST and j <= LARGEST then return unpack(t, i, j) end
  native.fail('too many results to unpack')
end

-- Code.

function safe.loadstring(text, name)
  return compile(text, name)
end

local function read_all(reader)
  local pieces = {}
  while true do
    local piece = reader()
    if piece == nil or piece == '' then return pieces end
    if type(piece) ~= 'string' and type(piece) ~= 'number' then error('reader function must return a string', 0) end
    pieces[#pieces + 1] = piece
  end
end

function safe.load(reader, name)
  if type(reader) ~= 'function' then
    bad_argument(1, 'load', 'function expected, got ' .. native.kind(reader))
  end
  local ok, pieces = settle(pcall(read_all, reader))
  if not ok then return nil, pieces end
  return compile(native.concat(pieces), name == nil and '=(load)' or name)
end

-- The collector belongs to all scripts, so one of them cannot stop or slow it.
local collects = { collect = true, count = true, step = true }
local ignored = { stop = true, restart = true, setpause = true, setstepmul = true }

function safe.collectgarbage(option)
  option = option == nil and 'collect' or option
  if collects[option] then return collectgarbage(option) end
  if ignored[option] then return 0 end
  if type(option) ~= 'string' then
    bad_argument(1, 'collectgarbage', 'string expected, got ' .. native.kind(option))
  end
  bad_argument(1, 'collectgarbage', "invalid option '" .. option .. "'")
end

-- Runs.

local function handler(e)
  locate()
  return e
end

return safe, front, handler
