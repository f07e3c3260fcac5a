-- The beginning of every script about keyed limits: numbers, the generation, the limits under their current
-- policies, and the states of this call. The kinds of the call follow, and then what it does.
--
-- KEYS[1]  the record of the generation (`core::limits::generation`), prefix:{limits}:generation
-- KEYS[2…] the policy of each limit, prefix:{limits}:NAME:policy; then the states of this call,
--          prefix:{limits}:NAME:KEY, in the order of their limits: cell 1, 2, …
--          Beside the state of a `concurrency` or `once` limit lies KEY:waiting: the replicas that wait, since when
-- ARGV     1 run      the server's run_id, as INFO gave it to this connection
--          2 number   3 writes   the generation and the grants that the asker remembers, 0 if none
--          4 stepped  the asker saw the clock step since then; 1: forward, 2: back, 0: it did not
--          5 limits   how many; then for each: kind (a letter), lost_wait (microseconds; -1: forever), the
--                     policy's version that the asker knows (0: none), how many of the states are its
--                     own, and the numbers of its kind
--          then what the script itself wants
-- Reply    that of the script
--
-- Invariant: a state is written only when it was changed, and together with its time to live, rounded up; it
-- ends when it means the same as no state. All numbers are integers below 2^53, so doubles are exact;
-- tostring would cut digits, %.0f does not. TIME is read once.

-- Globals are slow to look up, and a batch does so thousands of times.
local KEYS, ARGV, call, tonumber = KEYS, ARGV, redis.call, tonumber
local format, match, gmatch, find, sub = string.format, string.match, string.gmatch, string.find, string.sub
local max, min = math.max, math.min

local EXACT, UNITS, FULL = 2 ^ 53, 2 ^ 32, math.huge
local GUARD = 2000000
-- The reported quota of a downstream counts for no longer than this: `core::limits::rule::Quota`.
local LEFT_MAX = 24 * 3600 * 1000000
-- No more is owed than a limit allows in two years: `core::limits::owed`.
local MEMORY_MAX = 2 * 366 * 24 * 3600 * 1000000
-- The clock may have gone back by this much unnoticed: for a refund that time counts as passed.
local UNNOTICED = 1000
-- A policy's version below this is in milliseconds (a first version), otherwise in microseconds
-- (`core::version::PolicyVersion::since`).
local FIRST_END = 100000000000000
-- Longer than anything that counts.
local GENERATION_KEPT = 1100 * 24 * 3600 * 1000
local PAUSED, GUARDED, LOST = 0, 1, 2
local FORWARD, BACK = 1, 2
local FIELDS = { 'number', 'run', 'writes', 'guard_until', 'lost_at', 'back_at', 'is_new' }

local function div(x, y) return (x - x % y) / y end
local function div_ceil(x, y) return div(x + y - 1, y) end
local function text(x) return format('%.0f', x) end

-- Digits (that a pattern found) as a number, if they are exact.
local function number(digits)
  local value = digits and tonumber(digits)
  return value and value < EXACT and value or nil
end
-- Two numbers behind a bar, and where they end.
local function pair(value, bar)
  local first, second, behind = match(value, '^|(%d+) (%d+)()', bar)
  return number(first), number(second), behind
end
-- A field of a hash as a number: 0 if it is missing.
local function field(value) return number(match(value or '0', '^%d+$')) end

local at = 0
local function argument()
  at = at + 1
  return ARGV[at]
end
local function numeric()
  at = at + 1
  return tonumber(ARGV[at])
end

local clock = call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local run = argument()
local known = { number = numeric(), writes = numeric(), stepped = numeric() }
local generation
local kinds, limits, cells = {}, {}, {}

local function read_generation()
  local h = call('HMGET', KEYS[1], unpack(FIELDS))
  local g = { number = h[1] and field(h[1]), run = h[2] or '', writes = field(h[3]),
    guard_until = field(h[4]), lost_at = field(h[5]), back_at = field(h[6]), is_new = h[7] == '1' }
  return g.number and g.writes and g.guard_until and g.lost_at and g.back_at and g or nil
end

-- The generation that this question falls into (`generation::enter`), and whether that is news.
local function entered()
  local g = read_generation()
  if not g then
    local lost = known.number > 0
    return { number = max(known.number + 1, div(now, 1000)), run = run, writes = known.writes,
      guard_until = lost and 0 or now + GUARD, lost_at = lost and now or 0, back_at = 0, is_new = not lost }, true
  end
  local stepped = known.number == g.number and known.stepped or 0
  local following = max(max(g.number, known.number) + 1, div(now, 1000))
  if known.number > g.number or known.number == g.number and known.writes > g.writes
    or g.is_new and known.number > 0 and known.number < g.number
    or stepped == FORWARD
  then
    return { number = following, run = run, writes = max(g.writes, known.writes), guard_until = 0,
      lost_at = now, back_at = 0, is_new = false }, true
  end
  local news = g.run ~= run or g.guard_until > now + GUARD or max(g.lost_at, g.back_at) > now
    or stepped == BACK
  if stepped == BACK then g.number, g.back_at, g.is_new = following, now, false end
  if g.run ~= run then g.run, g.guard_until = run, now + GUARD end
  g.guard_until = min(g.guard_until, now + GUARD)
  g.lost_at, g.back_at = min(g.lost_at, now), min(g.back_at, now)
  return g, news
end

-- Enters the generation; `keep`: and keeps its record, even if nothing is new.
local function enter(keep)
  local news
  generation, news = entered()
  if news then
    local g = generation
    call('HSET', KEYS[1], 'number', text(g.number), 'run', g.run, 'writes', text(g.writes),
      'guard_until', text(g.guard_until), 'lost_at', text(g.lost_at), 'back_at', text(g.back_at),
      'is_new', g.is_new and '1' or '0')
  end
  if news or keep then call('PEXPIRE', KEYS[1], text(GENERATION_KEPT)) end
end

-- The limits and cells of the call. Nothing of them is read yet.
local function declare()
  local count, first = numeric(), 0
  for i = 1, count do
    local kind = kinds[argument()]
    local limit = { kind = kind, policy = KEYS[i + 1], wait = numeric(), version = numeric() }
    local own = numeric()
    limit.rule = kind.rule(numeric)
    limits[i] = limit
    for n = first + 1, first + own do
      cells[n] = { limit = limit, kind = kind, rule = limit.rule, key = KEYS[count + 1 + n] }
    end
    first = first + own
  end
end

-- From when on nothing counts that was taken up to then (`Rule::forgotten_at`).
local function forgotten_at(limit, since)
  local own = limit.kind.forgotten_at
  return own and own(limit.rule, since) or since + limit.kind.span(limit.rule)
end

-- Whether the limit may be asked (`cell::LimitAccess`): `outdated`, or closed `opens_at` and `why`.
local function gate(limit)
  if limit.opens_at then return end
  local policy = call('HMGET', limit.policy, 'version', 'paused_until', 'opened_at', 'remade_at')
  limit.outdated = (field(policy[1]) or 0) ~= limit.version
  limit.opens_at, limit.why = field(policy[2]) or 0, PAUSED
  local opened_at = field(policy[3]) or 0
  -- A change of its kind is a loss for the limit.
  local lost_at = max(generation.lost_at, field(policy[4]) or 0)
  -- Windows come again when the clock went back. Everything else only counts for longer.
  if limit.kind == kinds.w then lost_at = max(lost_at, generation.back_at) end
  local opens_at, why = 0, LOST
  if limit.wait == 0 then
    -- An operator chose not to wait.
  elseif generation.guard_until > now then
    opens_at, why = generation.guard_until, GUARDED
  elseif lost_at > 0 and (opened_at < lost_at or opened_at > now) then
    -- Opened later than now: the clock went back, and that was of another loss.
    opens_at = forgotten_at(limit, lost_at)
    if limit.wait >= 0 then opens_at = min(opens_at, lost_at + limit.wait) end
  end
  if opens_at > max(limit.opens_at, now) then limit.opens_at, limit.why = opens_at, why end
end

-- From when on nothing that was taken counts (`Rule::back_at`).
local function back_at(cell) return (cell.kind.back_at or cell.kind.expires_at)(cell.rule, cell.taken) end

-- So many of the units that a state says are owed count (`Rule::counted`).
local function counted(cell, units)
  local most, span = cell.rule.most, max(cell.kind.span(cell.rule), 1)
  return min(units, most * max(div(MEMORY_MAX, span), 1), UNITS - 1)
end

-- From when on the limit is full again, so that what comes back pays the debt (`Rule::idle_from`).
local function idle_from(cell) return max(back_at(cell), cell.owed_from) end

-- Units that are owed now (`Rule::owed`).
local function owed(cell)
  if not cell.owed then return 0 end
  local span = max(cell.kind.span(cell.rule), 1)
  local paid = div(max(now - idle_from(cell), 0), span) * cell.rule.most
  return max(counted(cell, cell.owed) - paid, 0)
end

-- When a cost fits together with what is owed, if that is more than the limit ever holds (`Rule::fit_behind_debt`).
local function fit_behind_debt(cell, cost)
  local most, span = cell.rule.most, max(cell.kind.span(cell.rule), 1)
  local beyond = max(cost + counted(cell, cell.owed) - most, 0)
  return idle_from(cell) + div_ceil(beyond, most) * span
end

-- From when on nothing is owed if nothing else is taken (`Rule::paid_at`).
local function paid_at(cell) return cell.owed and fit_behind_debt(cell, cell.rule.most) or 0 end

-- Reads what was taken of a cell, once (`record::read`, `Cell::of`). A text that cannot be read is no state.
local function look(cell)
  if cell.read then return end
  cell.read, cell.next_return = true, 0
  local value = call('GET', cell.key)
  if not value then return end
  local next_return, spacing, left, ends, units, from = 0, 0, 0, 0, 0, 0
  local bar = find(value, '|', 1, true)
  if bar then
    local behind
    next_return, spacing, behind = pair(value, bar)
    if not (next_return and spacing) then return end
    if behind <= #value then left, ends, behind = pair(value, behind) end
    if not (left and ends) then return end
    if behind <= #value then units, from, behind = pair(value, behind) end
    if not (units and from) or behind <= #value then return end
    value = sub(value, 1, bar - 1)
  end
  local taken, ahead = cell.kind.load(cell.rule, value)
  cell.taken = taken
  -- Under a rule with another spacing the next return does not count.
  if taken and spacing == cell.kind.spacing(cell.rule, 1) then cell.next_return = next_return end
  -- The quota that the downstream reported, while it counts. Further ahead than it can be: the clock went
  -- back.
  if taken and ends > now and ends <= now + LEFT_MAX then cell.left, cell.left_until = left, ends end
  -- Units that calls used beyond their cost, unless they were paid meanwhile.
  if taken and units > 0 then
    cell.owed, cell.owed_from = units, from
    if owed(cell) == 0 then cell.owed = nil end
    -- Further ahead than a span: the clock went back.
    cell.owed_from = min(from, now + cell.kind.span(cell.rule))
  end
  -- The clock went back: what was taken counts from now on, and that is written.
  if ahead then cell.next_return, cell.changed = 0, true end
end

-- The text of a state (`record::write`).
local function written(cell)
  local taken = cell.kind.save(cell.taken)
  if cell.next_return > now then
    taken = taken .. '|' .. text(cell.next_return) .. ' ' .. text(cell.kind.spacing(cell.rule, 1))
  elseif cell.left or cell.owed then
    taken = taken .. '|0 0'
  end
  if cell.left then
    taken = taken .. '|' .. text(cell.left) .. ' ' .. text(cell.left_until)
  elseif cell.owed then
    taken = taken .. '|0 0'
  end
  if not cell.owed then return taken end
  return taken .. '|' .. text(cell.owed) .. ' ' .. text(cell.owed_from)
end

-- When a cost fits (`Rule::fit`), with the debt; the quota that the downstream reported must hold it, too.
local function fit(cell, cost)
  local all, at = cost + owed(cell), nil
  if cell.owed and all > cell.rule.most then
    at = fit_behind_debt(cell, cost)
  else
    at = cell.kind.fit(cell.rule, cell.taken, all)
  end
  if at ~= FULL and cell.left and cost > cell.left then at = max(at, cell.left_until) end
  return at
end

-- What is left, and when all of it is back (`Rule::room`).
local function room(cell)
  local remaining, reset_at = cell.kind.room(cell.rule, cell.taken)
  if cell.owed then remaining, reset_at = max(remaining - owed(cell), 0), max(reset_at, paid_at(cell)) end
  if not cell.left or cell.left >= remaining then return remaining, reset_at end
  return cell.left, max(reset_at, cell.left_until)
end

-- Takes a cost together with the debt (`Rule::take`).
local function take(cell, cost, ticket)
  cell.taken = cell.kind.take(cell.rule, cell.taken, cost + owed(cell), ticket)
  cell.owed, cell.changed = nil, true
end

-- Takes back units that were granted then, asked for this long ago by the asker's clock, and not used (`cell::refund`).
-- Returns whether it did.
local function take_back(cell, granted_at, units, age)
  local limit = cell.limit
  local since = limit.version < FIRST_END and limit.version * 1000 or limit.version
  if limit.outdated or granted_at < max(since, generation.lost_at) then return false end
  look(cell)
  local refund = cell.kind.refund
  local passed = max(now - granted_at, age) + UNNOTICED
  local taken = cell.taken and refund and refund(cell.rule, cell.taken, granted_at, units, passed)
  if not taken then return false end
  cell.taken, cell.changed = taken, true
  return true
end

local function save()
  for i = 1, #cells do
    local cell = cells[i]
    if cell.changed then
      local dies = max(cell.kind.expires_at(cell.rule, cell.taken), cell.left_until or 0, paid_at(cell))
      local left = dies - now
      if left > 0 then
        call('SET', cell.key, written(cell), 'PX', text(div_ceil(left, 1000)))
      else
        call('DEL', cell.key)
      end
    end
  end
end
