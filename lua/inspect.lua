-- Reads the state of a limit, and changes nothing.
--
-- KEYS     1 the limit's policy   2 its replicas   then its rows, if it is paced
-- ARGV     none
-- Reply    {now, policy, replicas, frozen_until}: `policy` as the hash holds it, names and values in
--          turn; `replicas` as their hash holds them; `frozen_until` of the row that is frozen
--          longest, 0 if none is
--
-- Invariant: writes nothing.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local frozen_until = 0
for i = 3, #KEYS do
  frozen_until = math.max(frozen_until, tonumber(redis.call('HGET', KEYS[i], 'frozen_until') or 0) or 0)
end
return { now, redis.call('HGETALL', KEYS[1]),
  redis.call('HGETALL', KEYS[2]), frozen_until > now and frozen_until or 0 }
