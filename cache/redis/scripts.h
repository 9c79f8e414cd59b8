// SPDX-License-Identifier: Apache-2.0
//
// What the servers do in one step (Lua). A server keeps a script that it has seen, so that it compiles each once.
#pragma once

#include <string_view>

namespace kiln::cache::redis::scripts {

// KEYS entry, lease. ARGV head, body, expiry in ms, fencing number, token or "", channel.
// Writes under a lease that still holds, else only over what has a lower fencing number: an owner that stalled and was replaced changes
// nothing. Ends the lease. Whether it has written.
inline constexpr std::string_view kPut = R"(
local mine = ARGV[5] ~= '' and redis.call('GET', KEYS[2]) == ARGV[5]
local writes = mine or redis.call('EXISTS', KEYS[1]) == 0
if not writes then
  local kept = redis.call('TYPE', KEYS[1]).ok == 'hash' and redis.call('HGET', KEYS[1], 'f') or '0'
  writes = tonumber(ARGV[4]) > (tonumber(kept) or 0)
end
if writes then
  local kind = redis.call('TYPE', KEYS[1]).ok
  if kind ~= 'hash' and kind ~= 'none' then redis.call('DEL', KEYS[1]) end
  redis.call('HSET', KEYS[1], 'h', ARGV[1], 'b', ARGV[2], 'f', ARGV[4])
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
if mine then
  redis.call('DEL', KEYS[2])
  redis.call('PUBLISH', ARGV[6], 'done')
end
return writes and 1 or 0
)";

// KEYS entry. ARGV head, or "".
inline constexpr std::string_view kEvict = R"(
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or ARGV[1] == '' or redis.call('HGET', KEYS[1], 'h') == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
)";

// KEYS lease. ARGV token, channel.
inline constexpr std::string_view kRelease = R"(
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', ARGV[2], 'free')
return 1
)";

// KEYS entry, lease, fence. ARGV token, time of the lease in ms, "1": even if there is a result.
// A fencing number is the time in µs at least, so that it grows even where the server has evicted the last one.
// {1, fencing number}: it is ours; {2, ms}: another's for that long; {0}: there is a result.
inline constexpr std::string_view kTake = R"(
if ARGV[3] ~= '1' and redis.call('EXISTS', KEYS[1]) == 1 then return {0} end
local owner = redis.call('GET', KEYS[2])
if owner and owner ~= ARGV[1] then return {2, redis.call('PTTL', KEYS[2])} end
local fence = redis.call('INCR', KEYS[3])
local kept = 0
if redis.call('TYPE', KEYS[1]).ok == 'hash' then kept = tonumber(redis.call('HGET', KEYS[1], 'f') or '0') or 0 end
local now = redis.call('TIME')
local least = math.max(now[1] * 1000000 + now[2], kept < 9007199254740991 and kept + 1 or 0)
if fence < least then
  fence = least
  redis.call('SET', KEYS[3], string.format('%.0f', fence))
end
redis.call('PEXPIRE', KEYS[3], 86400000)
redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
return {1, fence}
)";

// KEYS entry, lease. As kTake, and takes nothing: {0}, {2, ms}, or {3}: neither is there.
inline constexpr std::string_view kLook = R"(
if redis.call('EXISTS', KEYS[1]) == 1 then return {0} end
if redis.call('EXISTS', KEYS[2]) == 1 then return {2, redis.call('PTTL', KEYS[2])} end
return {3}
)";

// KEYS lease. ARGV token, time of the lease in ms.
inline constexpr std::string_view kRenew = R"(
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
)";

}  // namespace kiln::cache::redis::scripts
