-- Gives calls and claims under way another lease: `core::limits::concurrency` and `core::limits::once`. Runs after
-- limits/common.lua and the files of the kinds.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: how many calls; for each: cell, ticket
-- Reply    the places (from 0) of those that are not under way any more
--
-- Invariant: a call that has ended by itself is not renewed, because another may have its place.

enter()
declare()
local gone = {}
for i = 1, numeric() do
  local cell, ticket = cells[numeric()], argument()
  look(cell)
  if cell.taken and cell.kind.renew and cell.kind.renew(cell.rule, cell.taken, ticket) then
    cell.changed = true
  else
    gone[#gone + 1] = i - 1
  end
end
save()
return gone
