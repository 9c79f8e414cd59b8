// SPDX-License-Identifier: Apache-2.0
//
// What of the upstream kilnd is logic: whose token goes with what, the way of a forwarded compile, and how what it says
// is read. That nothing of it is served without a trusted seal is tests/cluster/upstream_test.py's.
#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "kiln/rpc/status.pb.h"
#include "server/reply/status_map.h"
#include "server/upstream/answer.h"
#include "server/upstream/tenant_tokens.h"
#include "server/upstream/upstream_tier.h"
#include "server/upstream/via.h"

namespace kiln::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Via, EachKilndAddsItsName) {
  const std::string one = NewViaName(), other = NewViaName();
  EXPECT_NE(one, other);
  std::string via = Extended({}, one);
  EXPECT_EQ(Hops(via), 1u);
  EXPECT_TRUE(HasName(via, one));
  EXPECT_FALSE(HasName(via, other));
  via = Extended(via, other);
  EXPECT_EQ(Hops(via), 2u);
  EXPECT_TRUE(HasName(via, other));
  EXPECT_EQ(ReadVia(via), via);
}

TEST(Via, WhatNoKilndHasWrittenIsForwardedByNone) {
  EXPECT_EQ(ReadVia(""), "");
  const std::string name = NewViaName();
  std::string long_way = name;
  for (std::size_t i = 0; i < kMostHops; ++i) long_way = Extended(long_way, name);
  for (const std::string& sent : {std::string("x"), name + ",", name + "\n", name.substr(1), name + name, "," + name, long_way}) {
    EXPECT_GE(Hops(ReadVia(sent)), kMostHops) << sent;
  }
}

TEST(TenantTokens, AreOneForEachTenant) {
  const auto tokens = ParseTenantTokens("# ours\n\nteam-a kiln_0a  # the first\n  uid-1000\tkiln_0b\r\ndefault -\n");
  ASSERT_TRUE(tokens) << tokens.error();
  EXPECT_EQ(*tokens, (TenantTokens{{"team-a", "kiln_0a"}, {"uid-1000", "kiln_0b"}, {"default", ""}}));
  EXPECT_EQ(TokensWithoutFile(), (TenantTokens{{"default", ""}}));
}

TEST(TenantTokens, WhatIsWrongIsNamedWithoutTheSecret) {
  for (const auto& [text, why] :
       {std::pair{"team-a\n", "line 1"}, std::pair{"a kiln_1\na kiln_2\n", "line 2: the tenant a has a token already"},
        std::pair{"a kiln_1 read\n", "line 1"}, std::pair{"# nobody\n", "no line names a tenant"}, std::pair{"a kiln_\x01\n", "line 1"}}) {
    const auto tokens = ParseTenantTokens(text);
    ASSERT_FALSE(tokens) << text;
    EXPECT_THAT(tokens.error(), HasSubstr(why));
    EXPECT_THAT(tokens.error(), Not(HasSubstr("kiln_")));
  }
}

TEST(TenantTokens, AFileThatOthersCanReadIsRefused) {
  const cache::testing::TemporaryDirectory folder;
  const auto path = folder / "tokens";
  std::ofstream(path) << "default kiln_1\n";
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  EXPECT_THAT(ReadTenantTokens(path).error(), HasSubstr("chmod 600"));
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_EQ(ReadTenantTokens(path)->at("default"), "kiln_1");
  EXPECT_THAT(ReadTenantTokens(folder / "none").error(), HasSubstr("there is no"));
}

TEST(FetchedEntry, IsTheOneThatWasAskedFor) {
  const cache::Entry entry = cache::testing::NumberedEntry(1);
  const std::string sealed(entry.sealed());
  ASSERT_TRUE(FetchedEntry(entry.key(), sealed));
  EXPECT_EQ(FetchedEntry(cache::testing::KeyOf(2), sealed).error().code, cache::ErrorCode::kCorrupt);
  std::string damaged = sealed;
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  EXPECT_EQ(FetchedEntry(entry.key(), damaged).error().code, cache::ErrorCode::kCorrupt);
  EXPECT_EQ(FetchedEntry(entry.key(), "").error().code, cache::ErrorCode::kCorrupt);
}

class AnswerTest : public ::testing::Test {
 protected:
  AnswerTest() {
    v1::Provenance provenance;
    provenance.set_compiler("build");
    provenance.set_tenant("team-a");
    provenance.set_target("hip:gfx942");
    v1::SealedReply sealed;
    sealed.set_key(std::string(key.view()));
    sealed.set_artifact("artifact");
    sealed.mutable_seal()->set_provenance(provenance.SerializeAsString());
    bytes = sealed.SerializeAsString();
  }

  static grpc::ByteBuffer Buffer(const std::string& text) {
    const grpc::Slice slice(text);
    return grpc::ByteBuffer(&slice, 1);
  }
  std::expected<cache::Entry, std::string> Entry(const Expected& expected) const { return EntryOf(*ReadForwarded(Buffer(bytes)), expected); }

  const cache::Digest key = cache::testing::KeyOf(1), kept_under = cache::testing::KeyOf(2);
  std::string bytes;
};

TEST_F(AnswerTest, NothingIsKeptThatTheSealDoesNotCover) {
  v1::CompileReply more;
  more.add_timings()->set_stage("llvm");
  more.add_dumps()->set_text("text");
  more.set_origin(v1::COMPILED);
  more.set_durable(true);
  const auto reply = ReadForwarded(Buffer(bytes + more.SerializeAsString()));
  ASSERT_TRUE(reply) << reply.error();
  EXPECT_EQ(reply->sealed.SerializeAsString(), bytes);
  ASSERT_EQ(reply->timings.size(), 1u);
  EXPECT_EQ(reply->timings[0].stage(), "llvm");
  ASSERT_EQ(reply->dumps.size(), 1u);
}

TEST_F(AnswerTest, IsOfThisProgramAndThisBuild) {
  const auto entry = Entry({key, kept_under, "team-a", "build"});
  ASSERT_TRUE(entry) << entry.error();
  EXPECT_EQ(entry->key(), kept_under);
  EXPECT_THAT(Entry({key, kept_under, "team-a", "another"}).error(), HasSubstr("compiler build"));
  EXPECT_THAT(Entry({kept_under, kept_under, "team-a", "build"}).error(), HasSubstr("another program"));
}

TEST_F(AnswerTest, WhatIsNoReplyIsRefused) {
  EXPECT_THAT(ReadForwarded(Buffer("\xff")).error(), HasSubstr("no reply"));
  EXPECT_THAT(ReadForwarded(Buffer("")).error(), HasSubstr("not signed"));
}

TEST_F(AnswerTest, DiagnosticsComeAsTheyAre) {
  Failure wrong{.kind = Failure::Kind::kInvalid, .message = "line 3: no"};
  wrong.diagnostics.emplace_back().set_message("no");
  const Failure read = FailureOf(ToStatus(wrong), "there");
  EXPECT_EQ(read.kind, Failure::Kind::kInvalid);
  EXPECT_EQ(read.message, "line 3: no");
  ASSERT_EQ(read.diagnostics.size(), 1u);
  wrong.kind = Failure::Kind::kUnsupported;
  EXPECT_EQ(FailureOf(ToStatus(wrong), "there").kind, Failure::Kind::kUnsupported);
  wrong.kind = Failure::Kind::kDefect;
  wrong.reproducer = "/a/file";
  EXPECT_EQ(FailureOf(ToStatus(wrong), "there").reproducer, "/a/file");
}

TEST_F(AnswerTest, WhatTheHostCannotHelpSaysWhenToComeBack) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::CANCELLED, grpc::StatusCode::UNKNOWN,
                          grpc::StatusCode::UNIMPLEMENTED, grpc::StatusCode::INTERNAL, grpc::StatusCode::NOT_FOUND}) {
    const Failure failure = FailureOf({code, "why"}, "host:1");
    EXPECT_EQ(failure.kind, Failure::Kind::kNoWorker) << code;
    EXPECT_TRUE(failure.retry_after) << code;
    EXPECT_THAT(failure.message, HasSubstr("host:1"));
    EXPECT_THAT(failure.message, HasSubstr("why"));
    EXPECT_EQ(ToStatus(failure).error_code(), grpc::StatusCode::UNAVAILABLE);
  }
}

TEST_F(AnswerTest, ABusyKilndSaysHowLong) {
  const Failure busy{.kind = Failure::Kind::kQueueFull, .message = "full", .retry_after = milliseconds(1'250)};
  const Failure read = FailureOf(ToStatus(busy), "there");
  EXPECT_EQ(read.kind, Failure::Kind::kQueueFull);
  EXPECT_EQ(read.retry_after, milliseconds(1'250));
  EXPECT_EQ(FailureOf({grpc::StatusCode::RESOURCE_EXHAUSTED, "large"}, "there").kind, Failure::Kind::kTooMuch);
}

TEST_F(AnswerTest, ARetryThatNobodyCouldAwaitIsCut) {
  rpc::RetryInfo info;
  info.mutable_retry_delay()->set_seconds(INT64_MAX);
  info.mutable_retry_delay()->set_nanos(-5);
  rpc::Status status;
  google::protobuf::Any& detail = *status.add_details();
  detail.set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  detail.set_value(info.SerializeAsString());
  const Failure read = FailureOf({grpc::StatusCode::UNAVAILABLE, "", status.SerializeAsString()}, "there");
  EXPECT_EQ(read.retry_after, std::chrono::hours(1));
}

TEST_F(AnswerTest, ARefusedTokenIsNoFaultOfTheCallers) {
  const Failure refused = FailureOf({grpc::StatusCode::UNAUTHENTICATED, "no such token"}, "there");
  EXPECT_EQ(ToStatus(refused).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.message, HasSubstr("--upstream-tokens"));
}

}  // namespace
}  // namespace kiln::server
