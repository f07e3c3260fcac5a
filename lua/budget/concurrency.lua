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

-- The calls that have not ended, by ticket too, what they hold, and when the last one ends.
function kinds.c.load(rest)
  local s, words = { calls = {}, named = {}, total = 0, last = 0 }, 0
  for ends, cost, ticket in string.gmatch(rest, ' ([^ ]*) ([^ ]*) ([^ ]*)') do
    ends, cost = time(ends), number(cost)
    if not (ends and cost and cost < UNITS) then return nil end
    if #ticket > 32 or not string.find(ticket, '^[0-9a-f]+$') then return nil end
    words = words + 3
    -- What has ended by itself is forgotten.
    if ends > now then
      s.calls[#s.calls + 1] = { ends = ends, cost = cost, ticket = ticket }
      s.named[ticket], s.total, s.last = true, s.total + cost, math.max(s.last, ends)
    end
  end
  for _ in string.gmatch(rest, ' ') do words = words - 1 end
  if words ~= 0 or (rest ~= '' and string.sub(rest, 1, 1) ~= ' ') then return nil end
  return s
end

function kinds.c.save(s)
  local parts = { '' }
  for i = 1, #s.calls do
    local call = s.calls[i]
    parts[#parts + 1] = text(call.ends) .. ' ' .. text(call.cost) .. ' ' .. call.ticket
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
      again = math.min(again, s.calls[i].ends)
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
      calls[#calls + 1], last = call, math.max(last, call.ends)
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
  s.named[ticket], s.total, s.last = true, s.total + cost, math.max(s.last, at + r.lease)
  return s
end

function kinds.c.usage(r, s, now)
  if not s then return r.limit, 0 end
  return math.max(r.limit - s.total, 0), math.max(s.last - now, 0)
end

function kinds.c.dies_at(r, s) return s.last end

function kinds.c.undo(r, s, at, cost, ticket) return kinds.c.release(s, ticket) end

-- Gives a call another lease, if it is still under way.
function kinds.c.renew(r, s, ticket)
  if not s.named[ticket] then return nil end
  for i = 1, #s.calls do
    local call = s.calls[i]
    if call.ticket == ticket then call.ends = math.max(call.ends, now + r.lease) end
  end
  s.last = math.max(s.last, now + r.lease)
  return s
end
