-- The kind `gcra`: `core::budget::gcra`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit (burst and one), units, period
-- State         g<epoch> <tat> <rem>: the theoretical arrival time, tat + rem / units
--
-- Invariant: the exact arrival time grows by cost * period / units with every booking.

kinds.g = { letter = 'g', width = 3 }

function kinds.g.rule(numeric)
  local r = { limit = numeric(), units = numeric(), period = numeric() }
  r.most = r.limit
  r.memory = div_ceil(r.limit * r.period, r.units)
  return r
end

function kinds.g.load(value, from)
  local tat, rem = match(value, '^(%d+) (%d+)$', from)
  tat, rem = time(tat), number(rem)
  return tat and rem and { tat = tat, rem = rem } or nil
end

function kinds.g.save(s) return format('%.0f %.0f', s.tat, s.rem) end

-- How far apart units are at the limit's rate.
function kinds.g.mean(r) return div(r.period, r.units) end

function kinds.g.forgotten_at(r, since) return since + r.memory end

-- A remainder that another rate left is rounded up.
local function arrival(r, s)
  if s.rem < r.units then return s.tat, s.rem end
  return s.tat + 1, 0
end

function kinds.g.earliest(r, s, from, cost)
  if not s then return from, true end
  local tat, rem = arrival(r, s)
  local early = (r.limit - cost) * r.period
  if rem > early % r.units then tat = tat + 1 end
  return max(tat - div(early, r.units), from), true
end

-- The arrival time with units at `at`, and its remainder.
local function with_units(r, s, at, cost)
  local tat, rem = at, 0
  if s then
    local t, m = arrival(r, s)
    -- Less than a microsecond before `at`: no time was left unused.
    if t + (m > 0 and 1 or 0) >= at then tat, rem = t, m end
  end
  local taken = rem + cost * r.period
  return tat + div(taken, r.units), taken % r.units
end

function kinds.g.book(r, s, at, cost)
  local tat, rem = with_units(r, s, at, cost)
  return { tat = tat, rem = rem }
end

-- When it is whole again after that.
function kinds.g.after(r, s, at, cost)
  local tat, rem = with_units(r, s, at, cost)
  return tat + (rem > 0 and 1 or 0)
end

function kinds.g.usage(r, s, now)
  local ahead, rem = 0, 0
  if s then
    local t, m = arrival(r, s)
    if t >= now then ahead, rem = t - now, m end
  end
  local taken = r.limit
  if ahead < r.memory then taken = div_ceil(ahead * r.units + rem, r.period) end
  return max(r.limit - taken, 0), ahead + (rem > 0 and 1 or 0)
end

-- What was owed when `old` ended, in emission intervals of `r`; places ahead are gone.
function kinds.g.amend(r, old, s, since)
  local ahead = max(s.tat + (s.rem > 0 and 1 or 0) - since, 0)
  local owed = min(div_ceil(min(ahead, old.memory) * old.units, old.period), r.limit)
  return { tat = since + div_ceil(owed * r.period, r.units), rem = 0 }
end

function kinds.g.has_gaps(r) return true end

-- Nothing is left at `at`.
function kinds.g.spent(r, at) return { tat = at + r.memory, rem = 0 } end

function kinds.g.dies_at(r, s) return s.tat + (s.rem > 0 and 1 or 0) end

-- Only what was booked last, when nothing else was owed.
function kinds.g.undo(r, s, at, cost)
  local tat, rem = arrival(r, s)
  local taken = cost * r.period
  if taken >= EXACT then return nil end
  local part = taken % r.units
  local up = rem < part and 1 or 0
  tat, rem = tat - (div(taken, r.units) + up), rem + up * r.units - part
  if (tat == at and rem == 0) or (tat + 1 == at and rem > 0) then
    return { tat = tat, rem = rem }
  end
end
