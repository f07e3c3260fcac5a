-- Takes back units that certainly were not used: `core::limits::cell::refund`. Runs after
-- limits/common.lua and the files of the kinds.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: how many refunds; for each: cell, when it was granted, cost, how long ago
--          it was asked for by the asker's clock
-- Reply    how many of them were taken back
--
-- Invariant: units that are taken back cannot let anything exceed the limit; units in doubt stay spent,
-- such as those granted under another policy or before a loss. The caller must not repeat a call that may
-- have run.

enter()
declare()
local given = 0
for _ = 1, numeric() do
  local cell, granted_at, cost, age = cells[numeric()], numeric(), numeric(), numeric()
  gate(cell.limit)
  if take_back(cell, granted_at, cost, age) then given = given + 1 end
end
save()
return given
