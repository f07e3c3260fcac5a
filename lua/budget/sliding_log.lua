-- The kind `sliding_log`: `core::budget::sliding_log`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          limit, period
-- State         l<epoch> <time> <units> <later> <units> …: oldest first, the first time in full and
--               then only how much later
--
-- Invariant: any period holds at most `limit` units, in whichever order they are taken.

kinds.l = { letter = 'l', width = 2 }

function kinds.l.rule(numeric)
  local r = { limit = numeric(), period = numeric() }
  r.most = r.limit
  return r
end

-- Entries before `first` are forgotten; `total` is what the others hold.
function kinds.l.load(value, from)
  local s = { times = {}, counts = {}, first = 1, total = 0 }
  local times, counts, last, n, read = s.times, s.counts, 0, 0, from - 1
  for later, count in gmatch(sub(value, from), '(%d+) (%d+)') do
    read = read + #later + #count + 2
    last, n, count = last + (number(later) or EXACT), n + 1, tonumber(count)
    if last > now + ABSURD or count >= UNITS then return nil end
    times[n], counts[n], s.total = last, count, s.total + count
  end
  -- With a space after each pair but the last, that was all of it.
  if n == 0 or read ~= #value + 1 or find(value, '[^%d ]', from) then return nil end
  return s
end

function kinds.l.save(s)
  local first = s.first
  local words, last = format('%.0f %.0f', s.times[first], s.counts[first]), s.times[first]
  if first == #s.times then return words end
  local parts = { words }
  for i = first + 1, #s.times do
    parts[#parts + 1] = format('%.0f %.0f', s.times[i] - last, s.counts[i])
    last = s.times[i]
  end
  return table.concat(parts, ' ')
end

-- What a plan keeps to, exactly.
function kinds.l.pattern(r) return r.limit, r.period, true end

function kinds.l.taken(r, s)
  local times, counts = {}, {}
  for i = s and s.first or 1, s and #s.times or 0 do
    times[#times + 1], counts[#counts + 1] = s.times[i], s.counts[i]
  end
  return times, counts
end

-- How far apart units are at the limit's rate.
function kinds.l.mean(r) return div(r.period, r.limit) end

function kinds.l.forgotten_at(r, since) return since + r.period end

-- The first entry that counts at `at` or later, and all units that do.
local function alive(r, s, at)
  local first, total = s.first, s.total
  while s.times[first] and s.times[first] + r.period <= at do
    first, total = first + 1, total - s.counts[first]
  end
  return first, total
end

function kinds.l.earliest(r, s, from, cost)
  if not s then return from, true end
  if s.times[#s.times] > from then
    return free_at(s.times, s.counts, s.first, r.limit, r.period, from, cost), true
  end
  -- Nothing lies ahead: what counts then goes, oldest first.
  local first, total = alive(r, s, from)
  local over, at = max(total + cost - r.limit, 0), from
  for i = first, #s.times do
    if over == 0 then break end
    over = max(over - s.counts[i], 0)
    at = s.times[i] + r.period
  end
  return at, true
end

function kinds.l.book(r, s, at, cost)
  s = s or { times = {}, counts = {}, first = 1, total = 0 }
  -- What cannot count any more beside anything that is granted now, as of a headroom before, is forgotten.
  s.first, s.total = alive(r, s, now - r.headroom - STEP)
  put(s.times, s.counts, at, cost, 0)
  s.total = s.total + cost
  return s
end

function kinds.l.usage(r, s, now)
  if not s then return r.limit, 0 end
  local first, total = alive(r, s, now)
  local reset = 0
  for i = #s.times, first, -1 do
    if s.counts[i] > 0 then
      reset = s.times[i] + r.period - now
      break
    end
  end
  return max(r.limit - total, 0), reset
end

-- It says of each unit when it was granted for, and holds under any rule.
function kinds.l.amend(r, old, s) return s end

function kinds.l.dies_at(r, s)
  local last = s.times[#s.times]
  return last and last + r.period or 0
end

-- Takes the units out of their entry. The newest one stays, even empty.
function kinds.l.undo(r, s, at, cost)
  for i = s.first, #s.times do
    if s.times[i] == at and s.counts[i] >= cost then
      s.counts[i] = s.counts[i] - cost
      s.total = s.total - cost
      if s.counts[i] == 0 and i < #s.times then
        table.remove(s.times, i)
        table.remove(s.counts, i)
      end
      return s
    end
  end
end
