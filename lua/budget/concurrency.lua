-- The kind `concurrency`: `core::budget::concurrency`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, lease
-- State         c<epoch> <ends> <units> <ticket> …: the calls under way and when each ends by itself
--
-- Invariant: the units of the calls that have not ended are at most `limit`.

kinds.c = { letter = 'c' }

function kinds.c.rule(numeric)
  local r = { limit = numeric(), lease = numeric() }
  r.most = r.limit
  return r
end

function kinds.c.load(rest)
  local s, words = {}, 0
  for ends, cost, ticket in string.gmatch(rest, ' ([^ ]*) ([^ ]*) ([^ ]*)') do
    ends, cost = time(ends), number(cost)
    if not (ends and cost and cost < UNITS) then return nil end
    if #ticket > 32 or not string.find(ticket, '^[0-9a-f]+$') then return nil end
    s[#s + 1] = { ends = ends, cost = cost, ticket = ticket }
  end
  for _ in string.gmatch(rest, ' ') do words = words + 1 end
  if words ~= 3 * #s or (words == 0 and rest ~= '') then return nil end
  return s
end

function kinds.c.save(s)
  local parts = { '' }
  for i = 1, #s do
    parts[#parts + 1] = text(s[i].ends) .. ' ' .. text(s[i].cost) .. ' ' .. s[i].ticket
  end
  return table.concat(parts, ' ')
end

function kinds.c.forgotten_at(r, since) return since + r.lease end

-- The calls that have not ended at `at`, but for `ticket`; and their units.
local function under_way(s, at, ticket)
  local calls, total = {}, 0
  for i = 1, s and #s or 0 do
    if s[i].ends > at and s[i].ticket ~= ticket then
      calls[#calls + 1] = s[i]
      total = total + s[i].cost
    end
  end
  return calls, total
end

function kinds.c.earliest(r, s, from, cost)
  local calls, total = under_way(s, from)
  if total + cost <= r.limit then return from, false end
  local again = from + 100000
  for i = 1, #calls do again = math.min(again, calls[i].ends) end
  return again, false
end

function kinds.c.book(r, s, at, cost, ticket)
  local calls = under_way(s, at, ticket)
  calls[#calls + 1] = { ends = at + r.lease, cost = cost, ticket = ticket }
  return calls
end

function kinds.c.usage(r, s, now)
  local calls, total = under_way(s, now)
  local last = now
  for i = 1, #calls do last = math.max(last, calls[i].ends) end
  return math.max(r.limit - total, 0), last - now
end

function kinds.c.dies_at(r, s)
  local last = 0
  for i = 1, #s do last = math.max(last, s[i].ends) end
  return last
end

-- Ends a call, if it is still under way.
function kinds.c.release(s, ticket)
  local calls = under_way(s, now)
  local others = under_way(s, now, ticket)
  if #others < #calls then return others end
end

function kinds.c.undo(r, s, at, cost, ticket) return kinds.c.release(s, ticket) end

-- Gives a call another lease, if it is still under way.
function kinds.c.renew(r, s, ticket)
  local calls = under_way(s, now)
  for i = 1, #calls do
    if calls[i].ticket == ticket then
      calls[i] = { ends = math.max(calls[i].ends, now + r.lease), cost = calls[i].cost, ticket = ticket }
      return calls
    end
  end
end
