-- Writes down what answers said of keys: `core::limits::admission::tighten`. Behind limits/*.lua.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: how many; for each: cell, the units that the downstream says are
--          left of it, and for how long (microseconds)
-- Reply    those that were not done, by their place from 0: the store has another policy than the asker knows
--
-- Invariant: it only tightens. Until that time no more than these units pass; of two that overlap the smaller
-- one binds. Doing it twice changes nothing but its end.

enter()
declare()
local undone = {}
for i = 1, numeric() do
  local cell, left, length = cells[numeric()], numeric(), numeric()
  gate(cell.limit)
  if cell.limit.outdated then
    undone[#undone + 1] = i - 1
  else
    look(cell)
    if not cell.taken and cell.kind.untouched then cell.taken = cell.kind.untouched(cell.rule) end
    if cell.taken and cell.kind.untouched and not (cell.left and cell.left < left) then
      cell.left, cell.left_until = left, max(cell.left_until or 0, now + min(length, LEFT_MAX))
      cell.changed = true
    end
  end
end
save()
return undone
