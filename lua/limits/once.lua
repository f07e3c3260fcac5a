-- The kind `once`: `core::limits::once`, line by line.
--
-- KEYS, reply   those of the script that this is a part of
-- ARGV          ttl, lease, whether a message is a dead letter of which it is unknown if it was accepted (0, 1)
-- State         o <until>: a message was accepted; o <since> <ends> <ticket>: a message has claimed the key
--
-- Invariant: while a claim counts or the key is done, no other message of its key is granted; if unknown
-- messages are dead letters, none is granted after the lease of a claim has ended, either.

kinds.o = {}

function kinds.o.rule(numeric)
  return { most = 1, ttl = numeric(), lease = numeric(), keeps_unknown = numeric() == 1 }
end

local function forgotten(r, ends) return r.keeps_unknown and ends + r.ttl or ends end

-- A key that is free has an empty table.
function kinds.o.load(r, value)
  local since, ends, ticket = match(value, '^o (%d+) (%d+) ([0-9a-f]+)$')
  if ticket then
    since, ends = number(since), number(ends)
    if not (since and ends) or #ticket > 32 then return nil end
    if forgotten(r, ends) <= now then return {} end
    return { since = since, ends = min(ends, now + r.lease), ticket = ticket }, ends > now + r.lease
  end
  local done_until = number(match(value, '^o (%d+)$'))
  if not done_until then return nil end
  if done_until <= now then return {} end
  return { done = min(done_until, now + r.ttl) }, done_until > now + r.ttl
end

function kinds.o.save(s)
  if s.done then return 'o ' .. text(s.done) end
  if s.ticket then return format('o %.0f %.0f ', s.since, s.ends) .. s.ticket end
  return 'o 0'
end

local function free_at(r, s)
  if not s then return now end
  if s.done then return s.done end
  if not s.ticket then return now end
  return s.ends > now and s.ends or forgotten(r, s.ends)
end

function kinds.o.fit(r, s)
  if s and s.ticket and s.ends > now then return FULL end
  return free_at(r, s)
end

function kinds.o.take(r, s, cost, ticket) return { since = now, ends = now + r.lease, ticket = ticket } end

-- A ticket is hexadecimal. Its last six digits count the questions for one message, the others name the message.
local function is_before(held, ticket)
  return sub(held, 1, -7) == sub(ticket, 1, -7)
    and (#held < #ticket or #held == #ticket and held < ticket)
end

-- Releases a claim without a call in flight: an earlier claim of the message that asks under `ticket`, or one from
-- before that message became a dead letter at `died` (0: never). Returns whether a claim was released.
function kinds.o.release_own_claim(s, ticket, died)
  if not s.ticket then return false end
  if not (is_before(s.ticket, ticket) or s.ends <= now and s.since <= died) then return false end
  s.ticket = nil
  return true
end

-- Why a message is not called: 0: it was accepted, 1: that is unknown; nil: it may be called.
function kinds.o.reason_not_to_call(s)
  if s.done then return 0 end
  return s.ticket and s.ends <= now and 1 or nil
end

-- Ends a claim. Returns its units.
function kinds.o.release(s, ticket)
  if s.ticket ~= ticket then return nil end
  s.ticket = nil
  return 1
end

-- A message was accepted, whatever was known before.
function kinds.o.done(r) return { done = now + r.ttl } end

function kinds.o.renew(r, s, ticket)
  if s.ticket ~= ticket or s.ends <= now then return false end
  s.ends = now + r.lease
  return true
end

function kinds.o.room(r, s)
  local at = free_at(r, s)
  return at <= now and 1 or 0, at
end

function kinds.o.spacing() return 0 end
function kinds.o.expires_at(r, s)
  if s.done then return s.done end
  return s.ticket and forgotten(r, s.ends) or 0
end

function kinds.o.span(r) return r.lease end
