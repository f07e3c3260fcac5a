-- A replica that uses a limit says that it is there, and reads the current policy.
--
-- KEYS[1]  the limit's policy   KEYS[2]  the limit's replicas: a hash with, for each, when it was last seen and the
--          policy in its file; the field without a name holds when it was last swept
-- ARGV     1 replica  its name   2 file   the policy in its file
--          3 shown    microseconds for which a replica counts as present
-- Reply    {now, policy}: `policy` as the hash holds it, names and values in turn; empty if there is none
--
-- Invariant: the policy is not changed. The hash of replicas has a time to live, and its size is bounded.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local MINUTE = 60000000
local shown = tonumber(ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], text(now) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[2], text(math.ceil(shown / 1000)))
-- Replicas that are gone are removed once a minute.
local swept = tonumber(redis.call('HGET', KEYS[2], '') or 0) or 0
if math.abs(now - swept) > MINUTE then
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local seen = tonumber(string.match(all[i + 1], '^%d+') or 0)
    if math.abs(now - seen) > shown then redis.call('HDEL', KEYS[2], all[i]) end
  end
  redis.call('HSET', KEYS[2], '', text(now))
end
return { now, redis.call('HGETALL', KEYS[1]) }
