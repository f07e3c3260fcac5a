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

-- More than the longest text of an entry.
local ENTRY = 32

function kinds.l.rule(numeric) return { most = numeric(), period = numeric() } end

-- The entry that follows in a text from there on, and where it ends.
local function entry(value, from)
  local later, units, behind = match(value, '^ (%d+) (%d+)()', from)
  return number(later), number(units), behind
end

local function single(total) return { last = now, total = total, time = now, units = total, rest = '', from = 1 } end

-- The entries that count now: `total` units; the oldest `units` at `time`, the others in `rest`, from `from`
-- on.
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

-- Makes text of what was unpacked.
local function pack(s)
  if not s.newer then return end
  local parts, time = { sub(s.all, 1, s.cut) }, s.back
  for i = #s.newer, 1, -1 do
    local one = s.newer[i]
    if one.units > 0 then
      parts[#parts + 1] = format(' %.0f %.0f', one.time - time, one.units)
      time = one.time
    end
  end
  s.last, s.rest, s.newer = time, table.concat(parts), nil
  s.time, s.units, s.from = entry(s.rest, 1)
end

function kinds.l.take(r, s, cost)
  if s then pack(s) end
  if not s or s.total == 0 then return single(cost) end
  s.rest = s.rest .. format(' %.0f %.0f', now - s.last, cost)
  s.last, s.total = now, s.total + cost
  return s
end

function kinds.l.untouched() return { last = 0, total = 0 } end

-- Unpacks the entries from the newest back to `at`: a batch of refunds is one pass, and what is refunded is
-- seldom old. `newer`: those entries, the newest first; `named`: the oldest of each time, `same` the next of
-- that time; `all`, up to `cut`: the text of the others, the newest of which is of the time `back`.
local function unpack_to(s, at)
  if not s.newer then
    s.newer, s.named, s.back = {}, {}, s.last
    s.all = format(' %.0f %.0f', s.time, s.units) .. sub(s.rest, s.from)
    s.cut = #s.all
  end
  while s.cut > 0 and s.back >= at do
    local later, units = match(sub(s.all, max(s.cut - ENTRY, 1), s.cut), ' (%d+) (%d+)$')
    if not later then return end
    s.cut = s.cut - #later - #units - 2
    local one = { time = s.back, units = tonumber(units), same = s.named[s.back] }
    s.newer[#s.newer + 1], s.named[s.back] = one, one
    s.back = s.back - tonumber(later)
  end
end

function kinds.l.save(s)
  pack(s)
  -- No entry counts: the state is kept for the next return, the downstream's quota or the debt behind it.
  if s.total == 0 then return 'l 0 0' end
  return format('l %.0f %.0f %.0f %.0f', s.last, s.total, s.time, s.units) .. sub(s.rest, s.from)
end

-- After this, a state allows only more refunds, takes and the write.
function kinds.l.refund(r, s, at, cost)
  if s.total == 0 or at < s.time then return nil end
  unpack_to(s, at)
  local before, one = nil, s.named[at]
  while one and one.units < cost do before, one = one, one.same end
  if not one then return nil end
  one.units, s.total = one.units - cost, s.total - cost
  if one.units > 0 then return s end
  if before then before.same = one.same else s.named[at] = one.same end
  return s
end

function kinds.l.room(r, s)
  local total = s and s.total or 0
  return max(r.most - total, 0), total > 0 and s.last + r.period or now
end

function kinds.l.spacing(r, cost) return div_ceil(cost * r.period, r.most) end
function kinds.l.expires_at(r, s)
  pack(s)
  return s.total > 0 and s.last + r.period or 0
end
function kinds.l.span(r) return r.period end
