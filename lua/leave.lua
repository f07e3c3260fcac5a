-- A replica no longer asks about keyed limits: `core::limits::askers`.
--
-- KEYS[1]  the replicas that ask: a hash with, for each, when it did so last
-- ARGV     1 replica
-- Reply    nothing
--
-- Invariant: only the replica that leaves is forgotten.

redis.call('HDEL', KEYS[1], ARGV[1])
