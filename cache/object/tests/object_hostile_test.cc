// SPDX-License-Identifier: Apache-2.0
//
// Servers that lie, that answer slowly, and that send us to others.
#include <sys/resource.h>

#include "cache/object/tests/object_test_fixture.h"

namespace kiln::cache::object {
namespace {

using cache::testing::KeyOf;
using cache::testing::NumberedEntry;
using testing::Asked;
using testing::Reply;
using testing::TestServer;
using Send = TestServer::Send;

class ObjectHostileTest : public testing::ObjectTest {
 protected:
  // A server that tells the truth to a probe and to all that is no GET.
  void Lie(std::function<void(const Asked&, const Send&)> answer, std::chrono::milliseconds timeout = kTimeout) {
    tier_.reset();
    Serve({.lie = [answer = std::move(answer)](const Asked& asked, const Send& send) {
      if (asked.method != "GET" || asked.path == PathOf(Digest())) return false;
      answer(asked, send);
      return true;
    }});
    ObjectTier::Options options = Options();
    options.max_entry = std::uint64_t{1} << 20;
    options.store.timeout = timeout;
    Connect(std::move(options));
  }
  void Lie(const std::string& bytes) {
    Lie([bytes](const Asked&, const Send& send) { send(bytes); });
  }
  bool NothingWasRemoved() const { return server_->asked("DELETE") == 0; }
};

// Only what has come takes memory, and of that no more than an entry may have.
TEST_F(ObjectHostileTest, AnEndlessBodyTakesLittleMemoryAndLittleTime) {
  const auto peak = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;  // KiB
  };
  for (const char* const length : {"Content-Length: 1099511627776\r\n", "Transfer-Encoding: chunked\r\n", ""}) {
    Lie(
        [&](const Asked&, const Send& send) {
          const std::string block(std::size_t{64} << 10, 'x');
          const bool chunked = std::string_view(length).contains("chunked");
          for (bool on = send("HTTP/1.1 200 OK\r\n" + std::string(length) + "\r\n"); on;) on = send(chunked ? "10000\r\n" + block + "\r\n" : block);
        },
        std::chrono::seconds(5));
    const long before = peak();
    const SteadyTime began = clock_.SteadyNow();
    EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kInvalid) << length;
    EXPECT_LT(Since(began), std::chrono::seconds(4)) << length;
    EXPECT_LT(peak() - before, 200'000) << "a sanitizer takes several times what it watches";
    EXPECT_TRUE(NothingWasRemoved());
  }
}

TEST_F(ObjectHostileTest, AnEndlessErrorIsCut) {
  Lie([](const Asked&, const Send& send) {
    for (bool on = send("HTTP/1.1 404 Not Found\r\n\r\n"); on;) on = send(std::string(4096, 'x'));
  });
  EXPECT_FALSE(tier_->Get(KeyOf(1))->has_value());
}

// A byte now and then, forever: of the body, of a header, of the first line.
TEST_F(ObjectHostileTest, ADripIsCutOff) {
  for (const char* const beginning : {"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", "HTTP/1.1 200 OK\r\nX: ", "HTTP/1.1 ",
                                      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"}) {
    Lie([beginning](const Asked&, const Send& send) {
      bool on = send(beginning);
      const bool chunked = std::string_view(beginning).contains("chunked");
      for (int i = 0; i < 2000 && on; ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // paces the drip
        on = send(chunked ? "1\r\nx\r\n" : "x");
      }
    });
    const SteadyTime began = clock_.SteadyNow();
    EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kUnreachable) << beginning;
    EXPECT_LT(Since(began), kTimeout + kSlack) << beginning;
    EXPECT_TRUE(NothingWasRemoved());
  }
}

TEST_F(ObjectHostileTest, EndlessHeadersAreCutOff) {
  for (const char* const line : {"X-Another: one\r\n", "HTTP/1.1 100 Continue\r\n\r\n"}) {
    Lie(
        [line](const Asked&, const Send& send) {
          for (bool on = send(std::string_view(line).starts_with("X") ? "HTTP/1.1 200 OK\r\n" : line); on;) on = send(line);
        },
        std::chrono::seconds(5));
    const SteadyTime began = clock_.SteadyNow();
    const auto found = tier_->Get(KeyOf(1));
    ASSERT_FALSE(found);
    EXPECT_TRUE(found.error().message.contains("bytes of headers")) << found.error().message;
    EXPECT_LT(Since(began), std::chrono::seconds(4)) << line;
  }
}

TEST_F(ObjectHostileTest, RedirectionsAreNotFollowed) {
  const TestServer elsewhere;
  const std::string there = "http://" + elsewhere.at().ToText() + "/x";
  for (const char* const status : {"301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"}) {
    Lie(Reply(status, "", "Location: " + there + "\r\n"));
    for (int i = 0; i < 3; ++i) EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kUnreachable) << status;
    EXPECT_FALSE(tier_->available());
  }
  EXPECT_EQ(elsewhere.connections(), 0);
}

TEST_F(ObjectHostileTest, ALengthThatIsALie) {
  const std::string packed = Pack(NumberedEntry(1));
  const auto with_length = [&](std::size_t length, const std::string& body) {
    return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(length) + "\r\n\r\n" + body;
  };
  // More than comes, and then nothing: what is stored may be whole.
  Lie(with_length(packed.size() + 1, packed));
  EXPECT_EQ(WhyNot(KeyOf(1)), ErrorCode::kUnreachable);
  EXPECT_TRUE(NothingWasRemoved());
  // Less than comes: what follows is no answer to the next request.
  Lie(with_length(packed.size(), packed + Reply("200 OK", Pack(NumberedEntry(2)))));
  EXPECT_TRUE(tier_->Get(KeyOf(1))->has_value());
  const auto next = tier_->Get(KeyOf(1));
  EXPECT_TRUE(!next || (*next && (*next)->key() == KeyOf(1)));
  for (const char* const length : {"-1", "x", "99999999999999999999999", "1, 2"}) {
    Lie("HTTP/1.1 200 OK\r\nContent-Length: " + std::string(length) + "\r\n\r\n");
    const auto found = tier_->Get(KeyOf(1));
    EXPECT_TRUE(!found || !*found) << length;
  }
}

// The end of a connection is no end of an object.
TEST_F(ObjectHostileTest, WhatMayBeCutOffIsNotCorrupt) {
  const std::string packed = Pack(NumberedEntry(1));
  for (const std::string& body : {packed.substr(0, packed.size() / 2), packed}) {
    Lie([body](const Asked&, const Send& send) {
      send("HTTP/1.0 200 OK\r\n\r\n" + body);
      send("");
    });
    const auto found = tier_->Get(KeyOf(1));
    if (body == packed) EXPECT_TRUE(found && *found);
    else EXPECT_EQ(found ? ErrorCode::kClosed : found.error().code, ErrorCode::kUnreachable);
    EXPECT_TRUE(NothingWasRemoved());
  }
}

TEST_F(ObjectHostileTest, GarbageIsNeverMoreThanAMiss) {
  const std::string packed = Pack(NumberedEntry(1));
  for (const std::string& garbage :
       {std::string("\r\n\r\n"), std::string("HTTP/9.9 200 OK\r\n\r\n"), std::string("HTTP/1.1 999 \r\n\r\n"), std::string("HTTP/1.1\r\n\r\n"),
        std::string("<html></html>\r\n\r\n"), packed, std::string("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"), Reply("204 No Content"),
        Reply("206 Partial Content", packed), Reply("304 Not Modified"), Reply("418 I'm a teapot", packed), Reply("200 OK", Pack(NumberedEntry(2))),
        Reply("200 OK", packed.substr(1)), Reply("200 OK", packed + packed),
        std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"),
        std::string("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n"),
        std::string("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: NTLM\r\nContent-Length: 0\r\n\r\n")}) {
    Lie(garbage);
    const SteadyTime began = clock_.SteadyNow();
    const auto found = tier_->Get(KeyOf(1));
    EXPECT_TRUE(!found || !*found) << garbage.substr(0, 60);
    EXPECT_LT(Since(began), kTimeout + kSlack) << garbage.substr(0, 60);
  }
}

// A store that has no such bucket has no entries either, but takes none: that is no miss.
TEST_F(ObjectHostileTest, ABucketThatIsNotThereIsTold) {
  Serve({.lie = [](const Asked&, const Send& send) { return send(testing::S3Error("404 Not Found", "NoSuchBucket")); }});
  Open(Options());
  EXPECT_TRUE(SaysEventually("it answers 404 NoSuchBucket"));
  EXPECT_FALSE(tier_->available());
}

TEST_F(ObjectHostileTest, MessagesHaveNothingOfTheServersInThem) {
  Serve({.lie = [](const Asked&, const Send& send) { return send(testing::S3Error("403 Forbidden", "Evil\nevent=forged")); }});
  Open(Options());
  EXPECT_TRUE(SaysEventually("it answers 403"));
  EXPECT_FALSE(Said().contains("Evil"));
}

}  // namespace
}  // namespace kiln::cache::object
