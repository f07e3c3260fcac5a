-- Replaces the policy of a limit, unless another update came first. `core::policy` decides what the new one is.
--
-- KEYS     1 the limit's policy: a hash without a time to live, because an operator's update must stay
--          then the limit's rows, if a freeze ends too (`core::schedule::thaw`)
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 over     the version that the new policy was made from; 0: there was none
--          then the policy: names and values in turn, beginning with `version`; a value that begins with `+` is a
--          time: this many microseconds from now
-- Reply    {done, was, version}: done 0: the version is another one, and nothing was changed; was 1: a row was frozen
--
-- Invariant: a policy is replaced only by one that was made from it, and a new one says the time of this call: all
-- that was granted under the old one was granted before. No leased slot becomes free. Nothing is written to a row that
-- is not frozen, so this never creates a key without a time to live.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local version = tonumber(redis.call('HGET', KEYS[1], 'version') or 0)
if version ~= tonumber(ARGV[3]) then return { 0, 0, version } end

local was = 0
for i = 2, #KEYS do
  local h = redis.call('HMGET', KEYS[i], 'frozen_until', 'next', 'line', 'front')
  if (tonumber(h[1]) or 0) > now then
    was = 1
    -- Replicas that waited for the end of the freeze ask again now, and the line starts again.
    local line = math.min(tonumber(h[3]) or 0, math.max(tonumber(h[2]) or 0, now))
    redis.call('HSET', KEYS[i], 'frozen_until', '0')
    if h[3] then
      redis.call('HSET', KEYS[i], 'line', text(line),
        'front', text(math.min(tonumber(h[4]) or 0, line)))
    end
  end
end
-- Versions only rise, also where the clock went back.
local fields = {}
for i = 4, #ARGV do
  local ahead = string.match(ARGV[i], '^%+(%d+)$')
  fields[#fields + 1] = i % 2 == 1 and ahead and text(math.max(now + tonumber(ahead), version + 1)) or ARGV[i]
end
redis.call('HSET', KEYS[1], unpack(fields))
-- A user without the right to this channel still updates: the other replicas learn of it from their next answers.
redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. fields[2])
return { 1, was, tonumber(fields[2]) }
