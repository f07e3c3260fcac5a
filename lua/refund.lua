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

local function undone(cell, how, booked, cost, ticket)
  local kind, rule = cell.kind, cell.rule
  local function undo(state)
    return state and kind.undo(rule, state, booked, cost, ticket, now) or nil
  end
  if not cell.ahead then
    -- Calls are never booked ahead.
    if how == NOW or kind.letter == 'c' then
      local state = undo(cell.state)
      if state then cell.state, cell.changed = state, true end
      return state ~= nil
    end
    -- What is only booked cannot be told from what others used.
    local state = how == AT_PLACE and undo(copy(cell.state))
    if state then part(cell, cell.state, state) end
    return state and true or false
  end
  local of_booked, of_used
  if how ~= AT_PLACE then of_booked = undo(cell.state) end
  if how == NOW or how == AT_PLACE then of_used = undo(cell.used) end
  if not of_booked and not of_used then return false end
  part(cell, of_booked or cell.state, of_used or cell.used)
  return true
end

local taken = 0
for _ = 1, numeric() do
  local cell, booked, epoch = cells[numeric()], numeric(), numeric()
  local how, cost, ticket = numeric(), numeric(), argument()
  local rule = cell.rule
  if era and rule.settled and epoch == rule.mark and cell.state
    and undone(cell, how, booked, cost, ticket)
  then
    taken = taken + 1
  end
end
save(cells)
return taken
