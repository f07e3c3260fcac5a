-- The cells of a call: what is known of its budgets, and how that is written down. Behind lines.lua.
--
-- KEYS, ARGV, reply   see common.lua
--
-- Invariant: a budget is only written when it was changed, and together with its time to live.

-- What is known of a cell (`core::budget::record`): `state` and `gaps`, all that is booked; `planned`, whether
-- that is a plan; `ahead`, whether what is used is told apart; `used`, that; and `granted`, the latest moment
-- ahead that was granted.
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
      if not taken or taken.planned then return end
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
    local state, ahead, same = carried(rule, kind, taken, granted, written)
    if not same then
      cell.state = state
      if state and ahead > 0 then
        cell.ahead, cell.used, cell.granted = true, { state = state, gaps = NONE }, ahead
      end
      return
    end
  end
  if line.planned and not rule.plan then
    -- The rule needs no plan: what was used counts.
    line = taken
    if not line then return end
  end
  cell.state, cell.planned = line.state, line.planned
  if bar then
    if taken and taken.later then taken = catch_up(cell, taken) end
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
    rule.letter, rule.policy = letter, KEYS[i + 1]
    rule.numbers = table.concat(ARGV, ' ', first, first + kind.width - 1)
    rule.headroom, rule.blind = headroom, 0
    rule.usable = headroom - math.floor(headroom / 8)
    rule.room = kind.has_gaps and kind.has_gaps(rule) and GAPS or 0
    if kind.pattern then keep_to(rule, kind.pattern(rule)) end
    -- What was used of it only moves forward.
    rule.in_order = rule.plan and letter ~= 'l'
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

-- Whether nothing is booked beside what was used.
local function is_all(cell, all, taken)
  local kind, own = cell.kind, taken.state
  if not all.planned then
    -- As it is if all that was granted is used.
    local expected = kind.expected or function(state) return state end
    return kind.save(expected(all.state)) == kind.save(expected(own))
  end
  local times, counts = all.state.times, all.state.counts
  if #times == 0 then return true end
  if kind.letter ~= 'l' then return false end
  -- What does not count any more is forgotten in the plan at once.
  local before = #own.times - #times
  if before < own.first - 1 then return false end
  for i = #times, 1, -1 do
    if times[i] ~= own.times[before + i] or counts[i] ~= own.counts[before + i] then return false end
  end
  return true
end

-- All that is booked, and what of it is used: told apart only where they differ, or have gaps, or something
-- was granted for a moment that is still ahead.
local function part(cell, all, taken, granted)
  if not granted or granted <= now then granted = 0 end
  cell.changed, cell.granted = true, granted
  if taken and granted == 0 and #all.gaps == 0 and #taken.gaps == 0 and not taken.later
    and is_all(cell, all, taken)
  then
    cell.state, cell.gaps, cell.used, cell.ahead, cell.planned = taken.state, NONE, nil, false, false
    return
  end
  cell.state, cell.gaps, cell.planned = all.state, all.gaps, all.planned
  cell.used, cell.ahead = taken, true
end

-- How a cell stands: what remains, and how long until it is whole again.
local function standing(cell)
  local kind, rule = cell.kind, cell.rule
  if not cell.state and rule.blind > now then return 0, rule.blind - now end
  if cell.planned then
    -- What is planned is not all that keeps others away.
    local taken = used(cell)
    local spent, later = taken.state, taken.later
    -- As if all had been used now that was granted ahead: what it has left others may have.
    for i = 1, later and #later.times or 0 do spent = kind.book(rule, spent, now, later.counts[i]) end
    local remaining = kind.usage(rule, spent, now)
    local _, reset = kind.usage(rule, in_the_end(kind, rule, taken.state, later), now)
    local free, ends = plans.usage(rule, cell.state)
    return min(remaining, free), max(reset, ends)
  end
  local remaining, reset = kind.usage(rule, cell.state, now)
  -- Before a place far ahead there may be room.
  local gaps = cell.gaps or NONE
  for i = 1, #gaps do
    if gaps[i].to > now then return (kind.usage(rule, gaps[i].before, now)), reset end
  end
  return remaining, reset
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
  if line.planned then return plans.save(line.state) end
  if line.later then return kind.save(line.state) .. '>' .. sub(plans.save(line.later), 2) end
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
      local dies = (cell.planned and plans or kind).dies_at(rule, cell.state)
      if cell.used then
        dies = max(dies, kind.dies_at(rule, in_the_end(kind, rule, cell.used.state, cell.used.later)))
      end
      local left = dies - now
      if left > 0 then
        call('SET', cell.key, written(cell), 'PX', text(div_ceil(left, 1000) + 1))
      else
        call('DEL', cell.key)
      end
    end
  end
end
