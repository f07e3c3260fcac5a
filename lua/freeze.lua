-- Freezes a paced limit for every replica: `core::schedule::freeze`.
--
-- KEYS[1]  the limit's row
-- ARGV     1 length   microseconds from now
--          2 keep     microseconds that the row must outlive the freeze by
--          3 channel  where all replicas listen
--          4 limit    its name, for the notice
-- Reply    {now, until, generation}: integers
--
-- Invariant: the end of a freeze only moves later, and no slot becomes free. A length of 0 only asks for the end: no
-- replica is told. If the clock stepped back, the freeze keeps its remaining length, and `run` is emptied: the lease
-- that follows starts behind its guard. Without a state only the end is kept; the lease that follows starts behind its
-- guard then, too.

local JITTER = 1000
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local h = redis.call('HMGET', KEYS[1], 'frozen_until', 'last', 'generation')
local frozen_until, last = tonumber(h[1] or 0) or 0, tonumber(h[2] or 0) or 0
local generation = tonumber(h[3] or 0) or 0
local function text(x) return string.format('%.0f', x) end

local length = tonumber(ARGV[1])
local stepped = now + JITTER < last
if stepped then
  frozen_until = now + math.max(frozen_until - last, 0)
  generation, last = generation + 1, now
  redis.call('HSET', KEYS[1], 'generation', text(generation), 'run', '')
end
local ends = math.max(frozen_until, now + length)
redis.call('HSET', KEYS[1], 'frozen_until', text(ends), 'last', text(math.max(last, now)))
local keep = tonumber(ARGV[2]) + ends - now
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', (keep - keep % 1000) / 1000 + 1))
if length > 0 or stepped then
  -- A user without the right to this channel still freezes: the other replicas learn of it from their
  -- next answers.
  redis.pcall('PUBLISH', ARGV[3],
    'frozen ' .. ARGV[4] .. ' ' .. text(ends) .. ' ' .. text(now) .. ' ' .. text(generation))
end
return { now, ends, generation }
