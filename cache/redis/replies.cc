// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/replies.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace kiln::cache::redis {
namespace {

// A host, a port, and more.
std::optional<HostPort> ServerIn(const Reply& reply, const HostPort& from) {
  if (!reply.is_array() || reply.items.size() < 2 || !reply.items[1].is_integer()) return std::nullopt;
  const std::int64_t port = reply.items[1].integer;
  const std::string& host = reply.items[0].text.empty() ? from.host : reply.items[0].text;
  if (port <= 0 || port > 65535 || !IsHost(host)) return std::nullopt;
  return HostPort{host, static_cast<std::uint16_t>(port)};
}

std::optional<Slots> RangeIn(const Reply& range, const HostPort& from) {
  if (!range.is_array() || range.items.size() < 3 || !range.items[0].is_integer() || !range.items[1].is_integer()) return std::nullopt;
  const std::int64_t first = range.items[0].integer, last = range.items[1].integer;
  if (first < 0 || first > last || last >= std::int64_t{kSlots}) return std::nullopt;
  auto master = ServerIn(range.items[2], from);
  if (!master) return std::nullopt;
  Slots slots{static_cast<unsigned>(first), static_cast<unsigned>(last), std::move(*master), {}};
  for (std::size_t i = 3; i < range.items.size() && slots.replicas.size() < kMostServers; ++i) {
    if (auto replica = ServerIn(range.items[i], from)) slots.replicas.push_back(std::move(*replica));
  }
  return slots;
}

bool IsPlausible(std::int64_t left, std::chrono::milliseconds lease) { return left >= 0 && left <= 2 * lease.count(); }

}  // namespace

bool IsRedirection(const Reply& reply) { return reply.IsError("MOVED ") || reply.IsError("ASK "); }

std::optional<Redirection> RedirectionIn(const Reply& reply, const HostPort& from) {
  if (!IsRedirection(reply)) return std::nullopt;
  const std::string_view text = reply.text;
  const std::string_view at = text.substr(text.rfind(' ') + 1);
  auto to = ParseHostPort(at.starts_with(':') ? from.host + std::string(at) : std::string(at));
  if (!to) return std::nullopt;
  return Redirection{reply.IsError("ASK "), std::move(*to)};
}

std::vector<Slots> SlotsIn(const Reply& reply, const HostPort& from) {
  std::vector<Slots> all;
  std::set<HostPort> servers;
  for (const Reply& range : reply.items) {
    auto slots = RangeIn(range, from);
    if (!slots || all.size() == kSlots) continue;
    const auto is_one_too_many = [&](const HostPort& server) {
      if (servers.size() < kMostServers) servers.insert(server);
      return !servers.contains(server);
    };
    if (is_one_too_many(slots->master)) continue;
    std::erase_if(slots->replicas, is_one_too_many);
    all.push_back(std::move(*slots));
  }
  return all;
}

LeaseAnswer LeaseIn(const Reply& reply, std::chrono::milliseconds lease) {
  if (!reply.is_array() || reply.items.empty() || reply.items.size() > 2 || !reply.items[0].is_integer()) return {};
  if (reply.items.size() == 1) return {.end = reply.items[0].integer == 0 ? Leases::End::kThere : Leases::End::kNone};
  if (!reply.items[1].is_integer()) return {};
  const std::int64_t second = reply.items[1].integer;
  if (reply.items[0].integer == 1 && second > 0) return {.end = Leases::End::kMine, .fence = static_cast<std::uint64_t>(second)};
  if (reply.items[0].integer == 2 && IsPlausible(second, lease)) return {.end = Leases::End::kOthers, .left = std::chrono::milliseconds(second)};
  return {};
}

std::optional<std::chrono::milliseconds> LeaseLeftIn(const Reply& reply, std::chrono::milliseconds lease) {
  if (!reply.is_integer() || !IsPlausible(reply.integer, lease)) return std::nullopt;
  return std::chrono::milliseconds(reply.integer);
}

}  // namespace kiln::cache::redis
