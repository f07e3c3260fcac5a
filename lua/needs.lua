-- Tries what the other scripts call, and returns what this server does not do as they need it and what the user of
-- this connection may not do.
--
-- KEYS[1]  a key that nothing else uses; none: only what needs no key is tried (in a cluster any node can answer)
-- ARGV     1 name     starts as all names of ours do: a key that is not touched, a channel that no replica listens on
--          2 channel  where replicas listen; nothing is published there
--          3 ...      commands that scripts and connections need; a subcommand follows after `|`
-- Reply    {refused, exact, failed, unheard}: `refused`: what the user may not do: commands by name, `~` for the key,
--          `&` for the channel; empty also where this Redis (before 7.0) cannot say; `exact`: {1, 2500,
--          9007199254740991}, if numbers come as they were calculated; `failed`: for each need that is not met, what
--          it is and what the server said; `unheard`: the same about PUBLISH, which is only wished for
--
-- Invariant: the key does not exist before and after, except where it cannot be deleted; then it has a time to live.

-- Whether the user may call a command with one of these lists of arguments. Redis 7 checks SET only with a key, and
-- Redis 8 each command only with as many arguments as it takes.
local function may(name, lists)
  local known = false
  for _, arguments in ipairs(lists) do
    local checked, allowed = pcall(redis.acl_check_cmd, name, unpack(arguments))
    if checked and allowed then return true end
    known = known or checked
  end
  -- A command that this version does not have is not needed either.
  return not known
end

local function refused_to_the_user(key, channel)
  local refused = {}
  if not redis.acl_check_cmd then return refused end
  -- Commands of three categories: a user without one of these may touch the key all the same.
  local keyless = not (may('EXISTS', { { key } }) or may('GET', { { key } }) or may('HGETALL', { { key } }))
  if keyless then refused[#refused + 1] = '~' end
  if not may('PUBLISH', { { channel, '' } }) and may('PUBLISH', { {} }) then refused[#refused + 1] = '&' end
  for i = 3, #ARGV do
    local name, below = ARGV[i]:match('^([^|]+)|?(.*)$')
    local allowed
    if below ~= '' then
      allowed = may(name, { { below }, { below, '1' } })
    else
      -- With a key that the user may not touch, all commands that take one are refused.
      allowed = keyless or may(name, { {}, { key }, { key, '1' }, { key, '1', '1' } })
    end
    if not allowed then refused[#refused + 1] = ARGV[i] end
  end
  return refused
end

local failed, unheard = {}, {}
local function error_of(reply) return type(reply) == 'table' and reply.err end
local function try(name, ...)
  local reply = redis.pcall(name, ...)
  local why = error_of(reply)
  if why then failed[#failed + 1] = name .. ': ' .. why end
  return reply, not why
end
-- What a command must answer, as text.
local function expect(answer, name, ...)
  local reply, answered = try(name, ...)
  if not answered then return end
  if type(reply) == 'table' then reply = reply.ok or table.concat(reply, ' ') end
  if tostring(reply) ~= answer then
    failed[#failed + 1] = name .. ': it answered ' .. tostring(reply) .. ' where Redis answers ' .. answer
  end
end

local clock, told = try('TIME')
if told and not (tonumber(clock[1]) and tonumber(clock[2])) then failed[#failed + 1] = 'TIME: it says no time' end

if KEYS[1] then
  local key, beside = KEYS[1], KEYS[1] .. ':beside'
  redis.pcall('DEL', key, beside)
  expect('OK', 'SET', key, '7', 'PX', '60000')
  expect('false', 'SET', key, '8', 'NX')
  expect('7', 'GET', key)
  expect('1', 'EXISTS', key)
  expect('1', 'DEL', key)
  expect('2', 'HSET', key, 'a', '1', 'b', '2')
  expect('1', 'PEXPIRE', key, '60000')
  expect('1', 'HGET', key, 'a')
  expect('1 2', 'HMGET', key, unpack({ 'a', 'b' }))
  expect('1', 'HDEL', key, 'a')
  expect('b 2', 'HGETALL', key)
  -- A key that the caller did not name: scripts find the waiting replicas of a limit beside its state.
  expect('1', 'ZADD', beside, '3', 'm')
  expect('m 3', 'ZPOPMIN', beside, '1')
  expect('1', 'DEL', key)
end
local heard = error_of(redis.pcall('PUBLISH', ARGV[1], ''))
if heard then unheard[1] = 'PUBLISH: ' .. heard end

local function div(x, y) return (x - x % y) / y end
local exact = { 1, div(10000, 4), tonumber('9007199254740992') - 1 }
return { refused_to_the_user(ARGV[1], ARGV[2]), exact, failed, unheard }
