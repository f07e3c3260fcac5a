-- Rules on petitions: `core::budget::admit`, line by line. Behind budget/*.lua.
--
-- KEYS     see budget/common.lua
-- ARGV     1…  see budget/common.lua, then: how many petitions; for each: mode (1: take,
--          2: take or reserve, 3: and who is late may be told to wait), how far ahead who is late may be
--          granted a moment, ticket, how many claims; for each claim: cell, cost, held (a place that it
--          holds, 0: none) and, if there is one, its epoch
-- Reply    {now, epoch, began (0: fresh, 1: lost), since, …}, for each rule the epoch of its places,
--          and for each petition
--          0 (granted), then for each claim limit, remaining, retry_after, reset_after, as of when it
--            counts, and 1 if it should be told once the call was made (lua/confirm.lua)
--          1 (denied), until, by (which claim, from 0), the four values of that one, how many places
--            it has, and for each claim (from 0) and place
--          2 (never), by, its four values
--          3 (outdated: other terms are in force than the asker knows), by
--          4 (paused), until, by
--          5 (late for its places: it keeps them, and has to wait), until, by
--          All are integers; times in microseconds.
--
-- Invariant: all claims of a petition are granted or none is, and every grant fits beside all others,
-- whatever was booked. A petition that has to wait, or is denied without a
-- place, changes nothing (but that a bucket which starts empty is seen for the first time). An
-- earlier petition takes what a later one then lacks. No petitions at all: only the era is entered
-- and its record kept alive.

local AHEAD_MAX = 366 * 24 * 3600 * 1000000
-- `core::budget::admit::WAIT`: so far ahead who is late may be told to wait.
local WAIT = 30000000

local era = enter()
local cells, rules = load(era, true)
local reply = { now, era.epoch, era.began == 'l' and 1 or 0, era.since }
for i = 1, #rules do reply[i + 4] = rules[i].mark end
local size = #reply
local function say(value)
  size = size + 1
  reply[size] = value
end

local function fit(want, from)
  local cell = want.cell
  if cell.state or cell.rule.blind <= from then
    return earliest(cell, from, want.cost)
  end
  -- Places at the end of the blindness would all be for the same moment, and most would be missed.
  return (cell.kind.earliest(cell.rule, cell.state, cell.rule.blind, want.cost)), false
end

local function say_usage(want, retry)
  local n = size
  reply[n + 1], reply[n + 3] = want.cell.rule.most, retry
  reply[n + 2], reply[n + 4] = standing(want.cell)
  size = n + 4
end

-- Whether it should be told that the call was made.
local function in_doubt(cell)
  local doubts = cell.kind.in_doubt
  if not doubts then return 0 end
  local line = used(cell)
  if line.later then return 1 end
  local taken = line.state
  return taken and doubts(cell.rule, taken) and 1 or 0
end

-- Takes what is wanted as of `at`; `placed`: it was booked before.
local function take(want, at, placed, ticket)
  local cell, cost = want.cell, want.cost
  if not cell.ahead and at <= now then
    cell.state = cell.kind.book(cell.rule, cell.state, at, cost, ticket)
    cell.changed = true
    return
  end
  local taken = line_book(cell, used(cell), at, cost, ticket)
  local all, granted = booked(cell), max(cell.granted or 0, at)
  -- Whatever is granted ahead is booked ahead.
  if not (cell.ahead and placed) then all = line_book(cell, all, at, cost, ticket) end
  part(cell, all, taken, granted)
end

-- A place for later.
local function book(want, at, ticket)
  local cell = want.cell
  local taken = cell.used
  if not cell.ahead then taken = cell.state and { state = cell.state, gaps = NONE } end
  part(cell, line_book(cell, booked(cell), at, want.cost, ticket), taken, cell.granted)
end

local function deny(wants, first, reserve, ticket)
  -- A time that suits every claim whose times are known.
  local untl, suits = first, false
  for _ = 1, ROUNDS do
    local later, sure = untl, true
    for i = 1, #wants do
      if wants[i].firm then
        local at, firm = fit(wants[i], untl)
        later, sure = max(later, at), sure and firm
      end
    end
    suits = sure and later == untl
    untl = later
    if suits or not sure then break end
  end
  local by = 1
  for i = #wants, 1, -1 do
    if not wants[i].holds and wants[i].at == first then by = i end
  end
  say(1)
  say(untl)
  say(by - 1)
  say_usage(wants[by], untl - now)
  local place, places = size + 1, 0
  say(0)
  for i = 1, #wants do
    local want = wants[i]
    if not want.fits then
      say(i - 1)
      say(want.held)
      places = places + 1
    elseif want.firm and reserve and suits and untl <= now + AHEAD_MAX
      and (want.at == first or leaves_room(want.cell, booked(want.cell), untl, want.cost))
    then
      book(want, untl, ticket)
      say(i - 1)
      say(untl)
      places = places + 1
    end
  end
  reply[place] = places
end

-- Where a limit may not be asked.
local function shut(wants)
  for i = 1, #wants do
    if wants[i].cell.rule.outdated then
      say(3)
      say(i - 1)
      return true
    end
  end
  local untl, by = now, nil
  for i = 1, #wants do
    local paused = wants[i].cell.rule.paused
    if paused > untl then untl, by = paused, i end
  end
  if not by then return false end
  say(4)
  say(untl)
  say(by - 1)
  return true
end

-- A place that is good or comes up, or has to wait for another use.
local function at_place(want)
  local cell, held = want.cell, want.held
  if now < held then
    want.at = held
    return
  end
  local late = now > held + cell.rule.usable
  local counts = line_earliest(cell, used(cell), late and now or held, want.cost)
  if counts <= now then
    want.at, want.holds, want.counts = now, true, counts
  elseif not late then
    want.at = counts
  end
end

-- When a claim fits from `at` on: at the place that it holds, beside what others used, or beside all.
local function from(want, at)
  if not want.placed then return fit(want, at) end
  return line_earliest(want.cell, used(want.cell), max(at, want.held), want.cost)
end

-- The next moment, up to so far ahead, at which a message that holds a place may pass, and takes nobody's
-- room who could pass before (`core::budget::moment::soon`).
local function soon(wants, within)
  local due = false
  for i = 1, #wants do
    -- Who is early waits for his place, and nobody waits for him.
    if wants[i].placed and wants[i].held <= now then due = true end
    -- A call counts as under way from then on that it is granted.
    if wants[i].cell.kind.letter == 'c' then return nil end
  end
  if not due then return nil end
  local at = now
  for _ = 1, ROUNDS do
    local later = at
    for i = 1, #wants do
      local free, firm = from(wants[i], at)
      if not firm then return nil end
      later = max(later, free)
    end
    if later > now + within then return nil end
    if later == at then
      for i = 1, #wants do
        local want, cell = wants[i], wants[i].cell
        want.alone = from(want, now)
        -- As late as a place may be used, or no later than others would be anyway.
        if want.alone + cell.rule.usable < at and not (leaves_room(cell, used(cell), at, want.cost)
          and (want.placed or leaves_room(cell, booked(cell), at, want.cost)))
        then
          return nil
        end
      end
      return at
    end
    at = later
  end
end

-- Who could pass soon, but further ahead than a moment may be granted.
local function late(wants)
  local by = 1
  for i = 2, #wants do
    if wants[i].alone > wants[by].alone then by = i end
  end
  say(5)
  say(wants[by].alone)
  say(by - 1)
end

local function admit(wants, mode, ahead, ticket)
  if shut(wants) then return end
  for i = 1, #wants do
    if wants[i].cost > wants[i].cell.rule.most then
      say(2)
      say(i - 1)
      return say_usage(wants[i], 0)
    end
  end
  local first = now
  for i = 1, #wants do
    local cell = wants[i].cell
    if not cell.state and cell.kind.first_sight then
      cell.state = cell.kind.first_sight(cell.rule, max(now, cell.rule.blind))
      cell.changed = cell.changed or cell.state ~= nil
    end
  end
  for i = 1, #wants do
    local want = wants[i]
    want.placed = want.epoch == want.cell.rule.mark
    if want.placed then at_place(want) end
    if not want.at then
      want.fits = true
      want.at, want.firm = fit(want, now)
    end
    first = max(first, want.at)
  end
  local moment = first > now and soon(wants, mode == 3 and WAIT or SOON) or nil
  if moment and moment > now + ahead then return late(wants) end
  if first > now and not moment then return deny(wants, first, mode > 1, ticket) end
  for i = 1, #wants do
    local want = wants[i]
    local at, placed = want.counts or now, want.holds
    if moment then at, placed = moment, want.placed end
    want.counts = at
    take(want, at, placed, ticket)
  end
  say(0)
  for i = 1, #wants do
    say_usage(wants[i], 0)
    say(wants[i].counts)
    say(in_doubt(wants[i].cell))
  end
end

local petitions = numeric()
for _ = 1, petitions do
  local mode, ahead, ticket, wants = numeric(), numeric(), argument(), {}
  for i = 1, numeric() do
    local want = { cell = cells[numeric()], cost = numeric(), held = numeric() }
    if want.held > 0 then want.epoch = numeric() end
    wants[i] = want
  end
  admit(wants, mode, ahead, ticket)
end
save(cells)
if petitions == 0 then call('PEXPIRE', KEYS[1], text(ERA_KEPT)) end
return reply
