-- The kind `fixed_window`: `core::budget::fixed_window`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, frame (0: from the first call, 1: multiples of the length since the epoch,
--               2: a calendar), length, guard (kept free at the end), calendar (a number for its
--               name), bounds (how many), and the boundaries of the windows around now, as the
--               caller's calendar has them
-- State         w<epoch> <start> <used>: a window, perhaps one ahead, and what was taken of it
--
-- Invariant: no window is given more than the limit, none in its last `guard` microseconds, and
-- nothing is booked where the calendar is not known.

kinds.w = { letter = 'w', width = 5 }

function kinds.w.rule(numeric)
  local r = { limit = numeric(), frame = numeric(), length = numeric(), guard = numeric() }
  r.calendar = numeric()
  r.most, r.bounds = r.limit, {}
  for i = 1, numeric() do r.bounds[i] = numeric() end
  return r
end

function kinds.w.load(value, from)
  local start, used = match(value, '^(%d+) (%d+)$', from)
  start, used = time(start), number(used)
  return start and used and { start = start, used = used } or nil
end

function kinds.w.save(s) return format('%.0f %.0f', s.start, s.used) end

-- The first boundary after `at`, by its place.
local function bound_after(r, at)
  for i = 1, #r.bounds do
    if r.bounds[i] > at then return i end
  end
end

-- How far apart units are at the limit's rate.
function kinds.w.mean(r) return div(r.length, r.limit) end

function kinds.w.forgotten_at(r, since)
  if r.frame == 0 then return since + r.length end
  if r.frame == 1 then return since - since % r.length + r.length end
  return r.bounds[bound_after(r, since)] or since
end

-- The window that `at` lies in (start, end, used), if it is known.
local function window(r, s, at)
  local start, ends
  if r.frame == 0 then
    -- A window of which all was given back begins with the next call.
    start = s and s.used > 0 and at < s.start + r.length and s.start or at
    ends = start + r.length
  elseif r.frame == 1 then
    start = at - at % r.length
    ends = start + r.length
  else
    local after = bound_after(r, at)
    if not after or after == 1 then return nil end
    start, ends = r.bounds[after - 1], r.bounds[after]
  end
  return start, ends, s and s.start >= start and s.used or 0
end

function kinds.w.earliest(r, s, from, cost)
  if s then from = max(from, s.start) end
  local start, ends, used = window(r, s, from)
  if not start then
    local first, last = r.bounds[1], r.bounds[#r.bounds]
    local bound = first and (first > from and first or last) or 0
    return bound > from and bound or from + 1000000, false
  end
  if from + r.guard < ends and used + cost <= r.limit then return from, true end
  return ends, not (r.frame == 2 and r.bounds[#r.bounds] == ends)
end

function kinds.w.book(r, s, at, cost)
  local start, _, used = window(r, s, at)
  if not start then start, used = at, 0 end
  return { start = s and max(start, s.start) or start, used = used + cost }
end

function kinds.w.usage(r, s, now)
  local start, ends, used = window(r, s, s and max(now, s.start) or now)
  if not start then return 0, 0 end
  local open = not (s and s.start > now) and now + r.guard < ends
  return open and max(r.limit - used, 0) or 0, used > 0 and ends - now or 0
end

-- The window in which `old` ended. Behind places in a later one nothing is left of it; they are
-- gone. Windows that are cut differently begin with what the last one held.
function kinds.w.amend(r, old, s, since)
  local same = r.frame == old.frame and r.length == old.length and r.calendar == old.calendar
  if s.start > since then
    -- It began a window before at the latest.
    local began = min(max(s.start - r.length, 0), since)
    return { start = same and r.frame == 0 and began or since, used = old.limit }
  end
  if same then return s end
  return { start = since, used = s.used }
end

-- Windows that begin at times of their own, and not with a call.
function kinds.w.has_gaps(r) return r.frame > 0 end

-- Nothing is left of the window at `at`.
function kinds.w.spent(r, at) return { start = at, used = r.limit } end

function kinds.w.dies_at(r, s)
  if r.frame == 0 then return s.start + r.length end
  if r.frame == 1 then return s.start - s.start % r.length + r.length end
  return r.bounds[bound_after(r, s.start)] or s.start + 366 * 24 * 3600 * 1000000
end

-- When the window ends that this is booked in.
function kinds.w.after(r, s, at, cost)
  local start = window(r, s, at) or at
  return kinds.w.dies_at(r, { start = s and max(start, s.start) or start })
end

-- Of the same window only, and not the call that it began with, unless that was the only one.
function kinds.w.undo(r, s, at, cost)
  local inside = at >= s.start and (r.length == 0 or at < s.start + r.length)
  local began = r.frame == 0 and at == s.start and s.used > cost
  if inside and s.used >= cost and not began then return { start = s.start, used = s.used - cost } end
end
