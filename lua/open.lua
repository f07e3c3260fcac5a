-- Opens a keyed limit that is closed because the store lost its state: `core::limits::generation`.
--
-- KEYS[1]  the limit's policy
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
-- Reply    now, in microseconds; 0: no replica has declared this limit
--
-- Invariant: only losses up to now are forgiven.

local clock = redis.call('TIME')
local now = string.format('%.0f', tonumber(clock[1]) * 1000000 + tonumber(clock[2]))
if not redis.call('HGET', KEYS[1], 'version') then return 0 end
redis.call('HSET', KEYS[1], 'opened_at', now)
-- Without the right to this channel, replicas see it when their wait is over.
redis.pcall('PUBLISH', ARGV[1], 'opened ' .. ARGV[2])
return tonumber(now)
