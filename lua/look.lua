-- Returns what one key of a limit has left. Runs after limits/common.lua and the files of the kinds.
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
local remaining, reset_at = room(cell)
local fits = fit(cell, 1)
local opens_at = cell.limit.opens_at
return { now, cell.rule.most, remaining, reset_at, fits == FULL and 1 or fits > now and fits or 0,
  opens_at > now and opens_at or 0, cell.limit.why, cell.taken and written(cell) or '' }
