-- The kind `fixed_window`: `core::limits::fixed_window`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, frame (0: windows of the first call, 1: of the clock, 2: of a calendar), length, guard,
--               how many boundaries of the calendar follow, and these
-- State         w <start> <last> <used> [<before> <until>]: units of the window that began at `start`, the
--               last at `last`; and of the one before, which count until then
--
-- Invariant: of the downstream's own windows, whichever call began them, none holds more than `limit`.

kinds.w = {}

local FIRST_CALL, CALENDAR = 0, 2
-- When to ask again if not even the present window is known, and how long a state lives then.
local UNKNOWN, UNKNOWN_KEPT = 1000000, 366 * 24 * 3600 * 1000000

function kinds.w.rule(numeric)
  local r = { most = numeric(), frame = numeric(), length = numeric(), guard = numeric(), bounds = {} }
  for i = 1, numeric() do r.bounds[i] = numeric() end
  return r
end

function kinds.w.load(r, value)
  local start, last, used, rest = match(value, '^w (%d+) (%d+) (%d+)(.*)$')
  start, last, used = number(start), number(last), number(used)
  local before, untl = 0, 0
  if rest and rest ~= '' then
    before, untl = match(rest, '^ (%d+) (%d+)$')
    before, untl = number(before), number(untl)
  end
  if not (start and last and used and before and untl) or used >= UNITS or before >= UNITS then
    return nil
  end
  if r.frame == FIRST_CALL then untl = min(untl, now + r.length) end
  return { start = min(start, now), last = min(last, now), used = used, before = before, untl = untl },
    last > now
end

function kinds.w.save(s)
  local value = format('w %.0f %.0f %.0f', s.start, s.last, s.used)
  return s.before > 0 and value .. format(' %.0f %.0f', s.before, s.untl) or value
end

-- Start and end of the window of the clock that `at` lies in, if they are known.
local function window(r, at)
  if r.frame ~= CALENDAR then return at - at % r.length, at - at % r.length + r.length end
  for i = 1, #r.bounds do
    if r.bounds[i] > at then return r.bounds[i - 1], r.bounds[i] end
  end
end

-- The window of the first call that now lies in, with what counts of the one before.
local function first_call(r, s)
  if s and s.start + r.length > now then
    local counts = s.untl > now and s.before > 0
    return { start = s.start, last = s.last, used = s.used,
      before = counts and s.before or 0, untl = counts and s.untl or 0 }
  end
  local untl = s and s.used > 0 and s.last + r.length or 0
  if untl <= now then return { start = now, last = now, used = 0, before = 0, untl = 0 } end
  return { start = now, last = now, used = 0, before = s.used, untl = untl }
end

-- What counts in a window of the clock: also of one that was cut differently before.
local function used_since(s, start) return s and s.last >= start and s.used or 0 end

function kinds.w.fit(r, s, cost)
  if r.frame == FIRST_CALL then
    s = first_call(r, s)
    if s.used + cost > r.most then return s.last + r.length end
    return s.used + s.before + cost > r.most and s.untl or now
  end
  local start, ends = window(r, now)
  if not start then return ends or now + UNKNOWN end
  return now < ends - r.guard and used_since(s, start) + cost <= r.most and now or ends
end

function kinds.w.take(r, s, cost)
  if r.frame == FIRST_CALL then
    s = first_call(r, s)
    s.last, s.used = now, s.used + cost
    return s
  end
  local used = used_since(s, window(r, now) or now)
  return { start = now, last = now, used = used + cost, before = 0, untl = 0 }
end

-- Of the present window only.
function kinds.w.refund(r, s, at, cost)
  local start = s.start
  if r.frame ~= FIRST_CALL then start = window(r, now) end
  if not start or at < start or at > s.last or s.used < cost then return nil end
  return { start = s.start, last = s.last, used = s.used - cost, before = s.before, untl = s.untl }
end

function kinds.w.room(r, s)
  if r.frame == FIRST_CALL then
    s = first_call(r, s)
    return max(r.most - s.used - s.before, 0), max(s.used > 0 and s.last + r.length or s.untl, now)
  end
  local start, ends = window(r, now)
  if not start then return 0, now end
  local used = used_since(s, start)
  return now < ends - r.guard and max(r.most - used, 0) or 0, used > 0 and ends or now
end

function kinds.w.spacing(r, cost)
  local length = r.length
  if r.frame == CALENDAR then
    local start, ends = window(r, now)
    length = start and ends - start or 0
  end
  return div(length, r.most) * cost
end

function kinds.w.forgotten_at(r, since)
  if r.frame == FIRST_CALL then return since + r.length end
  local start, ends = window(r, since)
  return start and ends or since
end

function kinds.w.dies_at(r, s)
  if r.frame == FIRST_CALL then return s.last + r.length end
  local start, ends = window(r, s.last)
  return start and ends or s.last + UNKNOWN_KEPT
end
