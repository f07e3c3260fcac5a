-- The kind `sliding_log`: `core::limits::sliding_log`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, period
-- State         l <time> <units> <later> <units> …: oldest first, the first time in full and then only how
--               much later
--
-- Invariant: any period holds at most `limit` units.

kinds.l = {}

function kinds.l.rule(numeric) return { most = numeric(), period = numeric() } end

-- What counts now, as if nothing was taken later than that; `total` units.
function kinds.l.load(r, value)
  local s = { times = {}, counts = {}, total = 0 }
  local last, n, read = 0, 0, 1
  for later, count in gmatch(value, ' (%d+) (%d+)') do
    read = read + #later + #count + 2
    last, count = last + (number(later) or EXACT), tonumber(count)
    if last >= EXACT or count >= UNITS then return nil end
    local time = min(last, now)
    if time + r.period > now then
      n = n + 1
      s.times[n], s.counts[n], s.total = time, count, s.total + count
    end
  end
  if sub(value, 1, 1) ~= 'l' or read ~= #value then return nil end
  return s, last > now
end

function kinds.l.save(s)
  local parts, last = { 'l' }, 0
  for i = 1, #s.times do
    parts[i + 1] = format('%.0f %.0f', s.times[i] - last, s.counts[i])
    last = s.times[i]
  end
  return table.concat(parts, ' ')
end

function kinds.l.fit(r, s, cost)
  local over = (s and s.total or 0) + cost - r.most
  if over <= 0 then return now end
  -- The oldest go first.
  for i = 1, #s.times do
    over = over - s.counts[i]
    if over <= 0 then return s.times[i] + r.period end
  end
  return now + r.period
end

function kinds.l.take(r, s, cost)
  s = s or { times = {}, counts = {}, total = 0 }
  local n = #s.times
  if s.times[n] == now then
    s.counts[n] = s.counts[n] + cost
  else
    s.times[n + 1], s.counts[n + 1] = now, cost
  end
  s.total = s.total + cost
  return s
end

function kinds.l.refund(r, s, at, cost)
  for i = 1, #s.times do
    if s.times[i] == at and s.counts[i] >= cost then
      s.counts[i], s.total = s.counts[i] - cost, s.total - cost
      if s.counts[i] == 0 then
        table.remove(s.times, i)
        table.remove(s.counts, i)
      end
      return s
    end
  end
end

function kinds.l.room(r, s)
  local last = s and s.times[#s.times]
  return max(r.most - (s and s.total or 0), 0), last and last + r.period or now
end

function kinds.l.spacing(r, cost) return div_ceil(cost * r.period, r.most) end
function kinds.l.forgotten_at(r, since) return since + r.period end
function kinds.l.dies_at(r, s)
  local last = s.times[#s.times]
  return last and last + r.period or 0
end
