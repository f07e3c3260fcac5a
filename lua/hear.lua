-- Returns what all replicas reported about themselves, and how much of each limit was used lately.
--
-- KEYS     1 and 2: as for status.lua
-- ARGV     1 shown  microseconds for which a text is shown   2 late  microseconds within which all replicas
--          have reported a bar that ended   3 width of a bar in microseconds
-- Reply    {texts, bars}: for each text how many microseconds ago it was reported, and the text; for each bar
--          that ended its limit, how many bars it is older than the newest, and its units
--
-- Invariant: no text is older than `shown`. Writes nothing.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local newest = math.floor((now - tonumber(ARGV[2])) / tonumber(ARGV[3])) - 1

local all, texts = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local at, text = all[i + 1]:match('^(%d+) (.*)$')
  local ago = at and math.abs(now - tonumber(at))
  if ago and ago <= tonumber(ARGV[1]) then
    texts[#texts + 1] = string.format('%.0f', ago)
    texts[#texts + 1] = text
  end
end

local kept, bars = redis.call('HGETALL', KEYS[2]), {}
for i = 1, #kept, 2 do
  local bar, units = kept[i + 1]:match('^(%d+) (.*)$')
  if bar and tonumber(bar) <= newest then
    bars[#bars + 1] = kept[i]:match('^(.*) %d+$')
    bars[#bars + 1] = string.format('%.0f', newest - tonumber(bar))
    bars[#bars + 1] = units
  end
end
return { texts, bars }
