-- What every script about budgets begins with: numbers, the era, the rules and the cells. Behind it
-- come the kinds that the call is about, and what it does.
--
-- KEYS[1]  the record of the era (`core::budget::epoch`), prefix:{budgets}:epoch
-- KEYS[2…] the standing of each rule's limit, prefix:{budgets}:NAME:standing, in the order of the
--          rules; then the budgets of this call, in the same order, each once: cell 1, 2, …
-- ARGV     1 run      the server's run_id, as INFO told this connection
--          2 known    the epoch that the asker knows, 0 if none
--          3 stepped  1: the asker saw the clock step since then
--          4 rules    how many; then for each: kind (a letter), closed (1: wait out a loss),
--                     headroom, cells (how many of the keys), the revision that the asker knows
--                     (0: none), and the numbers of its kind
--          then what the script itself wants
-- Reply    that of the script
--
-- The standing holds, beside what `lua/set.lua` and the others write, the regimes of this era
-- (`core::budget::regime`): `mark`, the epoch of the last one; `ruled`, the revision that it was last
-- used under; `rules`, all that are remembered: epoch, since, kind and numbers, with ; in between.
--
-- Invariant: a state counts only in the era and for the kind that it was written in, and under the
-- rule that it was written under. Every budget is written together with its time to live, rounded up.
-- All numbers are integers below 2^53, so doubles are exact; tostring would cut digits, %.0f does not.
-- TIME is read once.

-- Globals are slow to look up, and a batch does so thousands of times.
local KEYS, ARGV, call, tonumber = KEYS, ARGV, redis.call, tonumber
local format, match, gmatch = string.format, string.match, string.gmatch
local find, sub = string.find, string.sub
local max, min = math.max, math.min

local EXACT, UNITS, ABSURD = 2 ^ 53, 2 ^ 32, 2 ^ 50
local DOUBT, STEP = 2000000, 100000
-- Longer than anything that is kept or booked ahead.
local ERA_KEPT = 1100 * 24 * 3600 * 1000
local REGIMES = 16
-- `core::budget::admit::SOON`: so far ahead somebody who came late may have been granted his use.
local SOON = 5000000
-- `core::budget::ahead`: so many gaps are remembered, of the kinds that have any.
local GAPS = 24
local NONE = {}

local function div(x, y) return (x - x % y) / y end
local function div_ceil(x, y) return div(x + y - 1, y) end
local function text(x) return format('%.0f', x) end

-- Digits (that a pattern found), if they are exact.
local function number(digits)
  local value = tonumber(digits)
  return value and value < EXACT and value or nil
end

local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

-- Digits, if they can be one of our times.
local function time(digits)
  local value = tonumber(digits)
  return value and value <= now + ABSURD and value or nil
end

local at = 0
local function argument()
  at = at + 1
  return ARGV[at]
end
local function numeric()
  at = at + 1
  return tonumber(ARGV[at])
end

local run, known, stepped = argument(), numeric(), argument() == '1'
local kinds = {}

local function read_era()
  local record = call('GET', KEYS[1])
  if not record then return nil end
  local began, epoch, since, by = match(record, '^([fl])(%d+) (%d+) ([^ ]*)$')
  epoch, since = number(epoch), number(since)
  if not (epoch and since) then return nil end
  return { began = began, epoch = epoch, since = since, run = by }
end

-- The era of this question (`core::budget::epoch::enter`).
local function enter()
  local era = read_era()
  local began = 'l'
  if not era then
    if known == 0 then began = 'f' end
  elseif era.run == run and known <= era.epoch
    and not (era.began == 'f' and known > 0 and known < era.epoch)
    and not (stepped and known == era.epoch)
    and era.since <= now + STEP then
    return era
  end
  local last = max(era and era.epoch or 0, known)
  era = { began = began, epoch = max(last + 1, div(now, 1000)), since = now, run = run }
  local record = began .. text(era.epoch) .. ' ' .. text(now) .. ' ' .. run
  call('SET', KEYS[1], record, 'PX', text(ERA_KEPT))
  return era
end

-- The regimes that the standing at `key` remembers, oldest first.
local function regimes(key)
  local all = {}
  for mark, since, letter, numbers in
    gmatch(call('HGET', key, 'rules') or '', '(%d+) (%d+) (%a) ([%d ]+)')
  do
    all[#all + 1] =
      { mark = tonumber(mark), since = tonumber(since), letter = letter, numbers = numbers }
  end
  return all
end

-- The first message under a rule begins its regime (`core::budget::regime::Regimes::enter`).
local function begin(rule, era, revision, mark)
  local all = mark >= era.epoch and regimes(rule.standing) or {}
  local last = all[#all]
  if not last then
    mark = max(mark, era.epoch)
  elseif last.letter ~= rule.letter or last.numbers ~= rule.numbers then
    mark = max(last.mark + 1, div(now, 1000))
  end
  if not last or mark > last.mark then
    all[#all + 1] = { mark = mark, since = now, letter = rule.letter, numbers = rule.numbers }
  end
  local lines = {}
  for i = max(#all - REGIMES + 1, 1), #all do
    local one = all[i]
    lines[#lines + 1] = text(one.mark) .. ' ' .. text(one.since) .. ' ' .. one.letter .. ' ' .. one.numbers
  end
  call('HSET', rule.standing, 'mark', text(mark), 'ruled', text(revision),
    'rules', table.concat(lines, ';'))
  return mark
end

-- Whether the rule is the one in force, and in which regime. `ruling`: messages are ruled on.
local function stand(rule, known, era, ruling)
  local s = call('HMGET', rule.standing, 'revision', 'paused_until', 'ruled', 'mark')
  local revision, mark = tonumber(s[1] or 0) or 0, tonumber(s[4] or 0) or 0
  rule.paused = tonumber(s[2] or 0) or 0
  rule.outdated = revision ~= known
  rule.settled = not rule.outdated and (tonumber(s[3] or 0) or 0) == revision
  if not era then return end
  if ruling and not rule.outdated and revision > 0 and (not rule.settled or mark < era.epoch) then
    mark = begin(rule, era, revision, mark)
    rule.settled = true
  end
  rule.mark = max(mark, era.epoch)
end

-- A state of an earlier regime as it counts now (`core::budget::regime::Regimes::carried`). `state`: what was
-- used; `granted`: the latest moment ahead that was granted. Answers it, and such a moment; or `same`: it is
-- of the last regime.
local function carried(rule, kind, state, granted, written)
  rule.past = rule.past or regimes(rule.standing)
  local past, from = rule.past, 1
  for i = 1, #past do
    local one = past[i]
    if one.mark <= written then from = i end
    if not one.rule then
      -- The numbers of the kind; none of them is followed by a calendar.
      local numbers = gmatch(one.numbers, '%d+')
      one.rule = one.letter == kind.letter
        and kind.rule(function() return tonumber(numbers() or '0') end)
    end
  end
  if from >= #past then return nil, 0, true end
  for i = from + 1, #past do
    local old, new = past[i - 1].rule, past[i].rule
    if not state or not old or not new then return nil, 0 end
    local since = past[i].since
    if granted > since and kind.spent then
      granted = since + SOON
      state = kind.spent(new, granted)
    else
      state, granted = kind.amend(new, old, state, since), 0
    end
  end
  return state, granted
end

-- The state whose text begins at `from`, and the gaps behind it: `;`, when each is over, and the state
-- before it, if any.
local function read_line(kind, value, from)
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

-- What is known of a cell (`core::budget::record`): `state` and `gaps`, all that is booked; `ahead`, whether
-- what is used is told apart; `used`, that; and `granted`, the latest moment ahead that was granted.
local function read(cell, value, era)
  local rule, kind = cell.rule, cell.kind
  local start = rule.start
  local from, written = #start + 1, nil
  if sub(value, 1, #start) ~= start then
    written, from = match(value, '^' .. kind.letter .. '(%d+) ()')
    written = number(written)
    if not written or written < era.epoch then return end
  end
  local line, taken, granted = nil, nil, 0
  local bar = find(value, '|', 1, true)
  if bar then
    if kind.letter == 'c' then return end
    local second = find(value, '|', bar + 1, true)
    if second then
      granted = match(value, '^(%d+)$', second + 1)
      granted = granted and time(granted)
      if not granted then return end
      value = sub(value, 1, second - 1)
    end
    line = read_line(kind, sub(value, 1, bar - 1), from)
    if not line then return end
    if bar < #value then
      taken = read_line(kind, sub(value, bar + 1), 1)
      if not taken then return end
    end
  else
    local state = kind.load(value, from)
    if not state then return end
    if not written then
      cell.state = state
      return
    end
    line = { state = state, gaps = NONE }
    taken = line
  end
  if written then
    local state, ahead, same = carried(rule, kind, taken and taken.state, granted, written)
    if not same then
      cell.state = state
      if state and ahead > 0 then
        cell.ahead, cell.used, cell.granted = true, { state = state, gaps = NONE }, ahead
      end
      return
    end
  end
  cell.state = line.state
  if bar then
    cell.gaps, cell.used, cell.ahead, cell.granted = line.gaps, taken, true, granted
  end
end

-- The rules, and the cells with what is known of them in `era` (none: nothing is known).
local function load(era, ruling)
  local cells, rules, keys, count = {}, {}, 0, numeric()
  for i = 1, count do
    local letter = argument()
    local kind = kinds[letter]
    local closed, headroom, own, known = argument() == '1', numeric(), numeric(), numeric()
    local first = at + 1
    local rule = kind.rule(numeric)
    rules[i] = rule
    rule.letter, rule.standing = letter, KEYS[i + 1]
    rule.numbers = table.concat(ARGV, ' ', first, first + kind.width - 1)
    rule.headroom, rule.blind = headroom, 0
    rule.usable = headroom - math.floor(headroom / 8)
    rule.room = kind.has_gaps and kind.has_gaps(rule) and GAPS or 0
    stand(rule, known, era, ruling)
    rule.start = letter .. (era and text(rule.mark) or '') .. ' '
    if closed and era then
      rule.blind = era.began == 'f' and era.since + DOUBT or kind.forgotten_at(rule, era.since + SOON)
    end
    for _ = 1, own do
      keys = keys + 1
      cells[keys] = { rule = rule, kind = kind, key = KEYS[count + keys + 1] }
    end
  end
  if not era then return cells, rules end
  -- In parts: Lua's stack ends at 8,000.
  for first = 1, keys, 1000 do
    local last = math.min(first + 999, keys)
    local found = call('MGET', unpack(KEYS, count + first + 1, count + last + 1))
    for i = first, last do
      local value = found[i - first + 1]
      local cell = cells[i]
      if value then read(cell, value, era) end
    end
  end
  return cells, rules
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

-- Bookings of any length are a *line*: the state that the last of them left, and the gaps before it
-- (`core::budget::ahead`). A state in a line is never changed, but replaced.

-- All that is booked: a plan, which grants nothing, and in which all is expected to be used.
local function booked(cell)
  return { state = cell.state, gaps = cell.gaps or NONE, is_plan = true }
end

-- What was granted, whichever place it came by.
local function used(cell)
  if cell.ahead then return cell.used or { gaps = NONE } end
  return { state = cell.state, gaps = NONE }
end

-- A state as it is if all that was granted is used.
local function expected(kind, state)
  return kind.expected and kind.expected(state) or state
end

-- All that is booked, and what of it is used: told apart only where they differ, or have gaps, or something
-- was granted for a moment that is still ahead.
local function part(cell, all, taken, granted)
  local kind = cell.kind
  local save = kind.save
  if not granted or granted <= now then granted = 0 end
  cell.state, cell.gaps, cell.used, cell.ahead = all.state, all.gaps, taken, true
  cell.granted = granted
  if taken and granted == 0 and #all.gaps == 0 and #taken.gaps == 0
    and save(expected(kind, all.state)) == save(expected(kind, taken.state))
  then
    cell.state, cell.used, cell.ahead = taken.state, nil, false
  end
  cell.changed = true
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

-- When units fit into a line.
local function line_earliest(cell, line, from, cost)
  for i = 1, #line.gaps do
    local at = gap_earliest(cell, line.gaps[i], from, cost)
    if at then return at, true end
  end
  return cell.kind.earliest(cell.rule, line.state, from, cost)
end

-- Whether units at `at`, where they fit, take no room from anybody who comes before them.
local function leaves_room(cell, line, at, cost)
  -- Calls are never booked ahead.
  if cell.kind.letter == 'c' then return false end
  local before = line.state
  for i = 1, #line.gaps do
    if gap_earliest(cell, line.gaps[i], at, cost) == at then
      before = line.gaps[i].before
      break
    end
  end
  if cell.rule.room > 0 and is_whole(cell, before, at) then return true end
  local soonest = cell.kind.earliest(cell.rule, before, now, cost)
  -- As far apart as they are at the limit's rate: in the long run nothing is lost.
  if at <= soonest + cost * cell.kind.mean(cell.rule) then return true end
  local save = cell.kind.save
  return save(with(cell, before, soonest, cost, '0')) == save(with(cell, before, at, cost, '0'))
end

-- A line with units at `at`, where they fit.
local function line_book(cell, line, at, cost, ticket)
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
    if line.is_plan then last = expected(cell.kind, last) end
  end
  while #gaps > cell.rule.room do table.remove(gaps, 1) end
  return { state = last, gaps = gaps }
end

local ROUNDS = 32

-- When units fit beside all that is booked and all that is used.
local function earliest(cell, from, cost)
  local kind, rule = cell.kind, cell.rule
  if not cell.ahead then return kind.earliest(rule, cell.state, from, cost) end
  local all, taken, at = booked(cell), used(cell), from
  for _ = 1, ROUNDS do
    local place, firm = line_earliest(cell, all, at, cost)
    local free, sure = line_earliest(cell, taken, place, cost)
    if free == place then return free, firm and sure end
    at = free
  end
  return at, false
end

local function line_written(kind, line)
  local parts = { kind.save(line.state) }
  for i = 1, #line.gaps do
    local gap = line.gaps[i]
    parts[#parts + 1] = ';' .. text(gap.to) .. (gap.before and ' ' .. kind.save(gap.before) or '')
  end
  return table.concat(parts)
end

local function written(cell)
  local kind = cell.kind
  if not cell.ahead then return cell.rule.start .. kind.save(cell.state) end
  local taken = cell.used
  local granted = cell.granted or 0
  return cell.rule.start .. line_written(kind, booked(cell)) .. '|'
    .. (taken and line_written(kind, taken) or '') .. (granted > 0 and '|' .. text(granted) or '')
end

-- Writes down what changed. A state that says nothing any more goes.
local function save(cells)
  for i = 1, #cells do
    local cell = cells[i]
    if cell.changed then
      local kind, rule = cell.kind, cell.rule
      local dies = kind.dies_at(rule, cell.state)
      if cell.used then dies = max(dies, kind.dies_at(rule, cell.used.state)) end
      local left = dies - now
      if left > 0 then
        call('SET', cell.key, written(cell), 'PX', text(div_ceil(left, 1000) + 1))
      else
        call('DEL', cell.key)
      end
    end
  end
end
