-- Takes back the unused tail of a lease: `core::schedule::give_back`.
--
-- KEYS[1]  the limit's row
-- ARGV     1 units   2 period   (the pace)
--          3 run     the server's run_id, as INFO gave it to this connection
--          4 first   the tail's first slot   5 rem   its remainder   6 count   how many slots
-- Reply    1 if the slots are free again, 0 if other slots were leased after them
--
-- Invariant: only the end of the row is taken back, so no slot is ever granted twice. The caller must
-- not repeat a call that may have run: another replica may have leased the same slots meanwhile.
-- Nothing is written if the row has no `next`, so this never creates a key without a time to live.

local units, period = tonumber(ARGV[1]), tonumber(ARGV[2])
local first, rem, count = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local h = redis.call('HMGET', KEYS[1], 'run', 'next', 'rem', 'units', 'period',
  'line', 'front', 'slip', 'frozen_until', 'horizon', 'last', 'generation')
for i = 2, 12 do
  if not tonumber(h[i]) then return 0 end
end

local taken = rem + count * period
local ends = first + (taken - taken % units) / units
if h[1] ~= ARGV[3] or tonumber(h[4]) ~= units or tonumber(h[5]) ~= period
  or tonumber(h[2]) ~= ends or tonumber(h[3]) ~= taken % units then
  return 0
end
redis.call('HSET', KEYS[1], 'next', string.format('%.0f', first), 'rem', string.format('%.0f', rem))
return 1
