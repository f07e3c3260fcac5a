-- A replica reports its state and what it used since its last report, or that it leaves.
--
-- KEYS     1 a hash: replica -> the time, a space, its text
--          2 a hash: limit, a space, a place -> the number of a bar, a space, the units used in it
-- ARGV     1 replica   2 text, empty: it leaves   3 shown  microseconds for which a text is shown
--          4 passed  microseconds, ending now, in which it used the units; at least 1
--          5 width of a bar in microseconds   6 places  how many bars are kept
--          then for each limit that it used: its name, units
-- Reply    nothing
--
-- Invariant: units are counted once, in the bars in which they were used, if they were used evenly;
--          of each replica there is one text, of each limit there are at most `places` bars. The first report of
--          a replica deletes the texts of those that were killed, so that the hash stays small.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local began, width, places = now - tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])

if ARGV[2] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
elseif redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2]) == 1 then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    local at = tonumber(all[i + 1]:match('^(%d+) '))
    if not at or math.abs(now - at) > tonumber(ARGV[3]) then redis.call('HDEL', KEYS[1], all[i]) end
  end
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(2 * tonumber(ARGV[3]) / 1000)))

for bar = math.max(math.floor(began / width), math.floor(now / width) - places + 1), math.floor(now / width) do
  local share = (math.min(now, (bar + 1) * width) - math.max(began, bar * width)) / (now - began)
  for i = 7, #ARGV, 2 do
    local place = string.format('%s %.0f', ARGV[i], bar % places)
    local of, units = (redis.call('HGET', KEYS[2], place) or ''):match('^(%d+) (.*)$')
    if tonumber(of) ~= bar then units = 0 end
    redis.call('HSET', KEYS[2], place, string.format('%.0f %.3f', bar, units + share * ARGV[i + 1]))
  end
end
redis.call('PEXPIRE', KEYS[2], string.format('%.0f', math.ceil(width * places / 1000)))
