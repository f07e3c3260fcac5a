-- Takes back units that certainly were not used: `core::limits::admission::refund`. Behind limits/*.lua.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: how many refunds; for each: cell, when it was granted, cost
-- Reply    how many of them were taken back
--
-- Invariant: what is taken back cannot let anything exceed the limit; what is in doubt stays spent, as what
-- was granted under another policy or before a loss. The caller must not repeat a call that may have run.

-- `core::policy::PolicyVersion::since`: first versions are milliseconds.
local FIRST_END = 100000000000000

enter()
declare()
local given = 0
for _ = 1, numeric() do
  local cell, granted_at, cost = cells[numeric()], numeric(), numeric()
  local limit = cell.limit
  gate(limit)
  local since = limit.version < FIRST_END and limit.version * 1000 or limit.version
  if not limit.outdated and granted_at >= max(since, generation.lost_at) then
    look(cell)
    local taken = cell.taken and cell.kind.refund(cell.rule, cell.taken, granted_at, cost)
    if taken then
      cell.taken, cell.changed = taken, true
      given = given + 1
    end
  end
end
save()
return given
