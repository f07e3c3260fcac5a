-- The kind `token_bucket`: `core::limits::token_bucket`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          capacity, amount, period, stepped (1), empty (1: a new key's bucket is), borrow
-- State         t <tokens> <last> <rem>: tokens (below zero after borrowing) as of `last`, and what of the
--               next one is there, in parts of the period
--
-- Invariant: never more than `capacity` tokens, never less than minus `borrow`.

kinds.t = {}

-- An empty start is remembered at least this long after the bucket was full again.
local KEEP = 24 * 3600 * 1000000

-- How long this many tokens take to come, if `rem` has come already.
local function time_for(r, tokens, rem)
  if r.stepped then return div_ceil(tokens, r.amount) * r.period end
  return div_ceil(tokens * r.period - rem, r.amount)
end

function kinds.t.rule(numeric)
  local r = { capacity = numeric(), amount = numeric(), period = numeric(),
    stepped = numeric() == 1, empty = numeric() == 1, borrow = numeric() }
  r.most = r.capacity + r.borrow
  r.memory = time_for(r, r.most, 0)
  return r
end

function kinds.t.load(r, value)
  local minus, tokens, last, rem = match(value, '^t (%-?)(%d+) (%d+) (%d+)$')
  tokens, last, rem = number(tokens), number(last), number(rem)
  if not (tokens and last and rem) then return nil end
  if minus == '-' and tokens > 0 then tokens = -tokens end
  -- Other numbers may have left a larger debt, or a fraction of another size.
  if r.stepped or rem >= r.period then rem = 0 end
  -- Not `-r.borrow`: without any it would be written as -0.
  return { tokens = max(tokens, 0 - r.borrow), last = min(last, now), rem = rem }, last > now
end

function kinds.t.save(s) return format('t %.0f %.0f %.0f', s.tokens, s.last, s.rem) end

local function unseen(r) return { tokens = r.empty and 0 or r.capacity, last = now, rem = 0 } end

-- The state as it is now.
local function refilled(r, s)
  if not s then return unseen(r) end
  local tokens, last, rem = s.tokens, s.last, s.rem
  local waited = now - last
  -- Other numbers may have left more tokens than it can hold.
  if tokens >= r.capacity or waited >= time_for(r, r.capacity - tokens, rem) then
    return { tokens = r.capacity, last = now, rem = 0 }
  end
  if r.stepped then
    local steps = div(waited, r.period)
    return { tokens = tokens + steps * r.amount, last = last + steps * r.period, rem = 0 }
  end
  local gained = waited * r.amount + rem
  return { tokens = tokens + div(gained, r.period), last = now, rem = gained % r.period }
end

local function full_at(r, s)
  local missing = max(r.capacity - s.tokens, 0)
  return missing == 0 and s.last or s.last + time_for(r, missing, s.rem)
end

function kinds.t.fit(r, s, cost)
  s = refilled(r, s)
  local missing = cost - r.borrow - s.tokens
  return missing <= 0 and now or s.last + time_for(r, missing, s.rem)
end

function kinds.t.take(r, s, cost)
  s = refilled(r, s)
  s.tokens = s.tokens - cost
  return s
end

function kinds.t.untouched(r) return unseen(r) end

-- Without the returned units the bucket might have been full since, and tokens that came would have
-- overflowed.
function kinds.t.refund(r, s, at, cost, passed)
  if at == s.last then
    return refilled(r, { tokens = min(s.tokens + cost, r.capacity), last = s.last, rem = s.rem })
  end
  local taken_at, came = s.last, 0
  s = refilled(r, s)
  if not r.stepped then
    if at > taken_at then return nil end
    came = min(passed, time_for(r, cost, 0)) * r.amount
  elseif s.last > at or passed > max(now - at, 0) + 2 * UNNOTICED then
    -- A step came since, or may have come before the clock went back.
    return nil
  end
  local back = cost * r.period - came
  if back <= 0 then return nil end
  local parts = s.rem + back
  local all = s.tokens + div(parts, r.period)
  if all >= r.capacity then return { tokens = r.capacity, last = s.last, rem = 0 } end
  return { tokens = all, last = s.last, rem = parts % r.period }
end

function kinds.t.room(r, s)
  s = refilled(r, s)
  return max(s.tokens + r.borrow, 0), max(full_at(r, s), now)
end

function kinds.t.spacing(r, cost) return div_ceil(cost * r.period, r.amount) end
function kinds.t.expires_at(r, s)
  return full_at(r, s) + (r.empty and max(KEEP, r.memory) or 0)
end
function kinds.t.span(r) return r.memory end
function kinds.t.back_at(r, s) return full_at(r, s) end
function kinds.t.initial_state(r) return r.empty and unseen(r) or nil end
