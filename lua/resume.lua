-- An operator ends the pause of a limit, and a freeze that a downstream asked for:
-- `core::policy::resume`, and `core::schedule::thaw` for each row.
--
-- KEYS     1 the limit's policy, then its rows, if it is paced
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 by       the operator
-- Reply    {version, updates, was}: integers; was 1: it was paused or frozen; version 0: no replica
--          has declared this limit
--
-- Invariant: versions only rise, and each names one state of the policy. No leased slot becomes free.
-- Nothing is written to a row that is not frozen, so this never creates a key without a time to live.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local s = redis.call('HMGET', KEYS[1], 'version', 'updates', 'paused_until')
local version, updates = tonumber(s[1]) or 0, tonumber(s[2]) or 0
if version == 0 then return { 0, 0, 0 } end
local was = (tonumber(s[3]) or 0) > now

for i = 2, #KEYS do
  local h = redis.call('HMGET', KEYS[i], 'frozen_until', 'next', 'line', 'front')
  if (tonumber(h[1]) or 0) > now then
    was = true
    -- Replicas that waited for the end of the freeze ask again now, and the line starts again.
    local line = math.min(tonumber(h[3]) or 0, math.max(tonumber(h[2]) or 0, now))
    redis.call('HSET', KEYS[i], 'frozen_until', '0')
    if h[3] then
      redis.call('HSET', KEYS[i], 'line', text(line),
        'front', text(math.min(tonumber(h[4]) or 0, line)))
    end
  end
end
version, updates = math.max(version + 1, now), updates + 1
redis.call('HSET', KEYS[1], 'version', text(version), 'updates', text(updates),
  'paused_until', '0', 'paused_for', '0', 'paused_by', '', 'resumed_by', ARGV[3])
redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. text(version))
return { version, updates, was and 1 or 0 }
