-- Bookings of any length are a *line*: the state that the last of them left, and the gaps before it
-- (`core::budget::ahead`), or a plan. Behind common.lua and plan.lua.
--
-- KEYS, ARGV, reply   those of the script that this is a part of
--
-- Invariant: all bookings of a line, put in the order of their times, are ones that the state alone would have
-- allowed. A state in a line is never changed, but replaced.

-- The state whose text begins at `from`, and the gaps behind it: `;`, when each is over, and the state
-- before it, if any.
local function read_line(kind, value, from)
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

-- What its state is read by.
local function kind_of(cell, line) return line.planned and plans or cell.kind end

-- When units fit into a line.
local function line_earliest(cell, line, from, cost)
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
