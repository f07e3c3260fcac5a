-- Notes that calls were made: `core::budget::limit::Limit::made`. Behind budget/*.lua.
--
-- KEYS     see budget/common.lua
-- ARGV     1…  see budget/common.lua, then: how many calls; for each: cell, as of when it was granted, in
--          which epoch
-- Reply    how many of them told anything
--
-- What was granted under other terms than those in force tells nothing.
--
-- Invariant: takes nothing and gives nothing back. Who is told of a call that was not made would let others
-- exceed the limit; a call that is not told keeps a window closed for longer, and no more.

local era = read_era()
if era and era.run ~= run then era = nil end
local cells = load(era)

local function noted(cell, at)
  local taken = used(cell)
  local state = taken.state and cell.kind.made and cell.kind.made(cell.rule, taken.state, at)
  if not state then return false end
  if cell.ahead then
    part(cell, booked(cell), { state = state, gaps = taken.gaps, later = taken.later }, cell.granted)
  else
    cell.state, cell.changed = state, true
  end
  return true
end

local told = 0
for _ = 1, numeric() do
  local cell, as_of, epoch = cells[numeric()], numeric(), numeric()
  local rule = cell.rule
  if era and rule.settled and epoch == rule.mark and cell.state and noted(cell, as_of) then
    told = told + 1
  end
end
save(cells)
return told
