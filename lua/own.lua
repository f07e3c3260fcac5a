-- A replica registers the limits and routes that its fleet uses, unless another fleet uses one of them, or a replica
-- whose states have another format: `core::owner::register`.
--
-- KEYS[1]  the registrations: a hash: replica -> lines: the time of its registration, the names of its fleet with a
--          tab between them, then `=` and the form of its states, then its limits and routes; one starts with `+` if
--          its file shares it with other fleets, otherwise with `-`. Without a form it is 1
-- ARGV     1 act      register, look (nothing is written) or leave (only the registration of this replica is deleted)
--          2 replica  3 fleet   as in the hash   4 kept  microseconds for which a registration counts
--          5 form of the states   6 … the limits and routes, as in the hash
-- Reply    for each registration on one of them of another fleet or form: limit or route, first name of the fleet,
--          replica, microseconds since the registration, 1 if it is shared there, form; empty: all are free for this
--          fleet
--
-- Invariant: all are registered or none. Two fleets, which have no name in common, have the same limit only if both
--            share it. Two forms never have the same limit or route. A registration ends `kept` after it was made
--            last, and the hash ends with the last registration.

if ARGV[1] == 'leave' then
  redis.call('HDEL', KEYS[1], ARGV[2])
  return {}
end

local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local function text(x) return string.format('%.0f', x) end
local fleet, kept = ARGV[3], tonumber(ARGV[4])

local ours = {}
for name in fleet:gmatch('[^\t]+') do ours[name] = true end
local function is_ours(other)
  for name in other:gmatch('[^\t]+') do
    if ours[name] then return true end
  end
  return false
end

local wanted = {}
for i = 6, #ARGV do wanted[ARGV[i]:sub(2)] = ARGV[i]:sub(1, 1) end

local foreign = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local at, other, names = all[i + 1]:match('^(%d+)\n([^\n]*)(.*)$')
  local ago = at and math.abs(now - tonumber(at))
  if not ago or ago > kept then
    if ARGV[1] == 'register' then redis.call('HDEL', KEYS[1], all[i]) end
  else
    local form, of_fleet = names:match('\n=(%d+)') or '1', is_ours(other)
    for sign, name in names:gmatch('\n([+-])([^\n]+)') do
      local fits = form == ARGV[5] and (of_fleet or sign == '+' and wanted[name] == '+')
      if wanted[name] and not fits then
        local first = other:match('^[^\t]*')
        for _, value in ipairs({ name, first, all[i], text(ago), sign == '+' and '1' or '0', form }) do
          foreign[#foreign + 1] = value
        end
      end
    end
  end
end
if #foreign == 0 and ARGV[1] == 'register' then
  redis.call('HSET', KEYS[1], ARGV[2], text(now) .. '\n' .. fleet .. '\n=' .. ARGV[5]
    .. (#ARGV > 5 and '\n' .. table.concat(ARGV, '\n', 6) or ''))
  redis.call('PEXPIRE', KEYS[1], text(math.ceil(kept / 1000)))
end
return foreign
