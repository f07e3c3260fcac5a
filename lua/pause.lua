-- An operator pauses a limit for every replica: `core::policy::pause`.
--
-- KEYS[1]  the limit's policy
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 by       the operator   4 length   microseconds from now
-- Reply    {now, version, updates, until}: integers; version 0: no replica has declared this limit
--
-- Invariant: versions only rise, and each names one state of the policy. The last pause counts, even if it
-- ends earlier than the one before. It lasts for its length: if the clock goes back, declare.lua brings its
-- end nearer.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end

local s = redis.call('HMGET', KEYS[1], 'version', 'updates')
local version, updates = tonumber(s[1]) or 0, tonumber(s[2]) or 0
if version == 0 then return { now, 0, 0, 0 } end

version, updates = math.max(version + 1, now), updates + 1
local ends = now + tonumber(ARGV[4])
redis.call('HSET', KEYS[1], 'version', text(version), 'updates', text(updates),
  'paused_until', text(ends), 'paused_for', ARGV[4], 'paused_by', ARGV[3], 'resumed_by', '')
redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. text(version))
return { now, version, updates, ends }
