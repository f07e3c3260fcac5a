-- Leases slots of a paced limit: `core::schedule::lease`, line by line, under its policy (`core::policy::lease_under`).
--
-- KEYS[1]  the limit's row   KEYS[2]  the limit's policy, which replace.lua writes
-- ARGV     1 units   2 period   3 horizon   4 headroom   5 batch   (the pace; microseconds, units)
--          6 run     the server's run_id, as INFO gave it to this connection
--          7 want    units wanted; 0 only reads the clock and the freeze
--          8 turn    the turn of the last answer, or -1   9 share   10 slip   (of that turn)
--         11 lead    the first slot is not before now plus this
--         12 clock_view  young, steady or stepped: what the replica knows of the clock
--         13 generation   the generation that this belongs to
--         14 predicted    the store's time as the replica predicts it
--         15 version      the version of the policy that the pace is from; 0: none is known
--         16… sums     what the first messages take: the first, the first two, and so on; none: any number
-- Reply    {now, generation, first, rem, count, turn, share, slip, frozen_until, guarded, version, paused_until}:
--          integers; count 0: no grant, turn 0: none, frozen_until 0: not frozen, guarded 1: started behind the
--          guard, version: that of the current policy, paused_until 0: no operator paused it
--
-- Invariant: any units+1 consecutive slots that were ever granted span `period` or more, and no slot
-- lies further ahead than the horizon. A grant is for whole messages, as far as their sums are given.
-- A replica that does not know the current version gets no slots, and while the limit is paused no
-- replica gets any. An ask that changes nothing writes nothing, not even the time to live: after that
-- time without a write no slot of this row matters.
-- All numbers are integers below 2^53, so doubles are exact; tostring would cut digits, %.0f does not.

local GUARD_SLACK, STEP_TOLERANCE, JITTER, INTERVAL_TRUSTED = 1000, 100000, 1000, 1000000
local CYCLE, LINE_MAX, DAY = 1000000, 60000000, 86400000000
local FAR_APART = LINE_MAX / 16
local SHORTER_MAX = 250000

local function div(x, y) return (x - x % y) / y end
local function div_ceil(x, y) return div(x + y - 1, y) end

local units, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local horizon, headroom, batch = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local run, want = ARGV[6], tonumber(ARGV[7])
local turn, turn_share, turn_slip = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local lead, clock_view = tonumber(ARGV[11]), ARGV[12]
local asker_generation, predicted = tonumber(ARGV[13]), tonumber(ARGV[14])
local known_version = tonumber(ARGV[15])
local sums = {}
for i = 16, #ARGV do sums[#sums + 1] = tonumber(ARGV[i]) end

-- The largest number up to so many units that is for whole messages.
local function for_whole(units)
  local most = 0
  for _, sum in ipairs(sums) do
    if sum > units then return most end
    most = sum
  end
  return units
end
-- The cost of the first message that `units` slots do not cover; 1 if they cover all, or the costs are not known.
local function following(units)
  for _, sum in ipairs(sums) do
    if sum > units then return sum - units end
  end
  return 1
end

local interval = div_ceil(period, units)
local function guard_beyond(reach) return reach + headroom + interval + GUARD_SLACK end
local distrust = horizon + headroom + math.min(interval, INTERVAL_TRUSTED) + GUARD_SLACK

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local policy = redis.call('HMGET', KEYS[2], 'version', 'paused_until')
local version, paused_until = tonumber(policy[1]) or 0, tonumber(policy[2]) or 0
if version ~= known_version or paused_until > now then want = 0 end

local FIELDS = { 'next', 'rem', 'line', 'front', 'slip', 'frozen_until',
  'units', 'period', 'horizon', 'last', 'generation' }
local h = redis.call('HMGET', KEYS[1], 'run', unpack(FIELDS))
-- A state with missing parts is a lost state, except for what may still be known of the clock and
-- of a freeze.
local s, whole = {}, true
for i, name in ipairs(FIELDS) do
  s[name] = tonumber(h[i + 1])
  whole = whole and s[name]
  s[name] = s[name] or 0
end

-- What the replica knows of the clock of this generation.
local known = clock_view ~= 'young' and asker_generation == s.generation
local stepped = now + JITTER < s.last
  or known and (clock_view == 'stepped' or predicted > now + STEP_TOLERANCE)

local changed, guarded = false, false
if not whole or h[1] ~= run or stepped then
  local reach = math.max(horizon, s.horizon)
  local left = math.max(s.frozen_until - math.max(known and predicted or now, s.last), 0)
  s.next = now + guard_beyond(reach)
  s.rem, s.line, s.front, s.slip = 0, s.next, 0, 0
  s.frozen_until = left > 0 and now + left or 0
  s.units, s.period, s.horizon = units, period, reach
  s.generation = math.max(now, math.max(s.generation, asker_generation) + 1)
  s.last = now
  known, changed, guarded = false, true, true
end
local trusted = known and clock_view == 'steady' and now <= predicted + STEP_TOLERANCE

-- After a change of the rate the first new slot keeps its new distance to the last old one, which is no
-- further away than the horizon reached at the last write. If the headroom became shorter, it is later by as
-- much: a call of the old row may still be as late as the old headroom allowed.
local function same_rate() return s.units == units and s.period == period end
local function free_slot()
  if same_rate() then return s.next, s.rem end
  local shorter = math.min(math.max(s.period - period, 0), SHORTER_MAX)
  return math.min(s.next, s.last + s.horizon) + interval + shorter, 0
end

local free, rem = free_slot()
local early = math.min(lead, div(horizon, 2))
local first = math.max(free, now + early, s.frozen_until)
if first > free then rem = 0 end

-- Any replica may take slots in the nearer half of the horizon. A replica whose turn has come may take its share
-- anywhere within the horizon. It may take more than its share if no replica waits behind it, or if the replica before
-- it has not come.
local function within(reach)
  if first > reach then return 0 end
  return div((reach - first + 1) * units - 1 - rem, period) + 1
end
local count = 0
if trusted then
  local kept = 0
  if turn >= 0 and turn <= now then
    kept = math.min(turn_share, batch)
    local ends = first + div_ceil(rem + kept * period, units)
    if s.line <= ends or within(now + horizon - div(horizon, 8)) > kept then kept = batch end
  end
  count = math.max(math.min(kept, within(now + horizon)), within(now + div(horizon, 2)))
  count = for_whole(math.min(count, batch, want))
end
if count > 0 then
  local taken = rem + count * period
  s.next, s.rem = first + div(taken, units), taken % units
  if not same_rate() then
    s.line = math.min(s.line, s.next + CYCLE)
    s.front = math.min(s.front, s.line)
  end
  s.units, s.period, s.horizon = units, period, math.max(s.horizon, horizon)
  s.last = math.max(s.last, now)
  if s.frozen_until <= now then s.frozen_until = 0 end
  changed = true
end

local function dither(place) return div(place % 65536 * 40503 % 65536 * CYCLE, 65536) end

-- A replica that wants more than it got receives a turn.
local left, answer, share, slip = want - count, 0, 0, 0
if left > 0 then
  local old = turn >= 0 and count == 0 and known
  if old and turn > now then
    answer, share, slip = turn, turn_share, turn_slip
  else
    local base = math.max(now, s.frozen_until)
    local line_max = base + horizon + (same_rate() and LINE_MAX or CYCLE)
    local free = free_slot()
    local tail = math.max(math.min(s.line, line_max), free, base)
    -- A replica that comes at its turn and finds nothing was overtaken: it goes before the line.
    local overtaken = old and s.frozen_until <= now
    local start = tail
    if overtaken then
      start, share = math.max(math.min(s.front, line_max), free, base), turn_share
    else
      local wait = math.max(tail - (base + horizon), 0)
      -- Cut without a pattern: otherwise the same replicas would get the larger shares in every round.
      share = div(batch * math.max(CYCLE - wait, 0) + dither(tail), CYCLE)
    end
    -- The first slot of the share must still be far enough ahead when the replica comes a little after
    -- its turn. Otherwise the row would stand still for as long.
    local fits = div((horizon - early - div(horizon, 8)) * units, period)
    share = for_whole(count + math.min(share, left, batch, fits)) - count
    share = math.max(share, math.min(following(count), left))
    local ends = start + div_ceil(share * period, units)
    local last = start + div_ceil((share - 1) * period, units)
    if overtaken then
      local slipped = turn_slip + math.max(last - (now + horizon), 0)
      s.front = math.min(ends, line_max)
      s.line = math.min(tail + math.max(slipped - s.slip, 0), line_max)
      s.slip = math.max(s.slip, slipped)
      -- A replica that is overtaken again counts the same slip, not another one.
      slip = turn_slip
    else
      s.line = math.min(ends, line_max)
      slip = s.slip
    end
    s.last = math.max(s.last, now)
    local earliest = known and now or now + distrust
    -- Where slots lie far apart, replicas have turns for the same slot: they ask at different times, or the nearest
    -- one would always be the first.
    local scatter = period > units * FAR_APART and div(dither(now) * div(horizon, 4), CYCLE) or 0
    answer = math.max(math.max(last - horizon, 0) + scatter, earliest + 1)
    changed = true
  end
end

if changed then
  local function text(x) return string.format('%.0f', x) end
  local fields = { 'run', run }
  for _, name in ipairs(FIELDS) do
    fields[#fields + 1], fields[#fields + 2] = name, text(s[name])
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  local keep = math.max(DAY, 2 * period + guard_beyond(s.horizon))
    + math.max(0, s.frozen_until - now)
  redis.call('PEXPIRE', KEYS[1], text(div_ceil(keep, 1000)))
end

local function ahead(at) return at > now and at or 0 end
return { now, s.generation, count > 0 and first or 0, count > 0 and rem or 0, count,
  answer, share, slip, ahead(s.frozen_until), guarded and 1 or 0, version, ahead(paused_until) }
