-- Takes back units that certainly were not used: `core::budget::limit::Limit::undo`. Behind
-- budget/*.lua.
--
-- KEYS     see budget/common.lua
-- ARGV     1…  see budget/common.lua, then: how many refunds; for each: cell, when it was booked, in
--          which epoch, cost, ticket
-- Reply    how many of them were taken back
--
-- What was booked under other terms than those in force stays spent.
--
-- Invariant: what is taken back cannot let anybody exceed the limit; whatever is in doubt stays
-- spent. The caller must not repeat a call that may have run.

local era = read_era()
if era and era.run ~= run then era = nil end
local cells = load(era)
local taken = 0
for _ = 1, numeric() do
  local cell, booked, epoch = cells[numeric()], numeric(), numeric()
  local cost, ticket = numeric(), argument()
  local rule = cell.rule
  if era and rule.settled and epoch == rule.mark and cell.state then
    local state = cell.kind.undo(cell.rule, cell.state, booked, cost, ticket, now)
    if state then
      cell.state, cell.changed = state, true
      taken = taken + 1
    end
  end
end
save(cells)
return taken
