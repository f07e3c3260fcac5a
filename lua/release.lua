-- Ends calls under way: `core::budget::concurrency`. Behind budget/*.lua.
--
-- KEYS     see budget/common.lua
-- ARGV     1…  see budget/common.lua, then: how many calls; for each: cell, ticket
-- Reply    how many of them were under way
--
-- Invariant: only the named calls end. Ending one twice changes nothing.

local era = read_era()
if era and era.run ~= run then era = nil end
local cells = load(era)
local ended = 0
for _ = 1, numeric() do
  local cell, ticket = cells[numeric()], argument()
  local state = cell.state and cell.kind.release and cell.kind.release(cell.state, ticket)
  if state then
    cell.state, cell.changed = state, true
    ended = ended + 1
  end
end
save(cells)
return ended
