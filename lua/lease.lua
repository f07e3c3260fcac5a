-- Leases slots of a paced limit: `core::schedule::lease`, line by line.
--
-- KEYS[1]  the limit's hash
-- ARGV     1 units   2 period   3 horizon   4 headroom   5 batch   (the pace; microseconds, units)
--          6 run     the server's run_id, as INFO told this connection
--          7 want    units wanted; 0 only reads the clock and the freeze
--          8 turn    the turn of the last answer, or -1
--          9 predicted   the store's time as the replica predicts it, or -1
--         10 lead    the first slot is not before now plus this
--         11 fence   1: the replica saw the clock step
-- Reply    {now, first, rem, count, turn, frozen_until, guarded}: integers; count 0: no grant,
--          turn 0: none, frozen_until 0: not frozen, guarded 1: started behind the guard
--
-- Invariant: any units+1 consecutive slots that were ever granted span `period` or more, and no
-- slot lies further ahead than the horizon. An ask that changes nothing writes nothing, not even
-- the time to live: after that time without a write no slot of this hash can matter any more.
-- All numbers are integers below 2^53, so doubles are exact; tostring would cut digits, %.0f does not.

local GUARD_SLACK, STEP_TOLERANCE = 1000, 100000
local CYCLE, LINE_MAX, DAY = 1000000, 60000000, 86400000000

local function div(x, y) return (x - x % y) / y end
local function div_ceil(x, y) return div(x + y - 1, y) end

local units, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local horizon, headroom, batch = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local run, want, turn = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local predicted, lead, fence = tonumber(ARGV[9]), tonumber(ARGV[10]), ARGV[11] == '1'

local interval = div_ceil(period, units)
local function guard_beyond(reach) return reach + headroom + interval + GUARD_SLACK end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])

local h = redis.call('HMGET', KEYS[1],
  'next', 'rem', 'line', 'frozen_until', 'units', 'period', 'horizon', 'run')
local s = {
  next = tonumber(h[1]), rem = tonumber(h[2]), line = tonumber(h[3]),
  frozen_until = tonumber(h[4]) or 0,
  units = tonumber(h[5]), period = tonumber(h[6]), horizon = tonumber(h[7]),
}
-- A part of a state is a lost state.
local whole = s.next and s.rem and s.line and tonumber(h[4]) and s.units and s.period and s.horizon
local changed, guarded = false, false

if not whole or h[8] ~= run then
  local reach = math.max(horizon, s.horizon or 0)
  s.next = now + guard_beyond(reach)
  s.rem, s.line = 0, s.next
  s.units, s.period, s.horizon = units, period, reach
  changed, guarded = true, true
end

-- The clock stepped: somebody saw it, or the next slot lies where no grant could have reached.
if not guarded then
  local guard = guard_beyond(math.max(horizon, s.horizon))
  local expected = predicted >= 0 and predicted or now
  if fence or math.abs(now - expected) > STEP_TOLERANCE or s.next > now + guard then
    if s.next > now + guard and s.frozen_until > now then
      local left = math.max(0, s.frozen_until - s.next) + math.max(horizon, s.horizon)
      s.frozen_until = math.min(s.frozen_until, now + left)
    end
    s.next = now + guard
    s.rem, s.line = 0, s.next
    changed, guarded = true, true
  end
end

-- After a change of the rate the first new slot keeps its new distance.
local function free_slot()
  if s.units == units and s.period == period then return s.next, s.rem end
  return s.next + interval, 0
end

local free, rem = free_slot()
local first = math.max(free, now + math.min(lead, div(horizon, 2)), s.frozen_until)
if first > free then rem = 0 end
local reach = now + horizon
if turn < 0 or turn > now then reach = now + div(horizon, 2) end

local count = 0
if predicted >= 0 and first <= reach then
  count = math.min(div((reach - first + 1) * units - 1 - rem, period) + 1, want, batch)
end
if count > 0 then
  local taken = rem + count * period
  s.next, s.rem = first + div(taken, units), taken % units
  s.units, s.period, s.horizon = units, period, horizon
  if s.frozen_until <= now then s.frozen_until = 0 end
  changed = true
end

-- Who wants more than it got is told its turn.
local left, answer = want - count, 0
if left > 0 then
  if count == 0 and not guarded and turn > now then
    answer = turn
  else
    local base = math.max(now, s.frozen_until)
    local line_max = base + horizon + LINE_MAX
    local start = math.max(math.min(s.line, line_max), free_slot(), base)
    local wait = math.max(start - (base + horizon), 0)
    local share = div(batch * math.max(CYCLE - wait, 0), CYCLE)
    share = math.max(1, math.min(share, left, batch))
    s.line = math.min(start + div(share * period, units), line_max)
    local last = start + div_ceil((share - 1) * period, units)
    local earliest = predicted >= 0 and now or now + horizon
    answer = math.max(last - horizon, earliest + 1)
    changed = true
  end
end

if changed then
  local function text(x) return string.format('%.0f', x) end
  redis.call('HSET', KEYS[1],
    'next', text(s.next), 'rem', text(s.rem), 'line', text(s.line),
    'frozen_until', text(s.frozen_until), 'units', text(s.units), 'period', text(s.period),
    'horizon', text(s.horizon), 'run', run)
  local keep = math.max(DAY, 2 * period + guard_beyond(s.horizon))
    + math.max(0, s.frozen_until - now)
  redis.call('PEXPIRE', KEYS[1], text(div_ceil(keep, 1000)))
end

return { now, count > 0 and first or 0, count > 0 and rem or 0, count, answer,
  s.frozen_until > now and s.frozen_until or 0, guarded and 1 or 0 }
