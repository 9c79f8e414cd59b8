// SPDX-License-Identifier: Apache-2.0
#include "server/door/lobby.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <map>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace kiln::server {
namespace {

using std::chrono::seconds;

class LobbyTest : public ::testing::Test {
 protected:
  // The other end of a connection that entered, and gRPC's descriptor of this end.
  struct Peer {
    UniqueFd far;
    UniqueFd near;
    bool CutOff() const {
      char byte = 0;
      return ::recv(far.get(), &byte, 1, MSG_DONTWAIT) == 0;
    }
  };
  Peer Enter(int connection, const std::string& peer) {
    std::array<int, 2> pair{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()), 0);
    lobby_.Enter(connection, UniqueFd(::fcntl(pair[0], F_DUPFD_CLOEXEC, 0)), peer, now_);
    now_ += std::chrono::milliseconds(1);
    return {UniqueFd(pair[1]), UniqueFd(pair[0])};
  }

  Lobby::Time now_{};
  std::map<int, std::uint64_t> received_;
  Lobby lobby_{{.received = [this](int connection) { return received_[connection]; },
                .connections = 3,
                .bytes = 1000,
                .refusals = 2,
                .patience = seconds(20)}};
};

TEST_F(LobbyTest, OneMoreTakesThePlaceOfTheOldestOfTheAddressWithTheMost) {
  const Peer known = Enter(1, "192.0.2.1:1");
  const Peer first = Enter(2, "203.0.113.9:1"), second = Enter(3, "203.0.113.9:2");
  const Peer third = Enter(4, "203.0.113.9:3");
  EXPECT_TRUE(first.CutOff());
  EXPECT_FALSE(known.CutOff()) << "the oldest of all, of another address";
  EXPECT_FALSE(second.CutOff());
  EXPECT_EQ(lobby_.waiting(), 3u);
}

TEST_F(LobbyTest, WhoIsKnownIsOutOfIt) {
  const Peer known = Enter(1, "192.0.2.1:1");
  lobby_.Admit(lobby_.ConnectionOf("ipv4:192.0.2.1:1"));
  EXPECT_TRUE(lobby_.empty());
  received_[1] += 1'000'000;
  lobby_.Look(now_ + seconds(60));
  lobby_.NoteRefusal(1);
  EXPECT_FALSE(known.CutOff());
}

TEST_F(LobbyTest, BeyondItsBytesWhoSentTheMostGoes) {
  received_[2] = 5000;  // of another connection that had the number
  const Peer first = Enter(1, "192.0.2.1:1"), second = Enter(2, "192.0.2.1:2"), third = Enter(3, "192.0.2.1:3");
  received_[1] += 400;
  received_[2] += 500;
  lobby_.Look(now_);
  EXPECT_EQ(lobby_.waiting(), 3u);
  received_[3] += 300;
  lobby_.Look(now_);
  EXPECT_TRUE(second.CutOff());
  EXPECT_FALSE(first.CutOff());
  EXPECT_FALSE(third.CutOff());
}

TEST_F(LobbyTest, NobodyStaysUnknownForEver) {
  const Peer first = Enter(1, "192.0.2.1:1");
  now_ += seconds(15);
  const Peer second = Enter(2, "192.0.2.1:2");
  lobby_.Look(now_ + seconds(6));
  EXPECT_TRUE(first.CutOff());
  EXPECT_FALSE(second.CutOff());
}

TEST_F(LobbyTest, RefusedCallsAreCounted) {
  const Peer peer = Enter(7, "192.0.2.1:1");
  for (int i = 0; i < 2; ++i) lobby_.NoteRefusal(7);
  EXPECT_FALSE(peer.CutOff());
  lobby_.NoteRefusal(7);
  EXPECT_TRUE(peer.CutOff());
  lobby_.NoteRefusal(7);
  lobby_.NoteRefusal(-1);
}

TEST_F(LobbyTest, WhoHasGoneIsForgotten) {
  Peer peer = Enter(1, "192.0.2.1:1");
  const Peer stays = Enter(2, "192.0.2.1:2");
  peer.far.Reset();
  lobby_.Look(now_);
  EXPECT_EQ(lobby_.waiting(), 1u);
}

TEST_F(LobbyTest, ANumberIsTheLastConnectionsThatHadIt) {
  const Peer first = Enter(5, "192.0.2.1:1");
  const Peer second = Enter(5, "[2001:db8::1]:80");
  EXPECT_EQ(lobby_.ConnectionOf("ipv4:192.0.2.1:1"), -1);
  EXPECT_EQ(lobby_.ConnectionOf("ipv6:%5B2001:db8::1%5D:80"), 5);
  EXPECT_EQ(lobby_.waiting(), 1u);
}

TEST_F(LobbyTest, ANetworkOfIPv6IsOneAddress) {
  EXPECT_EQ(Lobby::NetworkOf("[2001:db8:1:2::1]:80"), Lobby::NetworkOf("ipv6:%5B2001:db8:1:2:ffff::9%5D:81"));
  EXPECT_NE(Lobby::NetworkOf("[2001:db8:1:2::1]:80"), Lobby::NetworkOf("[2001:db8:1:3::1]:80"));
  EXPECT_EQ(Lobby::NetworkOf("ipv4:192.0.2.1:80"), "192.0.2.1");
}

}  // namespace
}  // namespace kiln::server
