-- The kind `concurrency`: `core::limits::concurrency`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, lease
-- State         c <ends> <units> <ticket> …: the calls under way, and when each ends by itself
--
-- Invariant: the units of the calls that have not ended are at most `limit`.

kinds.c = {}

function kinds.c.rule(numeric) return { most = numeric(), lease = numeric() } end

local function empty() return { calls = {}, named = {}, total = 0, last = 0 } end

-- The calls that have not ended, none of them later than a lease from now; `total` units, `last` the latest end.
function kinds.c.load(r, value)
  local s = empty()
  local latest, read = now + r.lease, 1
  for ends, cost, ticket in gmatch(value, ' (%d+) (%d+) ([0-9a-f]+)') do
    read = read + #ends + #cost + #ticket + 3
    ends, cost = number(ends), tonumber(cost)
    if not ends or cost >= UNITS or #ticket > 32 then return nil end
    if ends > now then
      ends = min(ends, latest)
      s.calls[#s.calls + 1] = { ends = ends, cost = cost, ticket = ticket }
      s.named[ticket], s.total, s.last = true, s.total + cost, max(s.last, ends)
    end
  end
  if sub(value, 1, 1) ~= 'c' or read ~= #value then return nil end
  return s, false
end

function kinds.c.save(s)
  local parts = { 'c' }
  for i, one in ipairs(s.calls) do
    parts[i + 1] = format('%.0f %.0f ', one.ends, one.cost) .. one.ticket
  end
  return table.concat(parts, ' ')
end

function kinds.c.fit(r, s, cost) return (s and s.total or 0) + cost <= r.most and now or FULL end

-- Ends a call, if it is under way. Answers its units.
function kinds.c.release(s, ticket)
  if not s.named[ticket] then return nil end
  local others, freed = empty(), 0
  for _, one in ipairs(s.calls) do
    if one.ticket == ticket then
      freed = freed + one.cost
    else
      others.calls[#others.calls + 1], others.last = one, max(others.last, one.ends)
    end
  end
  s.calls, s.last, s.total, s.named[ticket] = others.calls, others.last, s.total - freed, nil
  return freed
end

function kinds.c.take(r, s, cost, ticket)
  s = s or empty()
  kinds.c.release(s, ticket)
  s.calls[#s.calls + 1] = { ends = now + r.lease, cost = cost, ticket = ticket }
  s.named[ticket], s.total, s.last = true, s.total + cost, now + r.lease
  return s
end

-- Gives a call another lease, if it is under way.
function kinds.c.renew(r, s, ticket)
  if not s.named[ticket] then return false end
  for _, one in ipairs(s.calls) do
    if one.ticket == ticket then
      one.ends, s.last = now + r.lease, now + r.lease
      return true
    end
  end
end

-- Calls end by their tickets.
function kinds.c.refund() return nil end

function kinds.c.room(r, s)
  return max(r.most - (s and s.total or 0), 0), max(s and s.last or 0, now)
end

function kinds.c.spacing() return 0 end
function kinds.c.forgotten_at(r, since) return since + r.lease end
function kinds.c.dies_at(r, s) return s.last end
