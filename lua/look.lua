-- Returns what one key of a limit has left. Behind limits/*.lua.
--
-- KEYS     see limits/common.lua: one limit, one state
-- ARGV     see limits/common.lua
-- Reply    {now, most, remaining, reset_at, fits, closed_until, why, state}: integers as in admit.lua
--          (closed_until 0: open); `state` as text, empty if there is none
--
-- Invariant: writes nothing.

generation = entered()
declare()
local cell = cells[1]
gate(cell.limit)
look(cell)
local kind, rule, taken = cell.kind, cell.rule, cell.taken
local remaining, reset_at = kind.room(rule, taken)
local fit = kind.fit(rule, taken, 1)
local untl = cell.limit.untl
return { now, rule.most, remaining, reset_at, fit == FULL and 1 or fit > now and fit or 0,
  untl > now and untl or 0, cell.limit.why, taken and written(cell) or '' }
