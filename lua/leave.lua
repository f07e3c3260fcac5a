-- A replica no longer asks about keyed limits (`core::limits::askers`), or no longer uses a limit (`lua/present.lua`).
--
-- KEYS[1]  the replicas: a hash with a field for each
-- ARGV     1 replica
-- Reply    nothing
--
-- Invariant: only the replica that leaves is forgotten.

redis.call('HDEL', KEYS[1], ARGV[1])
