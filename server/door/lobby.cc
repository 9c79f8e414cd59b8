// SPDX-License-Identifier: Apache-2.0
#include "server/door/lobby.h"
#include "cache/mutex.h"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

namespace kiln::server {
namespace {

// "ipv6:%5B::1%5D:5000" and "[::1]:5000" are the same peer.
std::string Plain(std::string_view peer) {
  for (const std::string_view scheme : {"ipv4:", "ipv6:"}) {
    if (peer.starts_with(scheme)) peer.remove_prefix(scheme.size());
  }
  std::string plain;
  for (std::size_t i = 0; i < peer.size(); ++i) {
    const std::string_view escaped = peer.substr(i, 3);
    if (escaped == "%5B" || escaped == "%5D") {
      i += 2;
    } else if (peer[i] != '[' && peer[i] != ']') {
      plain.push_back(peer[i]);
    }
  }
  return plain;
}

}  // namespace

std::string Lobby::NetworkOf(std::string_view peer) {
  std::string address = Plain(peer);
  address.resize(std::min(address.size(), address.rfind(':')));
  std::array<unsigned char, 16> bytes{};
  if (::inet_pton(AF_INET6, address.c_str(), bytes.data()) != 1) return address;
  return std::string(bytes.begin(), bytes.begin() + 8);
}

void Lobby::Enter(int connection, UniqueFd duplicate, const std::string& peer, Time now) {
  cache::MutexLock lock(mutex_);
  std::string& known = peers_[connection];
  if (const auto before = numbers_.find(known); before != numbers_.end() && before->second == connection) numbers_.erase(before);
  known = Plain(peer);
  numbers_[known] = connection;
  guests_.erase(connection);  // one that has gone, whose number this is now
  if (guests_.size() >= options_.connections) MakeRoom();
  guests_.emplace(
      connection,
      Guest{.duplicate = std::move(duplicate), .network = NetworkOf(peer), .entered = now, .received_before = options_.received(connection)});
}

void Lobby::MakeRoom() {
  std::map<std::string_view, std::size_t> counts;
  for (const auto& [connection, guest] : guests_) ++counts[guest.network];
  const auto most = std::ranges::max_element(counts, {}, [](const auto& one) { return one.second; });
  auto oldest = guests_.end();
  for (auto guest = guests_.begin(); guest != guests_.end(); ++guest) {
    if (guest->second.network != most->first) continue;
    if (oldest == guests_.end() || guest->second.entered < oldest->second.entered) oldest = guest;
  }
  CutOff(oldest);
}

void Lobby::CutOff(Guests::iterator guest) {
  ::shutdown(guest->second.duplicate.get(), SHUT_RDWR);
  guests_.erase(guest);
}

int Lobby::ConnectionOf(std::string_view peer) const {
  const std::string plain = Plain(peer);
  cache::MutexLock lock(mutex_);
  const auto at = numbers_.find(plain);
  return at == numbers_.end() ? -1 : at->second;
}

void Lobby::Admit(int connection) {
  cache::MutexLock lock(mutex_);
  guests_.erase(connection);
}

void Lobby::NoteRefusal(int connection) {
  cache::MutexLock lock(mutex_);
  const auto guest = guests_.find(connection);
  if (guest != guests_.end() && ++guest->second.refusals > options_.refusals) CutOff(guest);
}

std::uint64_t Lobby::BytesOf(const Guests::value_type& guest) const { return options_.received(guest.first) - guest.second.received_before; }

void Lobby::ForgetWhoHasGone() {
  std::vector<pollfd> polled;
  for (const auto& [connection, guest] : guests_) polled.push_back({guest.duplicate.get(), POLLRDHUP, 0});
  if (::poll(polled.data(), polled.size(), 0) <= 0) return;
  auto guest = guests_.begin();
  for (const pollfd& one : polled) guest = one.revents != 0 ? guests_.erase(guest) : std::next(guest);
}

void Lobby::Look(Time now) {
  cache::MutexLock lock(mutex_);
  ForgetWhoHasGone();
  std::uint64_t total = 0;
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    const auto at = guest++;
    if (now - at->second.entered > options_.patience) {
      CutOff(at);
    } else {
      total += BytesOf(*at);
    }
  }
  while (total > options_.bytes) {
    const auto most = std::ranges::max_element(guests_, {}, [this](const auto& guest) { return BytesOf(guest); });
    total -= std::min(total, BytesOf(*most));
    CutOff(most);
  }
}

std::size_t Lobby::waiting() const {
  cache::MutexLock lock(mutex_);
  return guests_.size();
}

}  // namespace kiln::server
