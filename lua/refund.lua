-- Takes back units that certainly were not used: `core::budget::limit::Limit::undo`. Behind
-- budget/*.lua.
--
-- KEYS     see budget/common.lua
-- ARGV     1…  see budget/common.lua, then: how many refunds; for each: cell, when it was booked, in
--          which epoch, how (0: granted at once; 1: granted at its place, which it keeps; 2: only
--          booked), cost, ticket
-- Reply    how many of them were taken back
--
-- What was booked under other terms than those in force stays spent.
--
-- Invariant: what is taken back cannot let anybody exceed the limit; whatever is in doubt stays
-- spent. The caller must not repeat a call that may have run.

local era = read_era()
if era and era.run ~= run then era = nil end
local cells = load(era)

local NOW, AT_PLACE = 0, 1

local function undone(cell, how, at, cost, ticket)
  local kind, rule = cell.kind, cell.rule
  local function undo(state)
    return state and kind.undo(rule, copy(state), at, cost, ticket, now) or nil
  end
  local function undo_plan(plan)
    local other = plans.undo(rule, plan, at, cost)
    return other and { state = other, gaps = NONE, planned = true } or nil
  end
  -- A line without the units: they are part of what is before the first gap that was not over then, or
  -- of the last state.
  local function undo_line(line)
    local later = line.later
    for i = 1, later and #later.times or 0 do
      if later.times[i] == at then
        -- Granted for a moment ahead: others may need it to stay.
        if later.counts[i] < cost then return nil end
        local rest = plans.undo({ plan = { grain = 0 } }, later, at, cost)
        local other = { state = line.state, gaps = NONE, later = #rest.times > 0 and rest or nil }
        return holds(cell, other) and other or nil
      end
    end
    local gaps = {}
    for i = 1, #line.gaps do gaps[i] = line.gaps[i] end
    for i = 1, #gaps do
      if gaps[i].to > at then
        local before = undo(gaps[i].before)
        gaps[i] = { before = before, to = gaps[i].to }
        return before and { state = line.state, gaps = gaps } or nil
      end
    end
    local state = undo(line.state)
    local other = state and { state = state, gaps = gaps, later = later }
    return other and holds(cell, other) and other or nil
  end
  if not cell.ahead then
    -- Calls are never booked ahead.
    if how == NOW or kind.letter == 'c' then
      local state = kind.undo(rule, cell.state, at, cost, ticket, now)
      if state then cell.state, cell.changed = state, true end
      return state ~= nil
    end
    -- What is only booked cannot be told from what others used.
    local state = how == AT_PLACE and undo(cell.state)
    if state then part(cell, booked(cell), { state = state, gaps = NONE }, 0) end
    return state and true or false
  end
  local all, taken
  if how ~= AT_PLACE then
    if cell.planned then all = undo_plan(cell.state) else all = undo_line(booked(cell)) end
  end
  if how == NOW or how == AT_PLACE then taken = undo_line(used(cell)) end
  if not all and not taken then return false end
  part(cell, all or booked(cell), taken or cell.used, cell.granted)
  return true
end

local given = 0
for _ = 1, numeric() do
  local cell, as_of, epoch = cells[numeric()], numeric(), numeric()
  local how, cost, ticket = numeric(), numeric(), argument()
  local rule = cell.rule
  if era and rule.settled and epoch == rule.mark and cell.state
    and undone(cell, how, as_of, cost, ticket)
  then
    given = given + 1
  end
end
save(cells)
return given
