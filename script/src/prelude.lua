-- Our part of a script's world that is best said in Lua: what must call scripts' functions, and what stands between a script and the
-- tables that all scripts share. No name of this chunk is global, so nothing here can be reached but what it returns.
--
-- A shared table is shown as a front: an empty table whose reads go to the table behind it and whose writes are refused. Functions
-- that read or write tables without metamethods (`lua_overrides.rs`) know the fronts by `behind`.

local native, behind = ...

local setmetatable, error, pcall, type = setmetatable, error, pcall, type
local floor, collectgarbage = math.floor, collectgarbage
local visible, locate, bad_argument, compile = native.visible, native.locate, native.bad_argument, native.compile

local function front(table, metatable)
  local shown = metatable or {}
  shown.__index = shown.__index or table
  shown.__newindex = native.refuse
  local it = setmetatable({}, shown)
  behind[it] = table
  return it
end

local safe = {}

-- Tables that are long.

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
  quicksort(t, 1, #t, before or default_order)
end

-- Code.

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
  local ok, pieces = pcall(read_all, reader)
  if not ok then return nil, visible(pieces) end
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
