-- The kind `fixed_window`: `core::budget::fixed_window`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, frame (0: from the first call, 1: multiples of the length since the epoch,
--               2: a calendar), length, guard (kept free at the end), calendar (a number for its
--               name), bounds (how many), and the boundaries of the windows around now, as the
--               caller's calendar has them
-- State         w<epoch> <start> <used>: a window, perhaps one ahead, and what was taken of it; and of one
--               that begins with a call, while nobody has told that a call was made, the latest of those
--               granted, or the call that was made and a 1, if it was not granted at the start
--
-- Invariant: no window is given more than the limit, none in its last `guard` microseconds, and
-- nothing is booked where the calendar is not known. Behind a window of the first call nothing is granted
-- before the downstream's is over, whichever of its calls was the first that was made.

kinds.w = { letter = 'w', width = 5 }

function kinds.w.rule(numeric)
  local r = { limit = numeric(), frame = numeric(), length = numeric(), guard = numeric() }
  r.calendar = numeric()
  r.most, r.bounds = r.limit, {}
  for i = 1, numeric() do r.bounds[i] = numeric() end
  return r
end

function kinds.w.load(value, from)
  local start, used, rest = match(value, '^(%d+) (%d+)()', from)
  start, used = start and time(start), used and number(used)
  if not (start and used) then return nil end
  if rest > #value then return { start = start, used = used, made = start } end
  local at, made = match(value, '^ (%d+)( ?1?)$', rest)
  at = at and time(at)
  if not at then return nil end
  if made == '' then return { start = start, used = used, last = at } end
  return made == ' 1' and { start = start, used = used, made = at } or nil
end

function kinds.w.save(s)
  if s.last then return format('%.0f %.0f %.0f', s.start, s.used, s.last) end
  if s.made ~= s.start then return format('%.0f %.0f %.0f 1', s.start, s.used, s.made) end
  return format('%.0f %.0f', s.start, s.used)
end

-- The same window, as it is if all calls are made.
function kinds.w.expected(s) return { start = s.start, used = s.used, made = s.start } end

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

-- The window that `at` lies in (start, closes, end, used), if it is known. Nothing is granted in it from
-- `closes` on.
local function window(r, s, at)
  local start, ends
  if r.frame == 0 then
    -- A window of which all was given back begins with the next call.
    if not s or s.used == 0 or at >= (s.last or s.made) + r.length then
      ends = at + r.length
      return at, ends - r.guard, ends, 0
    end
    ends = (s.last or s.made) + r.length
    -- Whoever is granted something in a window in doubt makes it longer.
    return s.start, s.last and ends or s.start + r.length - r.guard, ends, s.used
  elseif r.frame == 1 then
    start = at - at % r.length
    ends = start + r.length
  else
    local after = bound_after(r, at)
    if not after or after == 1 then return nil end
    start, ends = r.bounds[after - 1], r.bounds[after]
  end
  return start, ends - r.guard, ends, s and s.start >= start and s.used or 0
end

function kinds.w.earliest(r, s, from, cost)
  if s then from = max(from, s.start) end
  local start, closes, ends, used = window(r, s, from)
  if not start then
    local first, last = r.bounds[1], r.bounds[#r.bounds]
    local bound = first and (first > from and first or last) or 0
    return bound > from and bound or from + 1000000, false
  end
  if from < closes and used + cost <= r.limit then return from, true end
  return ends, not (r.frame == 2 and r.bounds[#r.bounds] == ends)
end

function kinds.w.book(r, s, at, cost)
  local start, _, _, used = window(r, s, at)
  if not start then start, used = at, 0 end
  local made, last
  if r.frame == 0 then
    if used > 0 then made, last = s.made, s.last end
    -- At its end the downstream may have begun another one.
    if made and at >= s.start + r.length - r.guard then made, last = nil, at end
    if not made then last = max(last or at, at) end
  end
  if s then start = max(start, s.start) end
  if r.frame > 0 then made = start end
  return { start = start, used = used + cost, made = made, last = last }
end

-- A window of the first call that nobody took anything from.
function kinds.w.unused() return { start = 0, used = 0, made = 0 } end

-- When units fit beside a window of the first call and what was granted for moments ahead
-- (`core::budget::first_call`).
function kinds.w.beside(r, s, later, from, cost)
  local times, counts, at = later.times, later.counts, s and max(from, s.start) or from
  while true do
    at = free_at(times, counts, 1, r.limit, r.length, at, cost)
    local _, closes, ends, used = window(r, s, at)
    if used == 0 then return at end
    for i = 1, #times do
      if times[i] < ends then used = used + counts[i] end
    end
    if at < closes and used + cost <= r.limit then return at end
    at = ends
  end
end

-- Whether a call that was granted as of `at` may be a part of this window or of the next one.
function kinds.w.between(r, s, at, now)
  if r.frame > 0 then return false end
  local _, closes, ends, used = window(r, s, at)
  return used > 0 and at >= closes and now < ends
end

-- Whether it matters that a call is told to be made that was granted last.
function kinds.w.in_doubt(r, s)
  return s.last ~= nil and (s.used < r.limit or s.last > s.start)
end

-- The window after a call was made that had been granted as of `at`; nothing if that tells nothing. Calls may
-- have been granted since when the downstream's window could be over already: then it stays in doubt.
function kinds.w.made(r, s, at)
  if r.frame > 0 or s.used == 0 or at < s.start then return nil end
  if s.last and not (at <= s.last and s.last < s.start + r.length - r.guard)
    or s.made and at >= s.made
  then
    return nil
  end
  return { start = s.start, used = s.used, made = at }
end

function kinds.w.usage(r, s, now)
  local start, closes, ends, used = window(r, s, s and max(now, s.start) or now)
  if not start then return 0, 0 end
  local open = not (s and s.start > now) and now < closes
  return open and max(r.limit - used, 0) or 0, used > 0 and ends - now or 0
end

-- A window of which nobody knows when the downstream's began, by `start` at the latest.
local function in_doubt(r, start, used)
  if r.frame == 0 then return { start = start, used = used, last = start } end
  return { start = start, used = used, made = start }
end

-- The window in which `old` ended. Behind places in a later one nothing is left of it; they are
-- gone. Windows that are cut differently begin with what the last one held.
function kinds.w.amend(r, old, s, since)
  local same = r.frame == old.frame and r.length == old.length and r.calendar == old.calendar
  if s.start > since then
    -- It began a window before at the latest.
    local began = min(max(s.start - r.length, 0), since)
    return in_doubt(r, same and r.frame == 0 and began or since, old.limit)
  end
  if same then return s end
  return in_doubt(r, since, s.used)
end

-- What a plan of windows of the first call keeps to: any of them could begin at any time.
function kinds.w.pattern(r)
  if r.frame == 0 then return r.limit, r.length end
end

-- What was taken of a window of the first call, as units that stop counting when it is over.
function kinds.w.taken(r, s)
  if not s or s.used == 0 then return {}, {} end
  return { s.last or s.made }, { s.used }
end

-- Windows that begin at times of their own, and not with a call.
function kinds.w.has_gaps(r) return r.frame > 0 end

-- Nothing is left of the window at `at`.
function kinds.w.spent(r, at) return in_doubt(r, at, r.limit) end

function kinds.w.dies_at(r, s)
  if r.frame == 0 then return (s.last or s.made) + r.length end
  if r.frame == 1 then return s.start - s.start % r.length + r.length end
  return r.bounds[bound_after(r, s.start)] or s.start + 366 * 24 * 3600 * 1000000
end

-- When the window ends that this is booked in.
function kinds.w.after(r, s, at, cost)
  if r.frame == 0 then return kinds.w.dies_at(r, kinds.w.book(r, s, at, cost)) end
  local start = window(r, s, at) or at
  return kinds.w.dies_at(r, { start = s and max(start, s.start) or start })
end

-- Of the same window only.
function kinds.w.undo(r, s, at, cost)
  local ends = math.huge
  if r.frame == 0 then ends = (s.last or s.made) + r.length end
  if r.frame == 1 then ends = s.start + r.length end
  if at >= s.start and at < ends and s.used >= cost then
    return { start = s.start, used = s.used - cost, made = s.made, last = s.last }
  end
end
