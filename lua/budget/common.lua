-- What every script about budgets begins with: numbers, the era, the rules and the cells. Behind it
-- come the kinds that the call is about, and what it does.
--
-- KEYS[1]  the record of the era (`core::budget::epoch`), prefix:{budgets}:epoch
-- KEYS[2…] the budgets of this call, in the order of the rules, each once: cell 1, 2, …
-- ARGV     1 run      the server's run_id, as INFO told this connection
--          2 known    the epoch that the asker knows, 0 if none
--          3 stepped  1: the asker saw the clock step since then
--          4 rules    how many; then for each: kind (a letter), closed (1: wait out a loss),
--                     headroom, cells (how many of the keys), and the numbers of its kind
--          then what the script itself wants
-- Reply    that of the script
--
-- Invariant: a state counts only in the epoch and for the kind that it was written in. Every key
-- is written together with its time to live, rounded up. All numbers are integers below 2^53, so
-- doubles are exact; tostring would cut digits, %.0f does not. TIME is read once.

-- Globals are slow to look up, and a batch does so thousands of times.
local KEYS, ARGV, call, tonumber = KEYS, ARGV, redis.call, tonumber
local format, match, gmatch = string.format, string.match, string.gmatch
local find, sub = string.find, string.sub
local max, min = math.max, math.min

local EXACT, UNITS, ABSURD = 2 ^ 53, 2 ^ 32, 2 ^ 50
local DOUBT, STEP = 2000000, 100000
-- Longer than anything that is kept or booked ahead.
local ERA_KEPT = 1100 * 24 * 3600 * 1000

local function div(x, y) return (x - x % y) / y end
local function div_ceil(x, y) return div(x + y - 1, y) end
local function text(x) return format('%.0f', x) end

-- Digits (that a pattern found), if they are exact.
local function number(digits)
  local value = tonumber(digits)
  return value and value < EXACT and value or nil
end

local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- Digits, if they can be one of our times.
local function time(digits)
  local value = tonumber(digits)
  return value and value <= now + ABSURD and value or nil
end

local at = 0
local function argument()
  at = at + 1
  return ARGV[at]
end
local function numeric()
  at = at + 1
  return tonumber(ARGV[at])
end

local run, known, stepped = argument(), numeric(), argument() == '1'
local kinds = {}

local function read_era()
  local record = call('GET', KEYS[1])
  if not record then return nil end
  local began, epoch, since, by = match(record, '^([fl])(%d+) (%d+) ([^ ]*)$')
  epoch, since = number(epoch), number(since)
  if not (epoch and since) then return nil end
  return { began = began, epoch = epoch, since = since, run = by }
end

-- The era of this question (`core::budget::epoch::enter`).
local function enter()
  local era = read_era()
  local began = 'l'
  if not era then
    if known == 0 then began = 'f' end
  elseif era.run == run and known <= era.epoch
    and not (era.began == 'f' and known > 0 and known < era.epoch)
    and not (stepped and known == era.epoch)
    and era.since <= now + STEP then
    return era
  end
  local last = max(era and era.epoch or 0, known)
  era = { began = began, epoch = max(last + 1, div(now, 1000)), since = now, run = run }
  local record = began .. text(era.epoch) .. ' ' .. text(now) .. ' ' .. run
  call('SET', KEYS[1], record, 'PX', text(ERA_KEPT))
  return era
end

-- The rules, and the cells with what is known of them in `era` (none: nothing is known).
local function load(era)
  local cells, keys = {}, 0
  for _ = 1, numeric() do
    local kind = kinds[argument()]
    local closed, headroom, count = argument() == '1', numeric(), numeric()
    local rule = kind.rule(numeric)
    rule.headroom, rule.blind = headroom, 0
    rule.usable = headroom - math.floor(headroom / 8)
    rule.start = kind.letter .. (era and text(era.epoch) or '') .. ' '
    if closed and era then
      rule.blind = era.began == 'f' and era.since + DOUBT or kind.forgotten_at(rule, era.since)
    end
    for _ = 1, count do
      keys = keys + 1
      cells[keys] = { rule = rule, kind = kind, key = KEYS[keys + 1] }
    end
  end
  if not era then return cells end
  -- In parts: Lua's stack ends at 8,000.
  for first = 1, keys, 1000 do
    local last = math.min(first + 999, keys)
    local found = call('MGET', unpack(KEYS, first + 1, last + 1))
    for i = first, last do
      local value = found[i - first + 1]
      if value then
        local cell = cells[i]
        local start = cell.rule.start
        if sub(value, 1, #start) == start then cell.state = cell.kind.load(value, #start + 1) end
      end
    end
  end
  return cells
end

-- Writes down what changed. A state that says nothing any more goes.
local function save(cells)
  for i = 1, #cells do
    local cell = cells[i]
    if cell.changed then
      local kind, rule = cell.kind, cell.rule
      local left = kind.dies_at(rule, cell.state) - now
      if left > 0 then
        call('SET', cell.key, rule.start .. kind.save(cell.state),
          'PX', text(div_ceil(left, 1000) + 1))
      else
        call('DEL', cell.key)
      end
    end
  end
end
