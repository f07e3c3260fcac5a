-- Freezes a paced limit for every replica: `core::schedule::freeze`.
--
-- KEYS[1]  the limit's hash
-- ARGV     1 length   microseconds from now
--          2 keep     microseconds that the hash must outlive the freeze by
--          3 channel  where all replicas listen
--          4 limit    its name, for the notice
-- Reply    {now, until}: integers
--
-- Invariant: the end of a freeze only moves later. Nothing else of the state changes; without a
-- state only the end is kept, and the lease that follows starts behind its guard.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local before = tonumber(redis.call('HGET', KEYS[1], 'frozen_until') or 0) or 0
local ends = math.max(before, now + tonumber(ARGV[1]))
local text = string.format('%.0f', ends)

redis.call('HSET', KEYS[1], 'frozen_until', text)
local keep = tonumber(ARGV[2]) + ends - now
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', (keep - keep % 1000) / 1000 + 1))
-- A user without the right to this channel still freezes: the next answers tell the others.
redis.pcall('PUBLISH', ARGV[3], 'frozen ' .. ARGV[4] .. ' ' .. text)
return { now, ends }
