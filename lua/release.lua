-- Ends calls in flight (`core::limits::concurrency`, `core::limits::once`), and wakes as many waiting replicas as
-- units came free. Runs after limits/common.lua and the files of the kinds.
--
-- KEYS     see limits/common.lua
-- ARGV     1…  see limits/common.lua, then: channel (where all replicas listen), 1 if `once` limits are to know
--          that the messages of these calls were accepted (else 0), how many calls; for each: cell, ticket
-- Reply    how many of them were under way, or are known as accepted now
--
-- Invariant: only the named calls end. Ending one twice changes nothing and wakes none. A replica that was
-- woken no longer waits until it asks again. An accepted message is recorded as such, whatever was known
-- before.

enter()
declare()
local channel, accepted, ended = argument(), numeric() == 1, 0
for _ = 1, numeric() do
  local cell, ticket = cells[numeric()], argument()
  look(cell)
  local freed
  if not accepted then
    freed = cell.taken and cell.kind.release and cell.kind.release(cell.taken, ticket)
  elseif cell.kind.done then
    cell.taken, cell.changed, cell.done = cell.kind.done(cell.rule), true, true
    ended = ended + 1
  end
  if freed then
    cell.changed, cell.freed = true, (cell.freed or 0) + freed
    ended = ended + 1
  end
end
save()
for i = 1, #cells do
  local cell = cells[i]
  -- A limit that was lowered has less room than came free. Replicas that wait for a key that is done need no
  -- units.
  local units = cell.done and 1 or cell.freed and min(cell.freed, (room(cell))) or 0
  local woken = units > 0 and call('ZPOPMIN', cell.key .. ':waiting', text(units)) or {}
  local name, key = match(cell.key, '([^:]+):([^:]+)$')
  for n = 1, #woken, 2 do
    local each = div_ceil(units, #woken / 2)
    -- A user without the right to this channel still ends calls: those that wait ask again after a while.
    redis.pcall('PUBLISH', channel, table.concat({ 'freed', name, key, woken[n], text(each) }, ' '))
  end
end
return ended
