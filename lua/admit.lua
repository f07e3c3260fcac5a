-- Decides on candidates: `core::limits::admission::decide`, line by line. Runs after limits/common.lua
-- and the files of the kinds, in one script.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: wanted (how many slots), replica (names the asker
--          to those that free room), how many candidates; for each: flags (1: it was denied, 2: others wait for
--          a call to end), slots, ticket, when it became a dead letter (0: never), how many charges, and for
--          each charge: cell, cost
-- Reply    {now, number, writes, others, …}, and for each candidate
--          0 (granted), then for each charge remaining, reset_at, next
--          1 (denied), by, fits, until, lacks (0: room, 1: the debt must be paid, 2: the downstream said that less
--            is left), remaining, reset_at
--          2 (never), by, most
--          3 (outdated: the store has another policy than the asker knows), by
--          4 (closed), by, until, why (0: paused, 1: guard, 2: lost)
--          5 (not asked: it takes more slots than are still wanted, comes after such a message, or a key of it is full)
--          6 (not called), by, why (0: it was done, 1: unknown)
--          All are integers; `by` is a charge, from 0; times in microseconds; `next` and `fits` are 0 (now),
--          1 (when a call ends) or a time. `others`: how many other replicas ask, counted where there are no
--          candidates (else 0)
--
-- Invariant: all charges of a candidate are granted or none is. A denial spends nothing. An earlier
-- candidate takes what a later one then lacks. No candidates at all: only the generation is entered, and the
-- asker is noted (`core::limits::askers`).

local RETURN_MAX = 366 * 24 * 3600 * 1000000
local GONE, ASKERS_MAX = 5000000, 1000

-- Records that a replica asks, and returns how many others do. A replica that has just started counts no
-- other as gone: after a step of the clock all seem to have asked long ago.
local function note(replica)
  local key = KEYS[1] .. ':askers'
  local all, others, is_known = call('HGETALL', key), 0, false
  for i = 1, #all, 2 do
    if all[i] == replica then
      is_known = true
    elseif known.number > 0 and max(now - all[i + 1], all[i + 1] - now) > GONE then
      call('HDEL', key, all[i])
    else
      others = others + 1
    end
  end
  if is_known or others < ASKERS_MAX then call('HSET', key, replica, text(now)) end
  call('PEXPIRE', key, text(GENERATION_KEPT))
  return others
end

declare()
local wanted, replica, candidates = numeric(), argument(), numeric()
enter(candidates == 0)
local granted, grants = 0, 0
local reply = { now, generation.number, generation.writes, candidates == 0 and note(replica) or 0 }
local size = #reply
local function answer(...)
  for i = 1, select('#', ...) do
    size = size + 1
    reply[size] = (select(i, ...))
  end
end
local function number_of(fit) return fit == FULL and 1 or fit > now and fit or 0 end

-- This replica waits for calls of a `concurrency` or `once` limit to end.
local function wait(cell)
  if cell.waits or not cell.kind.release then return end
  cell.waits = true
  local key = cell.key .. ':waiting'
  call('ZADD', key, text(now), replica)
  call('PEXPIRE', key, text(div_ceil(cell.rule.lease, 1000)))
end

-- The decision if a limit may not be asked.
local function shut(charges)
  local opens_at, by = now, nil
  for i = 1, #charges do
    gate(charges[i].cell.limit)
    if charges[i].cell.limit.outdated then
      answer(3, i - 1)
      return true
    end
  end
  for i = 1, #charges do
    if charges[i].cell.limit.opens_at > opens_at then opens_at, by = charges[i].cell.limit.opens_at, i end
  end
  if not by then return false end
  answer(4, by - 1, opens_at, charges[by].cell.limit.why)
  return true
end

local function deny(charges, was_denied)
  local latest, by = 0, 1
  for i = 1, #charges do
    local fit = charges[i].fit
    local back = fit
    if fit ~= FULL and fit > now and not was_denied then back = max(charges[i].cell.next_return, fit) end
    if back > latest then latest, by = back, i end
  end
  local cell, fit = charges[by].cell, charges[by].fit
  local lacks = owed(cell) > 0 and 1 or cell.left and charges[by].cost > cell.left and 2 or 0
  answer(1, by - 1, number_of(fit), fit == FULL and 0 or latest, lacks, room(cell))
  if fit == FULL then
    cell.full = true
    wait(cell)
  elseif not was_denied and cell.taken then
    cell.next_return = min(latest + cell.kind.spacing(cell.rule, charges[by].cost), now + RETURN_MAX)
    cell.changed = true
  end
end

-- Returns whether it is granted.
local function decide(charges, was_denied, others_wait, ticket, died)
  if shut(charges) then return false end
  for i = 1, #charges do
    local most = charges[i].cell.rule.most
    if charges[i].cost > most then
      answer(2, i - 1, most)
      return false
    end
  end
  for i = 1, #charges do
    local cell = charges[i].cell
    look(cell)
    if not cell.taken and cell.kind.initial_state then
      cell.taken = cell.kind.initial_state(cell.rule)
      cell.changed = cell.changed or cell.taken ~= nil
    end
    local release_own_claim = cell.taken and cell.kind.release_own_claim
    cell.changed = release_own_claim and release_own_claim(cell.taken, ticket, died) or cell.changed
  end
  for i = 1, #charges do
    local cell = charges[i].cell
    local reason_not_to_call = cell.kind.reason_not_to_call
    local reason = cell.taken and reason_not_to_call and reason_not_to_call(cell.taken)
    if reason then
      answer(6, i - 1, reason)
      return false
    end
  end
  local fits = true
  for i = 1, #charges do
    local charge = charges[i]
    charge.fit = fit(charge.cell, charge.cost)
    fits = fits and charge.fit == now
  end
  if not fits then
    deny(charges, was_denied)
    return false
  end
  answer(0)
  for i = 1, #charges do
    local cell = charges[i].cell
    take(cell, charges[i].cost, ticket)
    if cell.left then cell.left = max(cell.left - charges[i].cost, 0) end
    local remaining, reset_at = room(cell)
    answer(remaining, reset_at, number_of(fit(cell, 1)))
    if others_wait then wait(cell) end
  end
  return true
end

for _ = 1, candidates do
  local flags, slots, ticket, died, charges = numeric(), numeric(), argument(), numeric(), {}
  local full = false
  for i = 1, numeric() do
    charges[i] = { cell = cells[numeric()], cost = numeric() }
    full = full or charges[i].cell.full
  end
  if granted + slots > wanted then
    -- Its slots are not leased. Those behind it are not looked at either: they would always overtake it.
    granted = wanted
    answer(5)
  elseif full then
    answer(5)
  elseif decide(charges, flags % 2 == 1, flags >= 2, ticket, died) then
    granted, grants = granted + slots, grants + 1
  end
end
save()
if grants > 0 then
  reply[3] = generation.writes + grants
  call('HSET', KEYS[1], 'writes', text(reply[3]))
end
return reply
