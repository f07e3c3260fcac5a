-- A replica reports to a downstream's breaker or asks for its status: `core::breaker::report`.
--
-- KEYS[1]  the breaker of a route: a hash
-- ARGV     1 channel  where all replicas listen   2 route  its name, for the notice
--          3 report   failed, passed, probe or look
--          4 known    the version that the replica knows
--          5 pause    microseconds of the first pause   6 longest  of any pause
--          7 probe    microseconds after which a probe has ended
--          8 why      what the call showed that failed; empty for other reports
-- Reply    {now, version, until, may_probe, changed, why}: integers and a text; until 0: closed
--
-- Invariant: only one replica at a time probes, and a report of an older version changes nothing.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end
local report, known = ARGV[3], tonumber(ARGV[4])
local pause, longest, probe = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local function pause_of(pauses)
  if pauses == 0 then return 0 end
  return math.min(pause * 2 ^ math.min(pauses - 1, 40), longest)
end

local h = redis.call('HMGET', KEYS[1], 'version', 'until', 'pauses', 'probing', 'why')
local version, ends = tonumber(h[1] or 0) or 0, tonumber(h[2] or 0) or 0
local pauses, probing = tonumber(h[3] or 0) or 0, tonumber(h[4] or 0) or 0
local why = h[5] or ''

-- A pause never lasts longer than its length, whatever the clock did.
local bound = now + math.max(pause_of(pauses), probe)
ends, probing = math.min(ends, bound), math.min(probing, bound)

local changed = false
if known >= version then
  if report == 'failed' then
    pauses, changed = pauses + 1, true
    ends, why = now + pause_of(pauses), ARGV[8]
  elseif report == 'passed' and ends > 0 then
    ends, pauses, why, changed = 0, 0, '', true
  end
end
if changed then version, probing = known + 1, 0 end
local may_probe = report == 'probe' and ends > 0 and ends <= now and probing <= now
if may_probe then probing = now + probe end

if changed or may_probe then
  redis.call('HSET', KEYS[1], 'version', text(version), 'until', text(ends), 'pauses', text(pauses),
    'probing', text(probing), 'why', why)
  -- The breaker of a route that is gone leaves nothing behind.
  redis.call('PEXPIRE', KEYS[1], text(math.ceil((longest + probe) / 1000) + 86400000))
end
-- A user without the right to this channel still opens and closes the breaker: the other replicas learn of it when
-- their own calls fail, or when their pause is over.
if changed then redis.pcall('PUBLISH', ARGV[1], 'breaker ' .. ARGV[2]) end
if ends > 0 then ends = math.max(ends, probing) end
return { now, version, ends, may_probe and 1 or 0, changed and 1 or 0, why }
