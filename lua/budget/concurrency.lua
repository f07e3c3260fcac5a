-- The kind `concurrency`: `core::budget::concurrency`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, lease
-- State         c<epoch> <ends> <units> <ticket> …: the calls under way and when each ends by itself
--
-- Invariant: the units of the calls that have not ended are at most `limit`.

kinds.c = { letter = 'c', width = 2 }

function kinds.c.rule(numeric)
  local r = { limit = numeric(), lease = numeric() }
  r.most = r.limit
  return r
end

-- The calls that have not ended, by ticket too, what they hold, and when the last one ends.
function kinds.c.load(value, from)
  local s = { calls = {}, named = {}, total = 0, last = 0 }
  local calls, n, read = s.calls, 0, from - 1
  for ends, cost, ticket in gmatch(sub(value, from), '(%d+) (%d+) ([0-9a-f]+)') do
    read, n = read + #ends + #cost + #ticket + 3, n + 1
    ends, cost = time(ends), tonumber(cost)
    if not ends or cost >= UNITS or #ticket > 32 then return nil end
    -- What has ended by itself is forgotten.
    if ends > now then
      calls[#calls + 1] = { ends = ends, cost = cost, ticket = ticket }
      s.named[ticket], s.total, s.last = true, s.total + cost, max(s.last, ends)
    end
  end
  if n == 0 or read ~= #value + 1 or find(value, '[^%da-f ]', from) then return nil end
  return s
end

function kinds.c.save(s)
  local parts = {}
  for i = 1, #s.calls do
    local call = s.calls[i]
    parts[i] = format('%.0f %.0f ', call.ends, call.cost) .. call.ticket
  end
  return table.concat(parts, ' ')
end

function kinds.c.forgotten_at(r, since) return since + r.lease end

function kinds.c.earliest(r, s, from, cost)
  if not s then return from, false end
  local total, again = 0, from + 100000
  if from == now and s.total + cost <= r.limit then return from, false end
  for i = 1, #s.calls do
    if s.calls[i].ends > from then
      total = total + s.calls[i].cost
      again = min(again, s.calls[i].ends)
    end
  end
  return total + cost <= r.limit and from or again, false
end

-- Ends a call, if it is still under way.
function kinds.c.release(s, ticket)
  if not s.named[ticket] then return nil end
  local calls, last = {}, 0
  for i = 1, #s.calls do
    local call = s.calls[i]
    if call.ticket == ticket then
      s.total = s.total - call.cost
    else
      calls[#calls + 1], last = call, max(last, call.ends)
    end
  end
  s.last = last
  s.calls, s.named[ticket] = calls, nil
  return s
end

function kinds.c.book(r, s, at, cost, ticket)
  s = s or { calls = {}, named = {}, total = 0, last = 0 }
  kinds.c.release(s, ticket)
  s.calls[#s.calls + 1] = { ends = at + r.lease, cost = cost, ticket = ticket }
  s.named[ticket], s.total, s.last = true, s.total + cost, max(s.last, at + r.lease)
  return s
end

function kinds.c.usage(r, s, now)
  if not s then return r.limit, 0 end
  return max(r.limit - s.total, 0), max(s.last - now, 0)
end

-- Calls under way go on.
function kinds.c.amend(r, old, s) return s end

function kinds.c.dies_at(r, s) return s.last end

function kinds.c.undo(r, s, at, cost, ticket) return kinds.c.release(s, ticket) end

-- Gives a call another lease, if it is still under way.
function kinds.c.renew(r, s, ticket)
  if not s.named[ticket] then return nil end
  for i = 1, #s.calls do
    local call = s.calls[i]
    if call.ticket == ticket then call.ends = max(call.ends, now + r.lease) end
  end
  s.last = max(s.last, now + r.lease)
  return s
end
