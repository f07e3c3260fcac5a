-- The kind `sliding_log`: `core::limits::sliding_log`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, period
-- State         l <last> <total> <time> <units> <later> <units> …: the time of the last entry, all units; then
--               the entries, oldest first, the first time in full and then only how much later. Only
--               the entries that a decision depends on are read; the others stay text.
--
-- Invariant: any period holds at most `limit` units.

kinds.l = {}

function kinds.l.rule(numeric) return { most = numeric(), period = numeric() } end

-- The entry that follows in a text from there on, and where it ends.
local function entry(value, from)
  local later, units, behind = match(value, '^ (%d+) (%d+)()', from)
  return number(later), number(units), behind
end

local function single(total) return { last = now, total = total, time = now, units = total, rest = '', from = 1 } end

-- What counts now: `total` units; the oldest `units` at `time`, the others in `rest`, from there on.
function kinds.l.load(r, value)
  local last, total, from = match(value, '^l (%d+) (%d+)()')
  last, total = number(last), number(total)
  if not (last and total) then return nil end
  -- The clock went back: all of it counts as taken now.
  if last > now then return single(total), true end
  if last + r.period <= now then return { last = 0, total = 0 }, false end
  local time, units, behind = entry(value, from)
  while time and time + r.period <= now do
    total = total - units
    local later
    later, units, behind = entry(value, behind)
    time = later and time + later
  end
  if not time or total < units then return nil end
  return { last = last, total = total, time = time, units = units, rest = value, from = behind }, false
end

function kinds.l.save(s)
  return format('l %.0f %.0f %.0f %.0f', s.last, s.total, s.time, s.units) .. sub(s.rest, s.from)
end

function kinds.l.fit(r, s, cost)
  local over = (s and s.total or 0) + cost - r.most
  if over <= 0 then return now end
  -- The oldest go first.
  local time, units, behind = s.time, s.units, s.from
  while time do
    over = over - units
    if over <= 0 then return time + r.period end
    local later
    later, units, behind = entry(s.rest, behind)
    time = later and time + later
  end
  return now + r.period
end

function kinds.l.take(r, s, cost)
  if not s or s.total == 0 then return single(cost) end
  s.rest = s.rest .. format(' %.0f %.0f', now - s.last, cost)
  s.last, s.total = now, s.total + cost
  return s
end

function kinds.l.refund(r, s, at, cost)
  if s.total == 0 then return nil end
  local all, time = format(' %.0f %.0f', s.time, s.units) .. sub(s.rest, s.from), 0
  for from, later, units, behind in gmatch(all, '() (%d+) (%d+)()') do
    time = time + later
    if time == at and tonumber(units) >= cost then
      local left = ''
      if tonumber(units) > cost then
        left = format(' %s %.0f', later, units - cost)
      else
        local next_later, next_units, after = entry(all, behind)
        if next_later then
          left, behind = format(' %.0f %.0f', later + next_later, next_units), after
        else
          s.last = time - later
        end
      end
      s.total, s.rest = s.total - cost, sub(all, 1, from - 1) .. left .. sub(all, behind)
      s.time, s.units, s.from = entry(s.rest, 1)
      if not s.time then s.total = 0 end
      return s
    end
  end
end

function kinds.l.room(r, s)
  local total = s and s.total or 0
  return max(r.most - total, 0), total > 0 and s.last + r.period or now
end

function kinds.l.spacing(r, cost) return div_ceil(cost * r.period, r.most) end
function kinds.l.forgotten_at(r, since) return since + r.period end
function kinds.l.dies_at(r, s) return s.total > 0 and s.last + r.period or 0 end
