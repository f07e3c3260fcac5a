-- Returns the key under which the replicas sign the headers of their copies: `store::redis::marks`.
--
-- KEYS[1]  the key
-- ARGV[1]  the key that this replica knows, or one that it made, as hexadecimal digits
-- Reply    the key that all replicas use
--
-- Invariant: a key that is there is never replaced.

if redis.call('SET', KEYS[1], ARGV[1], 'NX') then return ARGV[1] end
return redis.call('GET', KEYS[1])
