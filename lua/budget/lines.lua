-- Bookings of any length are a *line*: the state that the last of them left, and the gaps before it
-- (`core::budget::ahead`), or a plan; or a state and what was granted for moments ahead (`core::budget::later`).
-- Behind common.lua and plan.lua.
--
-- KEYS, ARGV, reply   those of the script that this is a part of
--
-- Invariant: all bookings of a line, put in the order of their times, are ones that the state alone would have
-- allowed. A state in a line is never changed, but replaced.

-- `core::budget::later`: so many grants ahead are kept beside a state that only moves forward.
local LATER = 64

-- Times and units behind a >, in the order of time: the first in full and then only how much later.
local function read_later(value, from)
  local plan = plans.load('p' .. sub(value, from), 1)
  return plan and plan.floor == 0 and #plan.times > 0 and plan or nil
end

-- The state whose text begins at `from`, and the gaps behind it: `;`, when each is over, and the state
-- before it, if any; or `>` and what was granted ahead.
local function read_line(kind, value, from)
  local beyond = find(value, '>', from, true)
  if beyond then
    if kind.letter ~= 't' and kind.letter ~= 'w' then return nil end
    local later = read_later(value, beyond + 1)
    local state = later and kind.load(sub(value, 1, beyond - 1), from)
    return state and { state = state, gaps = NONE, later = later } or nil
  end
  if sub(value, from, from) == 'p' then
    local state = plans.load(value, from)
    return state and { state = state, gaps = NONE, planned = true } or nil
  end
  local semicolon = find(value, ';', from, true)
  if not semicolon then
    local state = kind.load(value, from)
    return state and { state = state, gaps = NONE } or nil
  end
  local state = kind.load(sub(value, 1, semicolon - 1), from)
  if not state then return nil end
  local gaps = {}
  for text in gmatch(sub(value, semicolon), ';([^;]*)') do
    local to, before = match(text, '^(%d+)()')
    to = to and time(to)
    if not to then return nil end
    local gap = { to = to }
    if before <= #text then
      if sub(text, before, before) ~= ' ' then return nil end
      gap.before = kind.load(text, before + 1)
      if not gap.before then return nil end
    end
    gaps[#gaps + 1] = gap
  end
  return { state = state, gaps = gaps }
end

-- Another state with the same numbers: some kinds book by changing theirs.
local function copy(state)
  if not state then return nil end
  local other = {}
  for name, value in pairs(state) do
    if type(value) == 'table' then
      local list = {}
      for i = 1, #value do list[i] = value[i] end
      value = list
    end
    other[name] = value
  end
  return other
end

-- All that is booked: a line that grants nothing. `planned`: its state is a plan.
local function booked(cell)
  return { state = cell.state, gaps = cell.gaps or NONE, planned = cell.planned, is_plan = true }
end

-- What was granted, whichever place it came by.
local function used(cell)
  if cell.ahead then return cell.used or { gaps = NONE } end
  return { state = cell.state, gaps = NONE }
end

-- Whether nothing of a state counts at `at` any more.
local function is_whole(cell, state, at)
  return not state or cell.kind.dies_at(cell.rule, state) <= at
end

-- A state with units at `at`.
local function with(cell, state, at, cost, ticket)
  return cell.kind.book(cell.rule, copy(state), at, cost, ticket)
end

-- The earliest time at which units fit into a gap.
local function gap_earliest(cell, gap, from, cost)
  if gap.to <= from then return nil end
  local at, firm = cell.kind.earliest(cell.rule, gap.before, from, cost)
  if not firm or at >= gap.to then return nil end
  local after = cell.kind.after
  local ends = after and after(cell.rule, gap.before, at, cost)
    or cell.kind.dies_at(cell.rule, with(cell, gap.before, at, cost, '0'))
  if ends <= gap.to then return at end
end

-- The time of the first grant ahead that does not fit any more, from the `first` one on.
local function displaced(cell, state, later, first)
  local kind, rule, times, counts = cell.kind, cell.rule, later.times, later.counts
  for i = first, #times do
    if kind.earliest(rule, state, times[i], counts[i]) ~= times[i] then return times[i] end
    state = kind.book(rule, state, times[i], counts[i])
  end
end

-- Whether all that was granted ahead still fits.
local function holds(cell, line)
  -- Windows of the first call look at all of it whenever something is granted.
  return not line.later or cell.kind.beside or not displaced(cell, line.state, line.later, 1)
end

-- When units fit beside a state and what was granted ahead.
local function beside(cell, line, from, cost)
  local kind, rule, state, later = cell.kind, cell.rule, line.state, line.later
  if kind.beside then return kind.beside(rule, state, later, from, cost), true end
  local times, counts, rest, at = later.times, later.counts, 1, from
  while true do
    while times[rest] and times[rest] <= at do
      state = kind.book(rule, state, times[rest], counts[rest])
      rest = rest + 1
    end
    at = kind.earliest(rule, state, at, cost)
    if not times[rest] then return at, true end
    if times[rest] > at then
      -- Earlier than the one that would lose its room it takes that as well.
      local other = displaced(cell, kind.book(rule, state, at, cost), later, rest)
      if not other then return at, true end
      at = other
    end
  end
end

-- Puts into the state what was granted for moments up to now, and what are too many.
local function catch_up(cell, line)
  local kind, rule, later = cell.kind, cell.rule, line.later
  local times, counts, past, state = later.times, later.counts, 0, line.state
  local surplus = rule.in_order and #times - LATER or #times
  local between = kind.between
  for i = 1, #times do
    if i > surplus and (times[i] > now or between and between(rule, state, times[i], now)) then break end
    state, past = kind.book(rule, state, times[i], counts[i]), i
  end
  local left
  if past < #times then
    left = { times = {}, counts = {}, floor = 0 }
    for i = past + 1, #times do
      left.times[i - past], left.counts[i - past] = times[i], counts[i]
    end
  end
  return { state = state, gaps = NONE, later = left }
end

-- With units at `at`, of kinds that are used in order.
local function book_later(cell, line, at, cost)
  local kind, rule, state, later = cell.kind, cell.rule, line.state, line.later
  if at <= now then
    state = kind.book(rule, state, at, cost)
    if not later then return { state = state, gaps = NONE } end
    return catch_up(cell, { state = state, later = later })
  end
  local more = { times = {}, counts = {}, floor = 0 }
  for i = 1, later and #later.times or 0 do
    more.times[i], more.counts[i] = later.times[i], later.counts[i]
  end
  put(more.times, more.counts, at, cost, 0)
  return catch_up(cell, { state = state or kind.unused(rule, now), later = more })
end

-- What its state is read by.
local function kind_of(cell, line) return line.planned and plans or cell.kind end

-- When units fit into a line.
local function line_earliest(cell, line, from, cost)
  if line.later then return beside(cell, line, from, cost) end
  for i = 1, #line.gaps do
    local at = gap_earliest(cell, line.gaps[i], from, cost)
    if at then return at, true end
  end
  return kind_of(cell, line).earliest(cell.rule, line.state, from, cost)
end

-- Whether units at `at`, where they fit, take no room from anybody who comes before them.
local function leaves_room(cell, line, at, cost)
  local letter = cell.kind.letter
  -- Calls are never booked ahead.
  if letter == 'c' then return false end
  local plan = plan_of(cell, line)
  if plan then
    if #plan.times < cell.rule.plan.times + ROOM then return true end
  elseif letter == 'l' then
    -- It is taken from in any order.
    return true
  elseif cell.rule.in_order then
    if not line.later or #line.later.times < LATER then return true end
    return at <= line_earliest(cell, line, now, cost) + cost * cell.kind.mean(cell.rule)
  end
  local before = line.state
  for i = 1, #line.gaps do
    if gap_earliest(cell, line.gaps[i], at, cost) == at then
      before = line.gaps[i].before
      break
    end
  end
  if cell.rule.room > 0 and is_whole(cell, before, at) then return true end
  local soonest = kind_of(cell, line).earliest(cell.rule, before, now, cost)
  -- As far apart as they are at the limit's rate: in the long run nothing is lost.
  if at <= soonest + cost * cell.kind.mean(cell.rule) then return true end
  local save = cell.kind.save
  return not plan and save(with(cell, before, soonest, cost, '0')) == save(with(cell, before, at, cost, '0'))
end

-- A line with units at `at`, where they fit.
local function line_book(cell, line, at, cost, ticket)
  local plan = plan_of(cell, line)
  if plan then
    return { state = plans.book(cell.rule, plan, at, cost), gaps = NONE, planned = true, is_plan = true }
  end
  if cell.rule.in_order then return book_later(cell, line, at, cost) end
  local gaps, last, placed = {}, line.state, false
  local function keep(before, to)
    local gap = { before = before, to = to }
    -- Somebody can still be placed in it; or could, if what is in it came back.
    if gap_earliest(cell, gap, now, 1)
      or (cell.kind.letter == 'w' and to > now and not is_whole(cell, before, now))
    then
      gaps[#gaps + 1] = gap
    end
  end
  for i = 1, #line.gaps do
    local gap = line.gaps[i]
    if placed or gap_earliest(cell, gap, at, cost) ~= at then
      keep(gap.before, gap.to)
    else
      placed = true
      if is_whole(cell, gap.before, at) then keep(gap.before, at) end
      keep(with(cell, gap.before, at, cost, ticket), gap.to)
    end
  end
  if not placed then
    if is_whole(cell, last, at) then keep(last, at) end
    last = with(cell, last, at, cost, ticket)
  end
  while #gaps > cell.rule.room do table.remove(gaps, 1) end
  return { state = last, gaps = gaps }
end
