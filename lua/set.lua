-- Puts new terms of a limit in force: `core::policy::set`.
--
-- KEYS[1]  the limit's policy
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 by       who says it   4 policy  what shall be in force
--          5 over     the version that they were made from; 0: there was none
--          6 file     the terms in the speaker's file, for a limit that nobody has declared yet
-- Reply    {done, version, updates}: done 0 if somebody else said something meanwhile
--
-- Invariant: versions only rise, and each names one policy.

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
redis.call('HSET', KEYS[1], 'version', text(version), 'updates', text(updates),
  'origin', 'live', 'policy', ARGV[4], 'by', ARGV[3])
redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. text(version))
return { 1, version, updates }
