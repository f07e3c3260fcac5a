-- The kind `token_bucket`: `core::budget::token_bucket`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          capacity, amount, period, stepped (1), empty at first (1), borrow
-- State         t<epoch> <tokens> <last> <rem>: tokens (below zero after borrowing), when they were
--               counted or the last step was, and what of the next one is there, in parts of period
--
-- Invariant: tokens come by `amount` per `period`, to the fraction, and never above the capacity.

kinds.t = { letter = 't', width = 6 }

-- How long so many tokens take to come, `rem` being there.
local function time_for(r, tokens, rem)
  if r.stepped then return div_ceil(tokens, r.amount) * r.period end
  return div_ceil(tokens * r.period - rem, r.amount)
end

function kinds.t.rule(numeric)
  local r = { capacity = numeric(), amount = numeric(), period = numeric() }
  r.stepped, r.empty, r.borrow = numeric() == 1, numeric() == 1, numeric()
  r.most = r.capacity + r.borrow
  r.memory = time_for(r, r.most, 0)
  r.floor = r.capacity - div(2 ^ 52, r.period)
  return r
end

function kinds.t.load(value, from)
  local minus, tokens, last, rem = match(value, '^(%-?)(%d+) (%d+) (%d+)$', from)
  tokens, last, rem = number(tokens), time(last), number(rem)
  if not (tokens and last and rem) then return nil end
  if minus == '-' then tokens = -tokens end
  return { tokens = tokens, last = last, rem = rem }
end

function kinds.t.save(s)
  return format('%.0f %.0f %.0f', s.tokens, s.last, s.rem)
end

-- How far apart units are at the limit's rate.
function kinds.t.mean(r) return div(r.period, r.amount) end

function kinds.t.forgotten_at(r, since) return since + r.memory end

local function unseen(r, at) return { tokens = r.empty and 0 or r.capacity, last = at, rem = 0 } end

-- A bucket that nobody took anything from: full, whenever somebody comes.
function kinds.t.unused(r, now) return unseen(r, r.empty and now or 0) end

function kinds.t.first_sight(r, at) return r.empty and unseen(r, at) or nil end

-- A state that another rule may have left, in the bounds of this one.
local function normal(r, s)
  local rem = (r.stepped or s.rem >= r.period) and 0 or s.rem
  return { tokens = max(s.tokens, r.floor), last = s.last, rem = rem }
end

-- The state at `at`; one that lies ahead stays.
local function refilled(r, s, at)
  s = normal(r, s)
  if at <= s.last then return s end
  local full = { tokens = r.capacity, last = at, rem = 0 }
  if s.tokens >= r.capacity then return full end
  local waited, until_full = at - s.last, time_for(r, r.capacity - s.tokens, s.rem)
  -- Full less than a microsecond before `at`: what is there of the next token is no overflow.
  local just = not r.stepped and r.amount < r.period
  if waited > until_full or (waited == until_full and not just) then return full end
  if r.stepped then
    local steps = div(waited, r.period)
    return { tokens = s.tokens + steps * r.amount, last = s.last + steps * r.period, rem = 0 }
  end
  local gained = waited * r.amount + s.rem
  return { tokens = s.tokens + div(gained, r.period), last = at, rem = gained % r.period }
end

-- What a plan keeps to: all that it can hold, in the time that this takes to come.
function kinds.t.pattern(r) return r.most, r.memory end

-- What is missing now, as units that stop counting when the tokens are back.
function kinds.t.taken(r, s)
  s = refilled(r, s or unseen(r, now), now)
  local missing = min(max(r.capacity - s.tokens, 0), r.most)
  local part, times, counts, back = max(div_ceil(missing, 16), 1), {}, {}, 0
  while back < missing do
    local count = min(part, missing - back)
    back = back + count
    put(times, counts, max(s.last + time_for(r, back, s.rem) - r.memory, 0), count, 0)
  end
  return times, counts
end

function kinds.t.earliest(r, s, from, cost)
  s = s or unseen(r, from)
  from = max(from, s.last)
  s = refilled(r, s, from)
  local missing = cost - r.borrow - s.tokens
  if missing <= 0 then return from, true end
  return s.last + time_for(r, missing, s.rem), true
end

function kinds.t.book(r, s, at, cost)
  s = refilled(r, s or unseen(r, at), at)
  s.tokens = s.tokens - cost
  return s
end

-- What was there when `old` ended. Behind places ahead nothing was left; they are gone.
function kinds.t.amend(r, old, s, since)
  local tokens = s.last > since and 0 - old.borrow or refilled(old, s, since).tokens
  return { tokens = min(tokens, r.capacity), last = since, rem = 0 }
end

local function full_at(r, s)
  if s.tokens >= r.capacity then return s.last end
  return s.last + time_for(r, r.capacity - s.tokens, s.rem)
end

function kinds.t.usage(r, s, now)
  s = s or unseen(r, now)
  local ahead = s.last > now
  s = refilled(r, s, now)
  return ahead and 0 or max(s.tokens + r.borrow, 0), max(full_at(r, s) - now, 0)
end

function kinds.t.dies_at(r, s)
  local full = full_at(r, normal(r, s))
  if r.empty then return full + max(24 * 3600 * 1000000, r.memory) end
  return full
end

-- Without those units the bucket may have been full, and what came since would have run over.
function kinds.t.undo(r, s, at, cost, ticket, now)
  s = normal(r, s)
  local came = 0
  if r.stepped then
    if s.last > at or refilled(r, s, now).last ~= s.last then return nil end
  elseif at > s.last then
    return nil
  else
    -- Beyond this all of it came since.
    came = div_ceil(min(s.last - at, time_for(r, cost, 0)) * r.amount, r.period)
  end
  if cost <= came then return nil end
  s.tokens = min(s.tokens + cost - came, r.capacity)
  return s
end

-- Nothing is left at `at`.
function kinds.t.spent(r, at) return { tokens = 0 - r.borrow, last = at, rem = 0 } end
