-- Returns what the user of this connection may not do, without doing any of it.
--
-- KEYS     none: nothing is read or written, so that any node of a cluster can answer
-- ARGV     1 key      one that starts as all of ours do
--          2 channel  where replicas listen
--          3 ...      commands that scripts and connections need; a subcommand follows after `|`
-- Reply    what is refused: commands by name, `~` for the key, `&` for the channel; empty if
--          nothing is, or if this Redis (before 7.0) cannot say
--
-- Invariant: changes nothing.

if not redis.acl_check_cmd then return {} end

local function may(...)
  local known, allowed = pcall(redis.acl_check_cmd, ...)
  -- A command that this version does not have is not needed either.
  return not known or allowed
end

local refused = {}
local keyless = may('EXISTS') and not may('EXISTS', ARGV[1])
if keyless then refused[#refused + 1] = '~' end
if not may('PUBLISH', ARGV[2], '') and may('PUBLISH') then refused[#refused + 1] = '&' end
for i = 3, #ARGV do
  local name, below = ARGV[i]:match('^([^|]+)|?(.*)$')
  local allowed
  if below ~= '' then
    allowed = may(name, below)
  else
    -- Some commands (SET) can be checked only with a key. With a key that the user may not touch,
    -- all of them are refused.
    allowed = may(name) or keyless or may(name, ARGV[1], '1')
  end
  if not allowed then refused[#refused + 1] = ARGV[i] end
end
return refused
