-- A replica tells how it is, and gets what all replicas told lately.
--
-- KEYS[1]  a hash: replica -> the time, a space, its text
-- ARGV     1 replica   2 text   3 shown  microseconds for which a text is shown
-- Reply    the texts, in no order
-- Invariant: of each replica there is one text, and none is older than `shown`.

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local shown = tonumber(ARGV[3])

redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now) .. ' ' .. ARGV[2])
local all, texts = redis.call('HGETALL', KEYS[1]), {}
for i = 1, #all, 2 do
  local told, text = all[i + 1]:match('^(%d+) (.*)$')
  if told and math.abs(now - tonumber(told)) <= shown then
    texts[#texts + 1] = text
  else
    redis.call('HDEL', KEYS[1], all[i])
  end
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.ceil(2 * shown / 1000)))
return texts
