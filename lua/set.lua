-- Puts new terms of a limit in force: `core::standing::set`.
--
-- KEYS[1]  the limit's standing
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 by       who says it   4 terms   what shall be in force
--          5 over     the revision that they were made from; 0: there was none
--          6 file     the terms in the speaker's file, for a limit that nobody has declared yet
-- Reply    {done, revision, version}: done 0 if somebody else said something meanwhile
--
-- Invariant: revisions only rise, and each names one standing.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local s = redis.call('HMGET', KEYS[1], 'revision', 'version')
local revision, version = tonumber(s[1]) or 0, tonumber(s[2]) or 0
if revision ~= tonumber(ARGV[5]) then return { 0, revision, version } end

if revision == 0 then
  redis.call('HSET', KEYS[1], 'file', ARGV[6], 'paused_until', '0', 'paused_by', '')
end
revision, version = math.max(revision + 1, now), version + 1
redis.call('HSET', KEYS[1], 'revision', text(revision), 'version', text(version),
  'origin', 'live', 'terms', ARGV[4], 'by', ARGV[3])
redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. text(revision))
return { 1, revision, version }
