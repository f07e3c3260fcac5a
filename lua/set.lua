-- An operator sets a new policy of a limit, of the same kind: `core::policy::set`.
--
-- KEYS[1]  the limit's policy
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 by       the operator   4 policy   the new one
--          5 over     the version that it was made from; 0: there was none
--          6 file     the policy in the operator's file, for a limit that no replica has declared yet
-- Reply    {done, version, updates}: done 0 if there was another update in between
--
-- Invariant: versions only rise, and each names one state of the policy.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local s = redis.call('HMGET', KEYS[1], 'version', 'updates')
local version, updates = tonumber(s[1]) or 0, tonumber(s[2]) or 0
if version ~= tonumber(ARGV[5]) then return { 0, version, updates } end

if version == 0 then
  redis.call('HSET', KEYS[1], 'file', ARGV[6], 'paused_until', '0', 'paused_by', '')
end
version, updates = math.max(version + 1, now), updates + 1
redis.call('HSET', KEYS[1], 'version', text(version), 'changed', text(version),
  'updates', text(updates), 'origin', 'live', 'policy', ARGV[4], 'by', ARGV[3])
redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. text(version))
return { 1, version, updates }
