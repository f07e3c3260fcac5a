-- Gives calls under way another lease: `core::budget::concurrency`. Behind budget/*.lua.
--
-- KEYS     see budget/common.lua
-- ARGV     1…  see budget/common.lua, then: how many calls; for each: cell, ticket
-- Reply    the places (from 0) of those that are not under way any more
--
-- Invariant: a call that has ended by itself does not come back, for somebody else may have its place.

local era = read_era()
if era and era.run ~= run then era = nil end
local cells = load(era)
local gone = {}
for i = 1, numeric() do
  local cell, ticket = cells[numeric()], argument()
  local state = cell.state and cell.kind.renew and cell.kind.renew(cell.rule, cell.state, ticket)
  if state then
    cell.state, cell.changed = state, true
  else
    gone[#gone + 1] = i - 1
  end
end
save(cells)
return gone
