-- The kind `gcra`: `core::limits::gcra`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          capacity, units, period
-- State         g <at> <parts> <period>: the level then, `period` parts to a unit
--
-- Invariant: the level is never more than `capacity` units; `units` parts are emitted in each microsecond.

kinds.g = {}

function kinds.g.rule(numeric)
  local r = { most = numeric(), units = numeric(), period = numeric() }
  r.memory = div_ceil(r.most * r.period, r.units)
  return r
end

function kinds.g.load(r, value)
  local at, parts, period = match(value, '^g (%d+) (%d+) (%d+)$')
  at, parts, period = number(at), number(parts), number(period)
  if not (at and parts and period) or period == 0 then return nil end
  return { at = min(at, now), parts = parts, period = period }, at > now
end

function kinds.g.save(s) return format('g %.0f %.0f %.0f', s.at, s.parts, s.period) end

-- The level at that time, in parts.
local function level(r, s, at)
  if not s then return 0 end
  local parts = min(s.parts, r.most * r.period)
  if s.period ~= r.period then
    -- Taken under another rate: whole units, rounded up.
    parts = min(div_ceil(s.parts, s.period), r.most) * r.period
  end
  local since = max(at - s.at, 0)
  if since >= r.memory then return 0 end
  return max(parts - since * r.units, 0)
end

function kinds.g.fit(r, s, cost)
  local over = level(r, s, now) - (r.most - cost) * r.period
  return over <= 0 and now or now + div_ceil(over, r.units)
end

function kinds.g.take(r, s, cost)
  return { at = now, parts = level(r, s, now) + cost * r.period, period = r.period }
end

function kinds.g.untouched(r) return { at = now, parts = 0, period = r.period } end

-- Exact if nothing was taken since. Otherwise units emitted since stay spent.
function kinds.g.refund(r, s, at, cost, passed)
  if s.period ~= r.period or at > s.at then return nil end
  local emitted = s.at == at and 0 or min(passed, r.memory) * r.units
  local parts = max(s.parts - max(cost * r.period - emitted, 0), 0)
  return parts < s.parts and { at = s.at, parts = parts, period = s.period } or nil
end

function kinds.g.room(r, s)
  local parts = level(r, s, now)
  return div(r.most * r.period - parts, r.period), now + div_ceil(parts, r.units)
end

function kinds.g.spacing(r, cost) return div_ceil(cost * r.period, r.units) end
function kinds.g.expires_at(r, s) return s.at + div_ceil(level(r, s, s.at), r.units) end
function kinds.g.span(r) return r.memory end
