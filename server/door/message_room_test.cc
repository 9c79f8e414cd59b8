// SPDX-License-Identifier: Apache-2.0
#include "server/door/message_room.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "clients/common/unique_fd.h"
#include "server/door/received_bytes.h"

namespace kiln::server {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class MessageRoomTest : public ::testing::Test {
 protected:
  // A call that waits on a connection.
  struct Call {
    Call(MessageRoom* room, int connection, const std::string& tenant) : waiter(room, connection, tenant) { Wait(); }
    void Wait() {
      waiter.Wait([this](const Failure& failure) { refusal = failure.message; });
    }
    std::string refusal;
    MessageRoom::Waiter waiter;
  };
  using Calls = std::vector<std::unique_ptr<Call>>;

  Call& Add(int connection, const std::string& tenant) { return *calls_.emplace_back(std::make_unique<Call>(&room_, connection, tenant)); }
  std::size_t Refused(const std::string& tenant) const {
    std::size_t count = 0;
    for (const auto& call : calls_) count += call->refusal.find(tenant) != std::string::npos;
    return count;
  }

  std::map<int, std::uint64_t> received_;
  MessageRoom room_{{.capacity = 100 * kMiB, .received = [this](int connection) { return received_[connection]; }, .looks = false}};
  Calls calls_;
};

TEST_F(MessageRoomTest, ATenantMayHoldFourFifths) {
  Call& call = Add(1, "flood");
  received_[1] += 79 * kMiB;
  room_.Look();
  EXPECT_EQ(call.refusal, "");
  received_[1] += 2 * kMiB;
  room_.Look();
  EXPECT_NE(call.refusal.find("the messages of the tenant flood"), std::string::npos) << call.refusal;
  EXPECT_NE(call.refusal.find("--connection-memory"), std::string::npos);
  EXPECT_FALSE(call.waiter.Came());
  EXPECT_EQ(room_.held(), 0u);
}

TEST_F(MessageRoomTest, WhoHoldsTheMostPaysAndNobodyElse) {
  for (int connection = 1; connection <= 7; ++connection) Add(connection, "flood");
  Call& small = Add(8, "small");
  for (int connection = 1; connection <= 7; ++connection) received_[connection] += 10 * kMiB;
  received_[8] += 15 * kMiB;
  room_.Look();
  EXPECT_EQ(Refused("flood"), 1u) << "70 MiB are more than four times the 15 that are free, 60 are less than four times 25";
  EXPECT_EQ(small.refusal, "");
  EXPECT_TRUE(small.waiter.Came());
}

TEST_F(MessageRoomTest, TenantsTogetherStayBelowTheRoom) {
  for (int connection = 1; connection <= 20; ++connection) Add(connection, "tenant " + std::to_string(connection));
  for (int connection = 1; connection <= 20; ++connection) received_[connection] += 6 * kMiB;
  room_.Look();
  std::size_t refused = 0;
  for (const auto& call : calls_) refused += !call->refusal.empty();
  EXPECT_GE(refused, 4u);
  EXPECT_LE(refused, 5u);
  EXPECT_LT(room_.held(), 100 * kMiB);
}

TEST_F(MessageRoomTest, WhatOneMessageHidesBehindOthersIsCounted) {
  Call& half_sent = Add(1, "flood");
  for (int i = 0; i < 100; ++i) {
    Call& whole = Add(1, "flood");
    received_[1] += kMiB;
    ASSERT_TRUE(whole.waiter.Came()) << i;
    room_.Look();
    if (!half_sent.refusal.empty()) break;
  }
  EXPECT_NE(half_sent.refusal, "") << "100 MiB came while it waited, of which nobody knows whose they are";
}

TEST_F(MessageRoomTest, ABusyConnectionHoldsNothingOfWhatHasCome) {
  Calls ring;
  for (int i = 0; i < 4; ++i) ring.push_back(std::make_unique<Call>(&room_, 1, "busy"));
  for (int i = 0; i < 1000; ++i) {  // the connection is never without a call that waits
    received_[1] += kMiB;
    EXPECT_TRUE(ring[static_cast<std::size_t>(i) % 4]->waiter.Came());
    ring[static_cast<std::size_t>(i) % 4]->Wait();
    room_.Look();
  }
  for (const auto& call : ring) EXPECT_EQ(call->refusal, "");
  EXPECT_LT(room_.held(), 6 * kMiB);
}

TEST_F(MessageRoomTest, ManyCallsWithoutAMessageAreManyToo) {
  for (int i = 0; i < 6000; ++i) Add(1 + i % 3, "flood");
  room_.Look();
  const std::size_t refused = Refused("flood");
  EXPECT_GT(refused, 500u);
  EXPECT_LT(refused, 1500u);
  Call& other = Add(9, "other");
  room_.Look();
  EXPECT_EQ(other.refusal, "");
}

TEST_F(MessageRoomTest, ManySmallCallsAtOnceFit) {
  for (int i = 0; i < 4000; ++i) Add(1, "many");
  received_[1] += 4000 * 300;
  room_.Look();
  EXPECT_EQ(Refused("many"), 0u);
}

TEST(ReceivedBytes, CountsWhatRecvmsgBrings) {
  std::array<int, 2> pair{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair.data()), 0);
  const UniqueFd near(pair[0]), far(pair[1]);
  const std::uint64_t before = BytesReceived(near.get());
  const std::string sent(1000, 'x');
  ASSERT_EQ(::send(far.get(), sent.data(), sent.size(), 0), 1000);
  std::array<char, 600> buffer{};
  iovec piece{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  EXPECT_EQ(::recvmsg(near.get(), &message, 0), 600);
  EXPECT_EQ(BytesReceived(near.get()) - before, 600u);
  EXPECT_EQ(::recvmsg(near.get(), &message, 0), 400);
  EXPECT_EQ(BytesReceived(near.get()) - before, 1000u);
  errno = 0;
  EXPECT_EQ(::recvmsg(near.get(), &message, MSG_DONTWAIT), -1);
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(BytesReceived(near.get()) - before, 1000u);
  EXPECT_EQ(BytesReceived(-1), 0u);
}

}  // namespace
}  // namespace kiln::server
