-- A replica that uses a limit says that it is there, and reads the current policy.
--
-- KEYS[1]  the limit's policy   KEYS[2]  the limit's replicas: a hash with, for each, when it was last seen and the
--          policy in its file; the field without a name holds when it was last swept, and from when on it is whole
-- ARGV     1 replica  its name   2 file   the policy in its file
--          3 shown    microseconds for which a replica counts as present
--          4 known    the version of the policy that it knows, 0: none
--          5 within   microseconds within which each replica says again that it is there
-- Reply    {now, policy, replicas, same}: `policy` as the hash holds it, names and values in turn; empty if there is
--          none; how many replicas are present, and how many of them have this file; `same` is 0 while that is not
--          known
--
-- Invariant: the policy is not changed. The hash of replicas has a time to live, and its size is bounded. Where the
-- state was lost, no file counts until each replica had time to say that it is there.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local MINUTE = 60000000
local shown = tonumber(ARGV[3])
redis.call('HSET', KEYS[2], ARGV[1], text(now) .. ' ' .. ARGV[2])
redis.call('PEXPIRE', KEYS[2], text(math.ceil(shown / 1000)))
local all = redis.call('HGETALL', KEYS[2])
local swept, whole, replicas, same, gone = 0, 0, 0, 0, {}
for i = 1, #all, 2 do
  local seen, file = string.match(all[i + 1], '^(%d+) ?(.*)$')
  seen = tonumber(seen) or 0
  if all[i] == '' then
    swept, whole = seen, tonumber(file) or 0
  elseif math.abs(now - seen) > shown then
    gone[#gone + 1] = all[i]
  else
    replicas = replicas + 1
    if file == ARGV[2] then same = same + 1 end
  end
end
-- This replica knows a later policy than the store: with the policy the store has lost which replicas are there.
if (tonumber(redis.call('HGET', KEYS[1], 'version')) or 0) < tonumber(ARGV[4]) then
  whole = now + tonumber(ARGV[5])
  redis.call('HSET', KEYS[2], '', text(swept) .. ' ' .. text(whole))
end
-- Until `whole` no file counts. A `whole` further ahead than that wait means that the clock went back: it is ignored.
if now < whole and whole - now <= tonumber(ARGV[5]) then same = 0 end
-- Replicas that are gone are removed once a minute.
if math.abs(now - swept) > MINUTE then
  for _, name in ipairs(gone) do redis.call('HDEL', KEYS[2], name) end
  redis.call('HSET', KEYS[2], '', text(now) .. ' ' .. text(whole))
end
return { now, redis.call('HGETALL', KEYS[1]), replicas, same }
