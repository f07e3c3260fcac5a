-- Writes what answers reported about keys. Runs after limits/common.lua and the files of the kinds.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: how many; for each: cell, what, and three numbers:
--            0  the units that the downstream says are left, for how long (microseconds), 0:
--               `core::limits::cell::tighten`
--            1  units that a call did not use, when they were granted, and how long ago they were asked for by
--               the asker's clock: `core::limits::cell::refund`
--            2  units that a call used beyond its cost, 0, 0: `core::limits::owed::add_debt`
--            3  0, 0, 0: an operator forgives what is owed and what was said to be left:
--               `core::limits::owed::forgive`
-- Reply    those that were not done, by their place from 0: the store has another policy than the asker knows
--
-- Invariant: of two overlapping statements about what is left the smaller one counts, which can only tighten.
-- Units that are taken back cannot let anything exceed the limit. Units used beyond the limit are owed until
-- the limit has paid them, or until an operator forgives them. The caller must not repeat a statement that takes units
-- back; repeating the others can only tighten the limit.

local LEFT, LESS, MORE = 0, 1, 2

local function tighten(cell, left, length)
  if not cell.taken then cell.taken = cell.kind.untouched(cell.rule) end
  if cell.left and cell.left < left then return end
  cell.left, cell.left_until = left, max(cell.left_until or 0, now + min(length, LEFT_MAX))
  cell.changed = true
end

-- A window of the first call begins with a call, not with the debts of earlier ones.
local function room_for_debts(cell)
  if cell.kind.is_open and not cell.kind.is_open(cell.rule, cell.taken) then return 0 end
  return (cell.kind.room(cell.rule, cell.taken))
end

local function charge(cell, units)
  units = owed(cell) + min(units, UNITS - 1)
  if not cell.taken then cell.taken = cell.kind.untouched(cell.rule) end
  local fits = min(units, room_for_debts(cell))
  if fits > 0 then cell.taken = cell.kind.take(cell.rule, cell.taken, fits, '0') end
  local rest = counted(cell, units - fits)
  cell.owed, cell.changed = rest > 0 and rest or nil, true
  cell.owed_from = max(back_at(cell), now)
end

-- The next return lies behind the debt, and goes back with it.
local function forgive(cell)
  if not cell.taken then return end
  cell.owed, cell.left, cell.left_until, cell.next_return, cell.changed = nil, nil, nil, 0, true
end

enter()
declare()
local undone = {}
for i = 1, numeric() do
  local cell, what, units, time, age = cells[numeric()], numeric(), numeric(), numeric(), numeric()
  gate(cell.limit)
  if cell.limit.outdated then
    undone[#undone + 1] = i - 1
  elseif what == LESS then
    take_back(cell, time, units, age)
  else
    look(cell)
    -- A kind without it counts calls in flight: no downstream reports them.
    if not cell.kind.untouched then
      -- Nothing to write.
    elseif what == LEFT then
      tighten(cell, units, time)
    elseif what == MORE then
      charge(cell, units)
    else
      forgive(cell)
    end
  end
end
save()
return undone
