-- A replica declares the policy in its file, and gets the current one: `core::policy::declare`.
--
-- KEYS[1]  the limit's policy: a hash without a time to live, because an operator's update must stay
-- KEYS[2]  the limit's replicas: a hash with, for each, when it was last seen and the policy in its
--          file; the field without a name holds when it was last swept
-- ARGV     1 channel  where all replicas listen   2 limit   its name, for the notice
--          3 replica  its name   4 file   the policy in its file
--          5 was_read   1: it has just read its file, so a changed file counts as an update
--          6 shown    microseconds for which a replica counts as present
--          7 version   8 updates   9 origin   10 policy   11 file   12 by   13 paused_until
--         14 paused_by   15 changed   16 remade_at   17 paused_for
--         18 resumed_by   (the policy that it knows; version 0: none)
-- Reply    the policy as its hash holds it, names and values in turn: those of the arguments 7 to 18, and more.
--          paused_until 0: not paused; changed is the version that brought the current policy; remade_at is when a
--          file made it one of another kind, 0: never
--
-- Invariant: versions only rise, and each names one state of the policy. The same call a second time
-- changes nothing but when the replica was last seen, until the current policy ends (` until=` and
-- microseconds, the last word of its text) or the clock goes back: no pause lasts longer than its
-- length.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end
local function kind(policy) return string.match(policy, '^kind=([^ ]*)') end

-- FREEZE_MAX: 366 days.
local MINUTE, FREEZE_MAX = 60000000, 31622400000000
local FIELDS = { 'version', 'updates', 'origin', 'policy', 'file', 'by', 'paused_until', 'paused_by',
  'changed', 'remade_at', 'paused_for', 'resumed_by' }
local s = redis.call('HMGET', KEYS[1], unpack(FIELDS))
local version, updates = tonumber(s[1]) or 0, tonumber(s[2]) or 0
local replica, file = ARGV[3], ARGV[4]
local changed = false

if tonumber(ARGV[7]) > version then
  -- The store has lost a later policy. The replica gives it back.
  for i = 1, #FIELDS do s[i] = ARGV[6 + i] end
  version, updates, changed = tonumber(s[1]), tonumber(s[2]), true
elseif version == 0 then
  -- Lower than the version of any update: the store may have lost a policy, and that of a replica
  -- that still knows it must win.
  version, updates, changed = math.max((now - now % 1000) / 1000, 1), 1, true
  s = { '', '', 'file', file, file, replica, '0', '', text(version), '0', '0', '' }
end
-- Times further ahead than they can be: the clock went back.
local paused_until, remade_at = tonumber(s[7]) or 0, tonumber(s[10]) or 0
local longest = now + (tonumber(s[11]) or FREEZE_MAX)
local went_back = paused_until > longest or remade_at > now
s[7], s[10] = text(math.min(paused_until, longest)), text(math.min(remade_at, now))
s[11], s[12] = s[11] or text(FREEZE_MAX), s[12] or ''

-- A policy that an operator set for a while is over: the file's policy is the current one again.
local ends = tonumber(string.match(s[4], ' until=(%d+)$'))
local from_file = ends and ends <= now and s[5]
if ARGV[5] == '1' and s[5] ~= file then from_file = file end
if from_file or went_back then
  version, updates, changed = math.max(version + 1, now), updates + 1, true
end
if from_file then
  -- No kind reads the states of another one: what was taken is not known.
  if kind(s[4]) ~= kind(from_file) then s[10] = text(now) end
  s[3], s[4], s[5], s[6], s[9] = 'file', from_file, from_file, replica, text(version)
end

if changed then
  s[1], s[2] = text(version), text(updates)
  local fields = {}
  for i, name in ipairs(FIELDS) do
    fields[#fields + 1], fields[#fields + 2] = name, s[i]
  end
  redis.call('HSET', KEYS[1], unpack(fields))
  -- A user without the right to this channel still updates: the other replicas learn of it from
  -- their next answers.
  redis.pcall('PUBLISH', ARGV[1], 'changed ' .. ARGV[2] .. ' ' .. s[1])
end
local shown = tonumber(ARGV[6])
redis.call('HSET', KEYS[2], replica, text(now) .. ' ' .. file)
redis.call('PEXPIRE', KEYS[2], text(math.ceil(shown / 1000)))
-- Replicas that are gone are removed once a minute, so the size of the hash is bounded.
local swept = tonumber(redis.call('HGET', KEYS[2], '') or 0) or 0
if math.abs(now - swept) > MINUTE then
  local all = redis.call('HGETALL', KEYS[2])
  for i = 1, #all, 2 do
    local seen = tonumber(string.match(all[i + 1], '^%d+') or 0)
    if math.abs(now - seen) > shown then redis.call('HDEL', KEYS[2], all[i]) end
  end
  redis.call('HSET', KEYS[2], '', text(now))
end
return redis.call('HGETALL', KEYS[1])
