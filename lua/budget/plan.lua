-- Places that are booked in any order: `core::budget::plan`, line by line. Behind common.lua.
--
-- KEYS, ARGV, reply   those of the script that this is a part of
-- Rule          plan: units, span (a period), grain, times (how many a period has at most): what a plan of
--               it keeps to, of the kinds that have any
-- State         p <time> <units> <later> <units> … [<floor>]: in the order of time, the first in full and
--               then only how much later; and before when nothing is booked, if that says anything
--
-- Invariant: a plan grants nothing. It says where a place is free; whoever comes for it must fit beside what
-- was used. A plan is never changed, but replaced.

local plans = {}

-- So many times ahead may be booked in between, beside those of a period; and so many are remembered.
local ROOM, BESIDE = 512, 544
-- At most so many times are told apart in a period that need not be exact.
local TIMES = 64

-- What a plan of a rule keeps to: so many units in any period.
local function keep_to(rule, units, span, exact)
  if not units then return end
  rule.plan = { units = units, span = span, grain = 0, times = units }
  if units > TIMES and not exact then
    rule.plan.grain, rule.plan.times = div(span, TIMES), TIMES + 1
  end
end

-- Puts units at their time among others, in order; or to those that were taken within `grain` before.
local function put(times, counts, at, cost, grain)
  local n = #times
  while n > 0 and times[n] > at do n = n - 1 end
  if n > 0 and at - times[n] < max(grain, 1) then
    counts[n] = counts[n] + cost
  elseif n == #times then
    times[n + 1], counts[n + 1] = at, cost
  else
    table.insert(times, n + 1, at)
    table.insert(counts, n + 1, cost)
  end
end

-- The earliest time from `from` on at which no period holds more than `units` with `cost` more: neither the
-- one that begins then, nor any that began before and is not over. Entries count from the `first` one on.
local function free_at(times, counts, first, units, span, from, cost)
  local room, before, at = units - min(cost, units), 0, from
  -- What lies before the end of the period that begins with an entry, and of the one that begins at `at`.
  local own, own_holds, beyond, beyond_holds = first, 0, first, 0
  for i = first, #times do
    local time = times[i]
    local over = time + span
    while times[own] and times[own] < over do
      own, own_holds = own + 1, own_holds + counts[own]
    end
    if over > at then
      if time > at then
        -- All that began earlier have room. What the one that begins now holds, this one does, too.
        while times[beyond] and times[beyond] < at + span do
          beyond, beyond_holds = beyond + 1, beyond_holds + counts[beyond]
        end
        if beyond_holds - before <= room then return at end
        at = over
      elseif own_holds - before > room then
        at = over
      end
    end
    before = before + counts[i]
  end
  return at
end

-- What is planned of a cell, if its kind needs that: its plan, or what was taken if it has none yet.
local function plan_of(cell, line)
  local rule = cell.rule
  if not (line.is_plan and rule.plan) then return nil end
  if line.planned then return line.state end
  local times, counts = cell.kind.taken(rule, line.state)
  return { times = times, counts = counts, floor = 0 }
end

function plans.load(value, from)
  local s, last, n, read = { times = {}, counts = {}, floor = 0 }, 0, 0, from
  if find(value, '[^%d ]', from + 1) or find(value, '  ', from, true)
    or from < #value and sub(value, from + 1, from + 1) ~= ' '
  then
    return nil
  end
  for later, count in gmatch(sub(value, from + 1), ' (%d+) (%d+)') do
    read = read + #later + #count + 2
    last, n, count = last + (number(later) or EXACT), n + 1, tonumber(count)
    if last > now + ABSURD or count >= UNITS then return nil end
    s.times[n], s.counts[n] = last, count
  end
  if read < #value then
    local floor = match(value, '^ (%d+)$', read + 1)
    s.floor = floor and time(floor)
  end
  return s.floor and s or nil
end

function plans.save(s)
  local parts, last = { 'p' }, 0
  for i = 1, #s.times do
    parts[i + 1] = format(' %.0f %.0f', s.times[i] - last, s.counts[i])
    last = s.times[i]
  end
  if s.floor > 0 then parts[#parts + 1] = ' ' .. text(s.floor) end
  return table.concat(parts)
end

function plans.earliest(r, s, from, cost)
  return free_at(s.times, s.counts, 1, r.plan.units, r.plan.span, max(from, s.floor), cost), true
end

-- With so many units more at `at`. What does not count any more is forgotten.
function plans.book(r, s, at, cost)
  local times, counts, n, floor = {}, {}, 0, s.floor
  for i = 1, #s.times do
    if s.times[i] + r.plan.span > now then
      n = n + 1
      times[n], counts[n] = s.times[i], s.counts[i]
    end
  end
  put(times, counts, at, cost, r.plan.grain)
  while #times > r.plan.times + BESIDE do
    floor = max(floor, table.remove(times, 1) + r.plan.span)
    table.remove(counts, 1)
  end
  return { times = times, counts = counts, floor = floor }
end

-- How many units more fit now, and how long until nothing of it counts any more.
function plans.usage(r, s)
  local times, counts = s.times, s.counts
  local own, holds, before, most, i = 1, 0, 0, 0, 1
  local function upto(time)
    while times[own] and times[own] < time do
      own, holds = own + 1, holds + counts[own]
    end
    return holds - before
  end
  while times[i] and times[i] <= now do
    local over = times[i] + r.plan.span
    local held = upto(over)
    if over > now then most = max(most, held) end
    before, i = before + counts[i], i + 1
  end
  most = max(most, upto(now + r.plan.span))
  local reset = max(plans.dies_at(r, s) - now, 0)
  return s.floor > now and 0 or max(r.plan.units - most, 0), reset
end

function plans.dies_at(r, s)
  local last = s.times[#s.times]
  return last and last + r.plan.span or 0
end

-- Without those units, if they are in it.
function plans.undo(r, s, at, cost)
  local n = #s.times
  while n > 0 and s.times[n] > at do n = n - 1 end
  if n == 0 or at - s.times[n] >= max(r.plan.grain, 1) or s.counts[n] < cost then return nil end
  local other = { times = {}, counts = {}, floor = s.floor }
  for i = 1, #s.times do
    local count = s.counts[i] - (i == n and cost or 0)
    if i ~= n or count > 0 then
      other.times[#other.times + 1], other.counts[#other.counts + 1] = s.times[i], count
    end
  end
  return other
end
