-- The kind `fixed_window`: `core::limits::fixed_window`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, frame (0: windows of the first call, 1: of the clock, 2: of a calendar), length (of the
--               longest window of a calendar), end margin,
--               how many boundaries of the calendar follow, and these
-- State         w <start> <last> <used>: units of the window that began at `start`, the last at `last`
--
-- Invariant: no window holds more than `limit`, and what is granted arrives before its window ends, up to a
-- headroom late.

kinds.w = {}

local FIRST_CALL, CALENDAR = 0, 2
-- When to ask again if not even the current window is known, and how long a state lives then.
local UNKNOWN, UNKNOWN_KEPT = 1000000, 366 * 24 * 3600 * 1000000

function kinds.w.rule(numeric)
  local r = { most = numeric(), frame = numeric(), length = numeric(), end_margin = numeric(), bounds = {} }
  for i = 1, numeric() do r.bounds[i] = numeric() end
  return r
end

function kinds.w.load(r, value)
  local start, last, used = match(value, '^w (%d+) (%d+) (%d+)$')
  start, last, used = number(start), number(last), number(used)
  if not (start and last and used) or used >= UNITS then return nil end
  return { start = min(start, now), last = min(last, now), used = used }, last > now
end

function kinds.w.save(s) return format('w %.0f %.0f %.0f', s.start, s.last, s.used) end

-- Start and end of the window of the clock that `at` lies in, if they are known.
local function of_clock(r, at)
  if r.frame ~= CALENDAR then return at - at % r.length, at - at % r.length + r.length end
  for i = 1, #r.bounds do
    if r.bounds[i] > at then return r.bounds[i - 1], r.bounds[i] end
  end
end

-- Start and end of the window that `at` lies in, if they are known, and what counts in it. A window of the
-- first call that is over, or whose units were all returned, is replaced by one that starts then.
local function window(r, s, at)
  if r.frame == FIRST_CALL then
    local open = s and s.used > 0 and s.start + r.length > at
    local start = open and s.start or at
    return start, start + r.length, open and s.used or 0
  end
  local start, ends = of_clock(r, at)
  -- Not by its own start: a window that was cut differently before still counts.
  return start, ends, start and s and s.last >= start and s.used or 0
end

function kinds.w.fit(r, s, cost)
  local start, ends, used = window(r, s, now)
  if not start then return ends or now + UNKNOWN end
  return now < ends - r.end_margin and used + cost <= r.most and now or ends
end

function kinds.w.take(r, s, cost)
  local start, _, used = window(r, s, now)
  return { start = start or now, last = now, used = used + cost }
end

function kinds.w.untouched() return { start = now, last = now, used = 0 } end

-- Whether units used before can be charged to the current window, without another call.
function kinds.w.is_open(r, s) return r.frame ~= FIRST_CALL or s.used > 0 and s.start + r.length > now end

-- Only in the current window.
function kinds.w.refund(r, s, at, cost)
  local start, _, used = window(r, s, now)
  if not start or at < start or at > s.last or used < cost then return nil end
  return { start = s.start, last = s.last, used = s.used - cost }
end

function kinds.w.room(r, s)
  local start, ends, used = window(r, s, now)
  if not start then return 0, now end
  return now < ends - r.end_margin and max(r.most - used, 0) or 0, used > 0 and ends or now
end

function kinds.w.spacing(r, cost)
  local start, ends = window(r, nil, now)
  return div(start and ends - start or 0, r.most) * cost
end

function kinds.w.forgotten_at(r, since)
  local start, ends = window(r, nil, since)
  return start and ends or since
end

function kinds.w.expires_at(r, s)
  if r.frame == FIRST_CALL then return s.start + r.length end
  local start, ends = of_clock(r, s.last)
  return start and ends or s.last + UNKNOWN_KEPT
end

function kinds.w.span(r) return r.length end

-- The boundaries around the last grant may no longer be known: at most the longest window later.
function kinds.w.back_at(r, s)
  if r.frame == FIRST_CALL then return s.start + r.length end
  if r.frame == CALENDAR then return s.last + r.length end
  return s.last - s.last % r.length + r.length
end
