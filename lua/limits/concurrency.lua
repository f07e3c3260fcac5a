-- The kind `concurrency`: `core::limits::concurrency`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, lease
-- State         c <ends> <units> <ticket> …: the calls in flight, and when each ends by itself
--
-- Invariant: the units of the calls that have not ended are at most `limit`.

kinds.c = {}

function kinds.c.rule(numeric) return { most = numeric(), lease = numeric() } end

local function empty() return { calls = {}, count = 0, named = {}, total = 0, last = 0 } end

-- `named`: by ticket; `same` is another call with that ticket, which only a corrupt state has.
local function add(s, ends, cost, ticket)
  local one = { ends = ends, cost = cost, ticket = ticket, same = s.named[ticket] }
  s.count = s.count + 1
  s.calls[s.count], s.named[ticket], s.total = one, one, s.total + cost
end

-- The calls that have not ended, none of them later than a lease from now; `total` units, `last` the latest end.
function kinds.c.load(r, value)
  local s = empty()
  local latest, read, ahead = now + r.lease, 1, false
  for ends, cost, ticket in gmatch(value, ' (%d+) (%d+) ([0-9a-f]+)') do
    read = read + #ends + #cost + #ticket + 3
    ends, cost = number(ends), tonumber(cost)
    if not ends or cost >= UNITS or #ticket > 32 then return nil end
    if ends > now then
      ends, ahead = min(ends, latest), ahead or ends > latest
      add(s, ends, cost, ticket)
      s.last = max(s.last, ends)
    end
  end
  if sub(value, 1, 1) ~= 'c' or read ~= #value then return nil end
  return s, ahead
end

function kinds.c.save(s)
  local parts = { 'c' }
  for _, one in ipairs(s.calls) do
    if not one.ended then parts[#parts + 1] = format('%.0f %.0f ', one.ends, one.cost) .. one.ticket end
  end
  return table.concat(parts, ' ')
end

function kinds.c.fit(r, s, cost) return (s and s.total or 0) + cost <= r.most and now or FULL end

-- Ends a call, if it is under way. Returns its units. It stays in the list until that is written.
function kinds.c.release(s, ticket)
  local one, freed = s.named[ticket], 0
  if not one then return nil end
  while one do
    one.ended, freed = true, freed + one.cost
    one = one.same
  end
  s.named[ticket], s.total, s.last = nil, s.total - freed, nil
  return freed
end

-- The latest end. A release may have taken it along.
local function last(s)
  if not s.last then
    s.last = 0
    for _, one in ipairs(s.calls) do
      if not one.ended then s.last = max(s.last, one.ends) end
    end
  end
  return s.last
end

function kinds.c.take(r, s, cost, ticket)
  s = s or empty()
  kinds.c.release(s, ticket)
  add(s, now + r.lease, cost, ticket)
  s.last = now + r.lease
  return s
end

-- Gives a call another lease, if it is under way.
function kinds.c.renew(r, s, ticket)
  local one = s.named[ticket]
  if not one then return false end
  one.ends, s.last = now + r.lease, now + r.lease
  return true
end

function kinds.c.room(r, s)
  return max(r.most - (s and s.total or 0), 0), max(s and last(s) or 0, now)
end

function kinds.c.spacing() return 0 end
function kinds.c.expires_at(r, s) return last(s) end
function kinds.c.span(r) return r.lease end
