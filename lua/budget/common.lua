-- What every script about budgets begins with: numbers, the era and the terms of the rules. Behind it come
-- plan.lua, lines.lua and cells.lua, the kinds that the call is about, and what it does.
--
-- KEYS[1]  the record of the era (`core::budget::epoch`), prefix:{budgets}:epoch
-- KEYS[2…] the policy of each rule's limit, prefix:{budgets}:NAME:policy, in the order of the
--          rules; then the budgets of this call, in the same order, each once: cell 1, 2, …
-- ARGV     1 run      the server's run_id, as INFO told this connection
--          2 known    the epoch that the asker knows, 0 if none
--          3 stepped  1: the asker saw the clock step since then
--          4 rules    how many; then for each: kind (a letter), closed (1: wait out a loss),
--                     headroom, cells (how many of the keys), the version that the asker knows
--                     (0: none), and the numbers of its kind
--          then what the script itself wants
-- Reply    that of the script
--
-- The policy holds, beside what `lua/set.lua` and the others write, the regimes of this era
-- (`core::budget::regime`): `mark`, the epoch of the last one; `ruled`, the version that it was last
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

-- The regimes that the policy at `key` remembers, oldest first.
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
local function begin(rule, era, version, mark)
  local all = mark >= era.epoch and regimes(rule.policy) or {}
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
  call('HSET', rule.policy, 'mark', text(mark), 'ruled', text(version),
    'rules', table.concat(lines, ';'))
  return mark
end

-- Whether the rule is the one in force, and in which regime. `ruling`: messages are ruled on.
local function stand(rule, known, era, ruling)
  local s = call('HMGET', rule.policy, 'version', 'paused_until', 'ruled', 'mark')
  local version, mark = tonumber(s[1] or 0) or 0, tonumber(s[4] or 0) or 0
  rule.paused = tonumber(s[2] or 0) or 0
  rule.outdated = version ~= known
  rule.settled = not rule.outdated and (tonumber(s[3] or 0) or 0) == version
  if not era then return end
  if ruling and not rule.outdated and version > 0 and (not rule.settled or mark < era.epoch) then
    mark = begin(rule, era, version, mark)
    rule.settled = true
  end
  rule.mark = max(mark, era.epoch)
end

-- A state when all has come that was granted ahead (`later`, times and units).
local function in_the_end(kind, rule, state, later)
  for i = 1, later and #later.times or 0 do
    state = kind.book(rule, state, later.times[i], later.counts[i])
  end
  return state
end

-- A state of an earlier regime as it counts now (`core::budget::regime::Regimes::carried`). `line`: what was
-- used; `granted`: the latest moment ahead that was granted. Answers it, and such a moment; or `same`: it is
-- of the last regime.
local function carried(rule, kind, line, granted, written)
  rule.past = rule.past or regimes(rule.policy)
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
  local state = line and line.state
  if state and past[from].rule then state = in_the_end(kind, past[from].rule, state, line.later) end
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
