-- Tells how a budget stands: `core::budget::admit`, `Mode::Peek`. Behind budget/*.lua.
--
-- KEYS     see budget/common.lua: one rule, one budget
-- ARGV     1…  see budget/common.lua, then: cost
-- Reply    {now, epoch, limit, remaining, retry_after, reset_after, state}: integers; `epoch` that of
--          the state; `state` as text, empty if there is none
--
-- Invariant: writes nothing.

local era = read_era()
if era and (era.run ~= run or known > era.epoch) then
  -- Whoever asks next begins another one, and knows nothing of this.
  era = { began = 'l', epoch = era.epoch + 1, since = now, run = run }
end
local cell = load(era)[1]
local cost = numeric()
local rule, state = cell.rule, cell.state
local remaining, reset = standing(cell)
local retry, blind = 0, not state and max(rule.blind - now, 0) or 0
if cost <= rule.most then retry = earliest(cell, now + blind, cost) - now end
return { now, rule.mark or 0, rule.most, remaining, retry, reset,
  state and written(cell) or '' }
