// SPDX-License-Identifier: Apache-2.0
//
// Who may do what through kilnd's Unix socket: peers, tokens, scopes, tenants, and what the audit log keeps of it.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <future>
#include <iterator>
#include <map>
#include <optional>
#include <thread>

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <grpcpp/impl/codegen/client_unary_call.h>

#include "server/access/method_scopes.h"
#include "server/access/tokens.h"
#include "server/telemetry/line_budget.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

class AccessTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    fs::create_directories(daemon_->State());
  }

  // A token in the file of the next start (or of the running daemon, within a second or two).
  std::string NewToken(const std::string& name, const std::string& tenant, const std::string& scopes, std::optional<WallSeconds> expires = {}) {
    const std::string secret = NewSecret();
    tokens_.push_back({name, tenant, *ParseScopes(scopes), HashToken(secret), expires});
    EXPECT_TRUE(WriteTokens(TokenFile(), tokens_));
    return secret;
  }
  fs::path TokenFile() const { return fs::path(daemon_->State()) / "tokens"; }

  grpc::Status Compile(const std::string& secret, const v1::CompileRequest& request, v1::CompileReply* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    context.AddMetadata("authorization", "Bearer " + secret);
    return daemon_->stub().Compile(&context, request, reply);
  }
  grpc::Status Lookup(const std::string& secret, const std::string& key, v1::CompileReply* reply) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
    v1::LookupRequest request;
    request.set_key(key);
    context.AddMetadata("authorization", "Bearer " + secret);
    return daemon_->stub().Lookup(&context, request, reply);
  }
  // The code of a call of user 4242. Between the fork and the exec other threads' locks may be held for ever: nothing is made there, and a
  // clock ends whatever hangs.
  int AsAnother(const char* method) {
    const std::string say =
        "import grpc, sys\n"
        "call = grpc.insecure_channel('unix:" +
        daemon_->Socket() +
        "').unary_unary('/kiln.v1.Kiln/' + sys.argv[1])\n"
        "try: call(b'', timeout=20)\n"
        "except grpc.RpcError as e: sys.exit(e.code().value[0])\n";
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(60);
      if (::setresuid(4242, 4242, 4242) != 0) ::_exit(100);
      ::execl("/usr/bin/python3", "python3", "-c", say.c_str(), method, nullptr);
      ::_exit(101);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 102;
  }
  // With an empty request, whatever the method takes.
  grpc::Status Call(const std::string& method, const std::string& secret) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
    context.AddMetadata("authorization", "Bearer " + secret);
    const std::string path = "/kiln.v1.Kiln/" + method;
    const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
    const grpc::Slice slice("");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    return grpc::internal::BlockingUnaryCall(&daemon_->channel(), rpc, &context, request, &reply);
  }

  std::vector<Token> tokens_;
};

std::vector<std::string> Methods() {
  const auto* service = google::protobuf::DescriptorPool::generated_pool()->FindServiceByName("kiln.v1.Kiln");
  std::vector<std::string> names;
  for (int i = 0; i < service->method_count(); ++i) names.push_back(service->method(i)->name());
  return names;
}

TEST(MethodScopes, EveryMethodOfTheServiceHasOneAndNoOther) {
  const auto methods = Methods();
  for (const std::string& method : methods) EXPECT_TRUE(ScopeOf(method)) << method << " needs a row in method_scopes.h";
  for (const MethodScope& row : kMethodScopes) {
    EXPECT_NE(std::ranges::find(methods, row.method), methods.end()) << row.method << " is no method";
  }
}

TEST_F(AccessTest, EveryMethodAsksForItsScope) {
  std::map<Scope, std::string> without;  // a token with every scope but that
  for (const Scope scope : {Scope::kRead, Scope::kCompile, Scope::kTune, Scope::kRun, Scope::kAdmin}) {
    const std::uint8_t rest = 31 & ~static_cast<std::uint8_t>(scope);
    without[scope] = NewToken("without-" + std::string(NameOf(scope)), "t", FormatScopes(rest));
  }
  daemon_->Start();
  for (const std::string& method : Methods()) {
    const grpc::Status stranger = Call(method, "kiln_of_nobody");
    if (stranger.error_code() == StatusCode::UNIMPLEMENTED) continue;  // there is nothing to be protected yet
    EXPECT_EQ(stranger.error_code(), StatusCode::UNAUTHENTICATED) << method << ": " << stranger.error_message();
    const Scope scope = ScopeOf(method).value();
    const grpc::Status refused = Call(method, without[scope]);
    EXPECT_EQ(refused.error_code(), StatusCode::PERMISSION_DENIED) << method << ": " << refused.error_message();
    EXPECT_THAT(refused.error_message(), ::testing::HasSubstr(std::string(NameOf(scope)))) << method;
  }
  EXPECT_THAT(daemon_->LogText(), ::testing::HasSubstr("audit=\"refused\""));
}

TEST_F(AccessTest, TheCaseOfTheSchemeDoesNotCount) {
  fs::create_directories(daemon_->State());
  const std::string secret = NewToken("ci", "ci", "read,admin");
  daemon_->Start();
  for (const char* scheme : {"Bearer ", "bearer ", "BEARER "}) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", scheme + secret);
    v1::StatsReply reply;
    EXPECT_TRUE(daemon_->stub().Stats(&context, {}, &reply).ok()) << scheme;
  }
  for (const std::string& header : {"Bearer" + secret, "Basic " + secret, std::string("bear")}) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", header);
    v1::StatsReply reply;
    EXPECT_EQ(daemon_->stub().Stats(&context, {}, &reply).error_code(), grpc::StatusCode::UNAUTHENTICATED) << header;
  }
}

TEST_F(AccessTest, WhatIsNoMessageIsRefusedByEveryMethodThatTakesOne) {
  daemon_->Start();
  for (const char* method : {"Stats", "CacheVerify", "Capabilities", "CacheGc", "Put"}) {
    const std::string path = std::string("/kiln.v1.Kiln/") + method;
    const grpc::internal::RpcMethod rpc(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
    const grpc::Slice slice("\xff\xff\xff\xff");
    const grpc::ByteBuffer request(&slice, 1);
    grpc::ByteBuffer reply;
    grpc::ClientContext context;
    EXPECT_EQ(grpc::internal::BlockingUnaryCall(&daemon_->channel(), rpc, &context, request, &reply).error_code(), grpc::StatusCode::INVALID_ARGUMENT)
        << method;
  }
}

TEST_F(AccessTest, WorkersDoNotGetTheDaemonsEnvironment) {
  ::setenv("KILN_TOKEN", "a secret", 1);
  ::setenv("CUDA_CACHE_DISABLE", "1", 1);
  daemon_->Start();
  ::unsetenv("KILN_TOKEN");
  ::unsetenv("CUDA_CACHE_DISABLE");
  const auto zygotes = Daemon::Children(daemon_->pid());
  ASSERT_FALSE(zygotes.empty());
  for (const pid_t zygote : zygotes) {
    std::ostringstream text;
    text << std::ifstream("/proc/" + std::to_string(zygote) + "/environ").rdbuf();
    EXPECT_EQ(text.str().find("KILN_TOKEN"), std::string::npos);
    EXPECT_NE(text.str().find("CUDA_CACHE_DISABLE=1"), std::string::npos) << text.str();
  }
}

TEST_F(AccessTest, TheSocketIsItsOwnersAndThePeerIsKnown) {
  daemon_->Start();
  struct stat status{};
  ASSERT_EQ(::stat(daemon_->Socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  daemon_->Stats();
  EXPECT_THAT(daemon_->LogText(),
              ::testing::HasSubstr("audit=\"admin\" method=\"Stats\" caller=\"uid " + std::to_string(::getuid()) + "\" tenant=\"default\""));
}

TEST_F(AccessTest, AnotherUserIsATenantOfItsOwn) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  fs::permissions(folder_, fs::perms::all);
  daemon_->Start({"--socket-mode=0666"});
  EXPECT_EQ(AsAnother("Stats"), static_cast<int>(StatusCode::PERMISSION_DENIED));
  EXPECT_THAT(daemon_->LogText(), ::testing::HasSubstr("caller=\"uid 4242\" tenant=\"uid-4242\""));
}

TEST_F(AccessTest, AnotherUserHasNoRightsUnlessTheAccessFileNamesIt) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can become another user";
  fs::permissions(folder_, fs::perms::all);
  const std::string access = (folder_ / "access.toml").string();
  WriteGuarded(access, "[[user]]\nuid = 4243\ntenant = \"t\"\nscopes = [\"read\"]\n");
  daemon_->Start({"--socket-mode=0666", "--access=" + access});
  EXPECT_EQ(AsAnother("Capabilities"), static_cast<int>(StatusCode::PERMISSION_DENIED));
  WriteGuarded(access, "[[user]]\nuid = \"*\"\ntenant = \"t\"\nscopes = [\"read\"]\n");
  EXPECT_TRUE(daemon_->Eventually([&] { return AsAnother("Capabilities") == 0; }));
}

TEST_F(AccessTest, OnlyAnAdminHasAProgramThatKillsWorkersTriedAgain) {
  const std::string maker = NewToken("maker", "team", "read,compile");
  const std::string admin = NewToken("admin", "team", "read,compile,admin");
  daemon_->Start();
  auto request = MakeRequest(Order::kAbort);
  v1::CompileReply reply;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(Compile(maker, request, &reply).error_code(), StatusCode::INTERNAL);
  request.set_refresh(true);
  const grpc::Status refused = Compile(maker, request, &reply);
  EXPECT_EQ(refused.error_code(), StatusCode::INTERNAL);
  EXPECT_THAT(refused.error_message(), ::testing::HasSubstr("with the scope admin, --refresh tries it here"));
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 2u);
  EXPECT_EQ(Compile(admin, request, &reply).error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(daemon_->Stats().worker_crashes(), 3u);
}

TEST_F(AccessTest, AWorkerServesOneTenant) {
  const std::string alice = NewToken("alice", "a", "read,compile");
  const std::string bob = NewToken("bob", "b", "read,compile");
  daemon_->Start({"--workers=1"});
  const pid_t zygote = Daemon::Children(daemon_->pid()).at(0);
  uint32_t next = 0;
  v1::CompileReply reply;
  const auto worker_of = [&](const std::string& secret) {
    EXPECT_TRUE(Compile(secret, MakeRequest(Order::kAnswer, ++next), &reply).ok());
    std::vector<pid_t> workers;  // who lists the GPUs is one too, and ends then
    EXPECT_TRUE(daemon_->Eventually([&] { return (workers = Daemon::Children(zygote)).size() == 1; }));
    return workers.at(0);
  };
  const pid_t first = worker_of(alice);
  EXPECT_EQ(worker_of(alice), first) << "its own jobs share one";
  const pid_t second = worker_of(bob);
  EXPECT_NE(second, first);
  EXPECT_EQ(worker_of(bob), second);
  EXPECT_NE(worker_of(alice), second);
  EXPECT_EQ(daemon_->Stats().worker_restarts_size(), 0) << "which is nothing to ring a bell for";
}

TEST_F(AccessTest, WithoutCompileThereAreHitsOnly) {
  const std::string maker = NewToken("maker", "team", "read,compile");
  const std::string reader = NewToken("reader", "team", "read");
  daemon_->Start();
  const auto request = MakeRequest(Order::kAnswer, 3);
  v1::CompileReply reply;
  const grpc::Status miss = Compile(reader, request, &reply);
  EXPECT_EQ(miss.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(miss.error_message(), ::testing::HasSubstr("needs the scope compile"));
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
  EXPECT_TRUE(Compile(maker, request, &reply).ok());
  EXPECT_TRUE(Compile(reader, request, &reply).ok());
  EXPECT_EQ(reply.origin(), v1::MEMORY);
  auto refresh = request;
  refresh.set_refresh(true);
  EXPECT_EQ(Compile(reader, refresh, &reply).error_code(), StatusCode::PERMISSION_DENIED);
  auto explain = request;
  explain.mutable_explain();
  EXPECT_EQ(Compile(reader, explain, &reply).error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(daemon_->Stats().compiles(), 1u);
}

TEST_F(AccessTest, NobodyReadsAnotherTenantsEntriesByKnowingADigest) {
  const std::string alice = NewToken("alice", "alice", "read,compile");
  const std::string bob = NewToken("bob", "bob", "read,compile");
  const std::string plain = NewToken("plain", "default", "read,compile");
  daemon_->Start();
  const auto request = MakeRequest(Order::kAnswer, 3);
  v1::CompileReply reply;
  ASSERT_TRUE(Compile(alice, request, &reply).ok());
  const std::string key = reply.key();
  EXPECT_TRUE(Lookup(alice, key, &reply).ok());
  EXPECT_EQ(Lookup(bob, key, &reply).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Lookup(plain, key, &reply).error_code(), StatusCode::NOT_FOUND);

  // Nor by the key it is kept under, which an admin can see; and asking for it does not take it away.
  v1::CacheEntry entry;
  ASSERT_TRUE(daemon_->Eventually([&] {
    grpc::ClientContext context;
    return daemon_->stub().CacheList(&context, {})->Read(&entry);
  })) << "it is on the disk a moment after it was answered";
  EXPECT_EQ(entry.tenant(), "alice");
  EXPECT_NE(entry.key(), key);
  for (const std::string& other : {bob, plain}) {
    EXPECT_EQ(Lookup(other, entry.key(), &reply).error_code(), StatusCode::NOT_FOUND);
  }
  EXPECT_TRUE(Lookup(alice, key, &reply).ok());

  // The same request compiles once for each of them.
  ASSERT_TRUE(Compile(bob, request, &reply).ok());
  EXPECT_EQ(reply.origin(), v1::COMPILED);
  EXPECT_EQ(reply.key(), key) << "clients see the program's key, whoever they are";
  EXPECT_EQ(daemon_->Stats().compiles(), 2u);
}

TEST_F(AccessTest, TokensExpireAndAreRevokedWithoutARestart) {
  const auto now = std::chrono::floor<std::chrono::seconds>(std::chrono::system_clock::now());
  const std::string old = NewToken("old", "t", "read,compile", now - std::chrono::seconds(1));
  const std::string good = NewToken("good", "t", "read,compile", now + std::chrono::hours(1));
  daemon_->Start();
  const auto request = MakeRequest(Order::kAnswer, 3);
  v1::CompileReply reply;
  const grpc::Status expired = Compile(old, request, &reply);
  EXPECT_EQ(expired.error_code(), StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(expired.error_message(), ::testing::HasSubstr("expired"));
  EXPECT_TRUE(Compile(good, request, &reply).ok());

  std::erase_if(tokens_, [](const Token& token) { return token.name == "good"; });
  const std::string added = NewToken("added", "t", "read,compile");
  EXPECT_TRUE(daemon_->Eventually([&] { return Compile(added, request, &reply).ok(); }));
  EXPECT_EQ(Compile(good, request, &reply).error_code(), StatusCode::UNAUTHENTICATED);

  // A file that is wrong changes nothing, and is told.
  std::ofstream(TokenFile()) << "nonsense\n";
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("a line is NAME TENANT") != std::string::npos; }));
  EXPECT_TRUE(Compile(added, request, &reply).ok());

  // SIGHUP reads it at once, though the file's times do not change.
  ASSERT_TRUE(WriteTokens(TokenFile(), tokens_));
  ::kill(daemon_->pid(), SIGHUP);
  EXPECT_TRUE(daemon_->Eventually([&] { return Compile(added, request, &reply).ok(); }));
}

TEST_F(AccessTest, WhoMayOnlyReadHasRankingsThatAreKnown) {
  const std::string reads = NewToken("reads", "t", "read"), compiles = NewToken("compiles", "t", "read,compile");
  daemon_->Start();
  v1::RankRequest space;
  space.set_space("tiles"), *space.add_candidates() = MakeRequest(Order::kAnswer, 30);
  std::vector<std::uint32_t> codes;
  for (const std::string& secret : {reads, compiles, reads}) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    const auto reader = daemon_->stub().Rank(&context, space);
    for (v1::RankProgress news; reader->Read(&news);) codes.push_back(news.candidates(0).code());
  }
  EXPECT_THAT(codes, ::testing::ElementsAre(StatusCode::PERMISSION_DENIED, 0, 0)) << "refused, ranked, known";
}

TEST_F(AccessTest, ARevokedTokensManifestEnds) {
  const std::string secret = NewToken("lost", "t", "read,compile");
  daemon_->Start({"--workers=1"});
  v1::EnsureRequest manifest;
  for (uint32_t i = 0; i < 200; ++i) *manifest.add_requests() = MakeRequest(Order::kSleep, 10 + i);  // minutes
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context.AddMetadata("authorization", "Bearer " + secret);
  const auto reader = daemon_->stub().EnsureKernels(&context, manifest);
  v1::EnsureProgress progress;
  while (progress.compiled() == 0) ASSERT_TRUE(reader->Read(&progress));
  tokens_.clear();
  ASSERT_TRUE(WriteTokens(TokenFile(), tokens_));
  while (reader->Read(&progress)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAUTHENTICATED) << status.error_message();
  EXPECT_LT(progress.compiled(), progress.total());
  EXPECT_THAT(daemon_->LogText(), ::testing::HasSubstr("audit=\"ended\" method=\"EnsureKernels\" caller=\"token lost\""));
}

TEST_F(AccessTest, ARevokedTokensStreamEndsWithoutItsResult) {
  const std::string secret = NewToken("lost", "t", "read,compile");
  daemon_->Start();
  auto result = std::async(std::launch::async, [&] {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + secret);
    const auto reader = daemon_->stub().CompileStream(&context, MakeRequest(Order::kSleep, kLong));
    v1::CompileProgress progress;
    bool replied = false;
    while (reader->Read(&progress)) replied |= progress.has_reply();
    EXPECT_FALSE(replied);
    return reader->Finish();
  });
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->Stats().workers_busy() == 1; }));
  tokens_.clear();
  ASSERT_TRUE(WriteTokens(TokenFile(), tokens_));
  v1::CompileReply reply;
  ASSERT_TRUE(
      daemon_->Eventually([&] { return Compile(secret, MakeRequest(Order::kAnswer, 3), &reply).error_code() == StatusCode::UNAUTHENTICATED; }));
  EXPECT_EQ(daemon_->Woken(result).error_code(), StatusCode::UNAUTHENTICATED);
}

TEST_F(AccessTest, ARevocationHoldsThoughTheAccessFileIsWrong) {
  const std::string access = (folder_ / "access.toml").string();
  WriteGuarded(access, "[[tenant]]\nname = \"t\"\nrequests = 9\n");
  const std::string secret = NewToken("lost", "t", "read,compile");
  daemon_->Start({"--access=" + access});
  v1::CompileReply reply;
  ASSERT_TRUE(Compile(secret, MakeRequest(Order::kAnswer, 3), &reply).ok());
  WriteGuarded(access, "nonsense");
  ASSERT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("event=access-reloaded error=\"" + access) != std::string::npos; }));
  tokens_.clear();
  ASSERT_TRUE(WriteTokens(TokenFile(), tokens_));
  EXPECT_TRUE(
      daemon_->Eventually([&] { return Compile(secret, MakeRequest(Order::kAnswer, 3), &reply).error_code() == StatusCode::UNAUTHENTICATED; }));
}

TEST_F(AccessTest, CommandsThatChangeTheTokensAtOnceLoseNone) {
  std::vector<std::jthread> commands;
  for (int i = 0; i < 16; ++i) {
    commands.emplace_back([&, i] {
      const std::string command =
          std::string(KILN_BIN "/kilnd token new --tokens=") + TokenFile().string() + " name-" + std::to_string(i) + " >/dev/null 2>&1";
      EXPECT_EQ(std::system(command.c_str()), 0);
    });
  }
  commands.clear();
  EXPECT_EQ(ReadTokens(TokenFile())->size(), 16u);
  EXPECT_EQ(std::distance(fs::directory_iterator(daemon_->State()), {}), 1) << "nothing else is left behind";
}

TEST_F(AccessTest, AScopeThatNobodyKnowsMakesNoToken) {
  const auto make = [&](const std::string& scopes) {
    return std::system((KILN_BIN "/kilnd token new --tokens=" + TokenFile().string() + " name --scopes=" + scopes + " >/dev/null 2>&1").c_str());
  };
  EXPECT_NE(make("tunes"), 0);
  EXPECT_EQ(make("tune"), 0);
  EXPECT_EQ(ReadTokens(TokenFile())->size(), 1u);
}

std::string TextOf(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST_F(AccessTest, AnAuditLogOfItsOwn) {
  const std::string audit = (folder_ / "audit.log").string();
  daemon_->Start({"--audit-log=" + audit});
  EXPECT_EQ(Call("Stats", "kiln_wrong").error_code(), StatusCode::UNAUTHENTICATED);
  daemon_->Stats();
  const std::string text = TextOf(audit);
  EXPECT_THAT(text, ::testing::HasSubstr("audit=\"refused\" method=\"Stats\""));
  EXPECT_THAT(text, ::testing::HasSubstr("audit=\"admin\" method=\"Stats\""));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("kiln_wrong"))) << "secrets are not logged";
  EXPECT_THAT(daemon_->LogText(), ::testing::Not(::testing::HasSubstr("audit=")));
}

TEST_F(AccessTest, TheAuditLogTellsWhatChangesAndWhatIsPut) {
  const std::string audit = (folder_ / "audit.log").string();
  const fs::path access = folder_ / "access.toml";
  WriteGuarded(access, "");
  daemon_->Start({"--audit-log=" + audit, "--access=" + access.string()});
  v1::PutRequest put;
  *put.mutable_request() = MakeRequest(Order::kAnswer, 1);
  *put.mutable_artifact() = daemon_->Compile(put.request()).reply.artifact();
  grpc::ClientContext context;
  v1::PutReply reply;
  ASSERT_TRUE(daemon_->stub().Put(&context, put, &reply).ok());
  WriteGuarded(access, "[[tenant]]\nname = \"default\"\ncompile-seconds = 0\n");
  uint32_t next = 2;
  EXPECT_TRUE(daemon_->Eventually([&] { return !daemon_->Compile(MakeRequest(Order::kAnswer, next++)).status.ok(); })) << "none is a hit";
  const std::string text = TextOf(audit);
  EXPECT_THAT(text, ::testing::HasSubstr("audit=\"put\" caller=\"uid " + std::to_string(::getuid()) + "\" tenant=\"default\" key=\""));
  EXPECT_THAT(text, ::testing::HasSubstr("sealed=\"no\""));
  EXPECT_THAT(text, ::testing::HasSubstr("event=access-reloaded error=\"\""));
  EXPECT_THAT(text, ::testing::HasSubstr("audit=\"quota\" tenant=\"default\" why=\"the tenant default has used up its 0 compile-seconds"));
}

TEST_F(AccessTest, LogsThatHaveBeenMovedAwayAreOpenedAgain) {
  const std::string audit = (folder_ / "audit.log").string();
  daemon_->Start({"--audit-log=" + audit});
  for (const std::string& log : {audit, daemon_->Log()}) fs::rename(log, log + ".1");
  ::kill(daemon_->pid(), SIGHUP);
  EXPECT_TRUE(daemon_->Eventually([&] { return fs::exists(audit) && fs::exists(daemon_->Log()); }));
  daemon_->Stats();
  EXPECT_TRUE(daemon_->Eventually([&] { return TextOf(audit).find("audit=\"admin\" method=\"Stats\"") != std::string::npos; }));
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->LogText().find("method=\"Stats\"") != std::string::npos; })) << daemon_->LogText();
  EXPECT_THAT(TextOf(audit + ".1"), ::testing::Not(::testing::HasSubstr("Stats")));
}

TEST_F(AccessTest, AStrangerWhoCallsInALoopDoesNotFillTheLog) {
  const std::string audit = (folder_ / "audit.log").string();
  daemon_->Start({"--audit-log=" + audit});
  const auto began = std::chrono::steady_clock::now();
  for (int i = 0; i < 400; ++i) EXPECT_EQ(Call("Stats", "kiln_wrong").error_code(), StatusCode::UNAUTHENTICATED);
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(std::chrono::steady_clock::now() - began).count();
  const std::string text = TextOf(audit);
  const auto lines = std::ranges::count(text, '\n');
  EXPECT_LE(lines, LineBudget::kLines * (seconds + 1));
  EXPECT_LT(lines, 400);
  EXPECT_TRUE(daemon_->Eventually([&] {
    Call("Stats", "kiln_wrong");
    return ::testing::Value(TextOf(audit), ::testing::ContainsRegex("left-out=[1-9]"));
  })) << "what is missing is counted";
}

TEST(LineBudgetTest, WhatIsMissingIsCountedInTheNextLine) {
  using std::chrono::seconds;
  LineBudget budget;
  LineBudget::Clock::time_point now{seconds(100)};
  for (unsigned i = 0; i < LineBudget::kLines; ++i) EXPECT_EQ(budget.Take("ipv4:1.2.3.4", now), 0u);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(budget.Take("ipv4:1.2.3.4", now + milliseconds(999)), std::nullopt);
  EXPECT_EQ(budget.Take("ipv4:1.2.3.4", now + seconds(1)), 7u);
  EXPECT_EQ(budget.Take("ipv4:1.2.3.4", now + seconds(1)), 0u) << "they are told of once";
}

TEST_F(AccessTest, AnAccessFileSaysWhoIsWho) {
  const std::string access = (folder_ / "access.toml").string();
  const std::string me = "[[user]]\nuid = " + std::to_string(::getuid()) + "\ntenant = \"me\"\n";
  WriteGuarded(access, me + "scopes = [\"read\"]\n");
  daemon_->Start({"--access=" + access});
  const auto refused = daemon_->Compile(MakeRequest(Order::kAnswer, 3));
  EXPECT_EQ(refused.status.error_code(), StatusCode::PERMISSION_DENIED);
  const std::string both = "scopes = [\"read\", \"compile\"]\n";
  WriteGuarded(access, "[[user]]\nuid = \"*\"\ntenant = \"me\"\n" + both + me + both);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok(); }));
}

TEST_F(AccessTest, ATenantExportsByTheKeysThatItIsTold) {
  const std::string mine = NewToken("mine", "t", "read,compile,admin");
  daemon_->Start();
  v1::CompileReply reply;
  ASSERT_TRUE(Compile(mine, MakeRequest(Order::kAnswer, 1), &reply).ok());
  ASSERT_TRUE(Compile(mine, MakeRequest(Order::kAnswer, 2), &reply).ok());
  const auto exported = [&](const std::string& key, std::string& bundle) {
    grpc::ClientContext context;
    context.AddMetadata("authorization", "Bearer " + mine);
    v1::CacheExportRequest request;
    request.add_keys(key);
    request.add_keys(reply.key());
    const auto reader = daemon_->stub().CacheExport(&context, request);
    for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
    return reader->Finish();
  };
  std::string bundle;
  ASSERT_TRUE(exported(reply.key(), bundle).ok());
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + mine);
  v1::CacheImportReply imported;
  const auto writer = daemon_->stub().CacheImport(&context, &imported);
  v1::CacheChunk chunk;
  chunk.set_data(bundle);
  writer->Write(chunk);
  writer->WritesDone();
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_EQ(imported.imported(), 1u);

  std::string nothing;
  const grpc::Status missing = exported(std::string(32, 'x'), nothing);
  EXPECT_EQ(missing.error_code(), StatusCode::NOT_FOUND);
  EXPECT_THAT(missing.error_message(), ::testing::HasSubstr("1 of the keys"));
  EXPECT_EQ(nothing, "");
}

}  // namespace
}  // namespace kiln::server::testing
