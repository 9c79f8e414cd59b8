// SPDX-License-Identifier: Apache-2.0
//
// The files that say who is whom: what they hold, and what is wrong with them.
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/ir.pb.h"
#include "server/access/access_file.h"
#include "server/access/authenticator.h"
#include "server/access/method_scopes.h"
#include "server/access/tokens.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

TEST(Tokens, SurviveTheirFileAndTheFileHoldsNoSecret) {
  std::string folder = (std::filesystem::temp_directory_path() / "kiln-tokens-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path path = std::filesystem::path(folder) / "tokens";
  EXPECT_TRUE(ReadTokens(path)->empty()) << "no file, no token";

  const std::string secret = NewSecret();
  EXPECT_EQ(secret.size(), 5u + 64u);
  EXPECT_NE(secret, NewSecret());
  const auto expires = std::chrono::sys_days(std::chrono::year(2031) / 1 / 31) + std::chrono::hours(23);
  const std::vector<Token> tokens = {{"ci", "team", 3, HashToken(secret), expires}, {"ops", "default", 31, HashToken("another"), {}}};
  ASSERT_TRUE(WriteTokens(path, tokens));
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  EXPECT_EQ(text.str().find(secret.substr(5)), std::string::npos);

  const auto read = ReadTokens(path);
  ASSERT_TRUE(read) << read.error();
  ASSERT_EQ(read->size(), 2u);
  EXPECT_EQ(Format(read->front()), Format(tokens.front()));
  EXPECT_EQ(read->front().expires, expires);
  EXPECT_EQ(FindToken(*read, secret)->name, "ci");
  EXPECT_EQ(FindToken(*read, secret + "0"), nullptr);
  EXPECT_EQ(FindToken(*read, ""), nullptr);

  ::chmod(path.c_str(), 0640);
  ASSERT_TRUE(WriteTokens(path, tokens));
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0640u) << "a file that is replaced keeps its mode";
  EXPECT_FALSE(ReadTokens(folder)) << "what cannot be read is not a file without tokens";

  ::chmod(path.c_str(), 0620);
  EXPECT_THAT(ReadTokens(path).error(), HasSubstr("chmod 600"));
  std::filesystem::remove_all(folder);
}

TEST(Tokens, OfAnotherUserStayTheirs) {
  if (::getuid() != 0) GTEST_SKIP() << "only root can give a file away";
  std::string folder = (std::filesystem::temp_directory_path() / "kiln-tokens-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path path = std::filesystem::path(folder) / "tokens";
  ASSERT_TRUE(WriteTokens(path, {}));
  ASSERT_EQ(::chown(path.c_str(), 4242, 4243), 0);
  ASSERT_TRUE(WriteTokens(path, {}));
  struct stat status{};
  ASSERT_EQ(::stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 4242u);
  EXPECT_EQ(status.st_gid, 4243u);
  std::filesystem::remove_all(folder);
}

TEST(Authenticator, ReadsAgainWhatItCouldNotRead) {
  std::string folder = (std::filesystem::temp_directory_path() / "kiln-tokens-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path path = std::filesystem::path(folder) / "tokens";
  ASSERT_TRUE(WriteTokens(path, {}));
  std::atomic<int> failed = 0;
  std::atomic<int> succeeded = 0;
  const cache::testing::ManualClock clock;
  const auto open = Authenticator::Open(
      {.tokens = path, .access = {}, .on_reload = [&](std::string_view error) { ++(error.empty() ? succeeded : failed); }}, clock);
  ASSERT_TRUE(open) << open.error();
  const auto eventually = [](const std::atomic<int>& count) {
    for (int i = 0; i < 500 && count == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));  // between looks
    return count > 0;
  };
  ASSERT_TRUE(WriteTokens(path.string() + ".next", {{"ci", "team", 3, HashToken("s"), {}}}));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::filesystem::rename(path.string() + ".next", path);
  EXPECT_TRUE(eventually(failed));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(eventually(succeeded)) << "the file looks as it did when it could not be read";
  EXPECT_EQ(failed, 1) << "told once";
  std::filesystem::remove_all(folder);
}

TEST(Authenticator, ATokenExpiresByTheClockItIsGiven) {
  const cache::testing::TemporaryDirectory folder;
  cache::testing::ManualClock clock;
  const auto expires = std::chrono::floor<std::chrono::seconds>(clock.WallNow()) + std::chrono::minutes(1);
  const cache::Digest hash = HashToken("s");
  ASSERT_TRUE(WriteTokens(folder / "tokens", {{"ci", "team", 3, hash, expires}}));
  const auto open = Authenticator::Open({.tokens = folder / "tokens", .access = {}, .on_reload = {}}, clock);
  ASSERT_TRUE(open) << open.error();
  const Caller caller{.tenant = {}, .name = {}, .scopes = 0, .credential = hash};
  clock.Advance(std::chrono::seconds(59));
  const auto known = (*open)->Again(caller);
  ASSERT_TRUE(known) << known.error().message;
  EXPECT_EQ(known->tenant, "team");
  clock.Advance(std::chrono::seconds(1));
  const auto expired = (*open)->Again(caller);
  ASSERT_FALSE(expired);
  EXPECT_THAT(expired.error().message, HasSubstr("the token ci has expired"));
}

TEST(Authenticator, RefusesAnAccessFileThatOthersCanWrite) {
  std::string folder = (std::filesystem::temp_directory_path() / "kiln-tokens-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::filesystem::path path = std::filesystem::path(folder) / "access.toml";
  std::ofstream(path) << "[[tenant]]\nname = \"t\"\nrequests = 1\n";
  ASSERT_EQ(::chmod(path.c_str(), 0644), 0);
  const cache::testing::ManualClock clock;
  EXPECT_TRUE(Authenticator::Open({.tokens = {}, .access = path, .on_reload = {}}, clock));
  ASSERT_EQ(::chmod(path.c_str(), 0664), 0);
  const auto refused = Authenticator::Open({.tokens = {}, .access = path, .on_reload = {}}, clock);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error(), HasSubstr("can be written by others"));
  std::filesystem::remove_all(folder);
}

TEST(Tokens, ExpireInAnyCentury) {
  const std::string hash = "sha256:" + std::string(64, 'a');
  for (const auto& [expiry, over] : std::initializer_list<std::pair<std::string, bool>>{
           {"1015-02-04T10:20:30Z", true}, {"2020-01-01T00:00:00Z", true}, {"2262-12-31T00:00:00Z", false}, {"9999-12-31T23:59:59Z", false}}) {
    const auto tokens = ParseTokens("ci team read " + hash + " " + expiry);
    ASSERT_TRUE(tokens) << expiry;
    EXPECT_EQ(FormatExpiry(tokens->front()), expiry);
    EXPECT_EQ(tokens->front().IsOver(std::chrono::system_clock::now()), over) << expiry;
  }
}

TEST(Tokens, SayWhichLineIsWrong) {
  const std::string hash = "sha256:" + std::string(64, 'a');
  EXPECT_TRUE(ParseTokens("# comment\n\n ci team read,run " + hash + " never\r\n"));
  for (const auto& [line, why] :
       std::initializer_list<std::pair<std::string, std::string>>{{"ci team read " + hash, "a line is NAME"},
                                                                  {"ci te/am read " + hash + " never", "names have"},
                                                                  {"ci team read,rule " + hash + " never", "no scope 'rule'"},
                                                                  {"ci team , " + hash + " never", "no scope ''"},
                                                                  {"ci team read sha256:12 never", "64 hexadecimal"},
                                                                  {"ci team read " + hash + " 2031-02-30T00:00:00Z", "expiry"},
                                                                  {"ci team read " + hash + " 2031-02-28T24:00:00Z", "expiry"},
                                                                  {"ci team read " + hash + " soon", "expiry"}}) {
    const auto parsed = ParseTokens("# one\n" + line + "\n");
    ASSERT_FALSE(parsed) << line;
    EXPECT_THAT(parsed.error(), HasSubstr("line 2: "));
    EXPECT_THAT(parsed.error(), HasSubstr(why));
  }
}

TEST(AccessFile, HoldsUsersAndCertificatesAndSaysWhatIsWrong) {
  const auto file = ParseAccessFile(R"(
[[user]]
uid = 1001
tenant = "alice"
scopes = ["read", "compile"]
[[user]]
uid = "*"
tenant = "guests"
scopes = ["read"]
[[certificate]]
name = "ci.example.com"
tenant = "ci"
scopes = ["admin", "raw"]
)");
  ASSERT_TRUE(file) << file.error();
  ASSERT_EQ(file->users.size(), 2u);
  EXPECT_EQ(file->users[0].uid, 1001u);
  EXPECT_EQ(file->users[0].grant.scopes, 3);
  EXPECT_FALSE(file->users[1].uid);
  EXPECT_EQ(file->certificates[0].name, "ci.example.com");
  EXPECT_EQ(FormatScopes(file->certificates[0].grant.scopes), "admin,raw");

  const auto tenants = ParseAccessFile(
      "[[tenant]]\nname = \"*\"\nrequests = 3\n"
      "[[tenant]]\nname = \"ci\"\ncompile-seconds = 0.5\nstore-bytes = 1000\ngpu-seconds = 7");
  ASSERT_TRUE(tenants) << tenants.error();
  EXPECT_EQ(tenants->LimitsOf("ci").compile_seconds, 0.5);
  EXPECT_EQ(tenants->LimitsOf("ci").gpu_seconds, 7);
  EXPECT_EQ(tenants->LimitsOf("ci").store_bytes, 1000u);
  EXPECT_FALSE(tenants->LimitsOf("ci").requests);
  EXPECT_EQ(tenants->LimitsOf("another").requests, 3u);

  for (const auto& [text, why] : std::initializer_list<std::pair<std::string, std::string>>{
           {"[[tenant]]\nname = \"a\"\nrequests = -1", "line 3: `requests` is a number"},
           {"[[tenant]]\nrequests = 1", "`name`"},
           {"[[user]]\nuid = -1\ntenant = \"a\"\nscopes = [\"read\"]", "line 1: `uid`"},
           {"[[user]]\nuid = 1e62\ntenant = \"a\"\nscopes = [\"read\"]", "line 1: `uid`"},
           {"[[user]]\nuid = 1\nscopes = [\"read\"]", "`tenant`"},
           {"[[user]]\nuid = 1\ntenant = \"a\"", "no scope is given"},
           {"[[user]]\nuid = 1\ntenant = \"a\"\nscopes = [1]", "no scope '?'"},
           {"[[user]]\nuid = 1\ntenant = \"a\"\nscope = [\"read\"]", "line 4: a row has no key scope"},
           {"[user]\nuid = 1", "[[user]]"},
           {"[[certificate]]\ntenant = \"a\"\nscopes = [\"read\"]", "`name`"},
           {"[[host]]\n", "there is no `host`"},
           {"uid = ", "line 1: "}}) {
    const auto parsed = ParseAccessFile(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_THAT(parsed.error(), HasSubstr(why)) << text;
  }
}

// A program that could carry PTX or LLVM IR could read everything on the device it runs on. Programs here are numbers: nothing
// that the compiler reads of one is text or bytes. An op that changes this needs a right of its own. An entry's name is letters, digits and _ alone,
// or the compiler refuses it before it reads anything else (CompileLimits.KernelsHaveTheNameThatIsAskedFor).
TEST(Programs, CarryNoTextThatReachesTheCompiler) {
  std::set<const google::protobuf::Descriptor*> seen;
  const std::function<void(const google::protobuf::Descriptor*)> look = [&](const google::protobuf::Descriptor* message) {
    if (!seen.insert(message).second) return;
    for (int i = 0; i < message->field_count(); ++i) {
      const auto* field = message->field(i);
      const auto type = field->type();
      const bool is_name = field->full_name() == "kiln.v1.CompileOptions.entry_name";
      EXPECT_TRUE(is_name || type != google::protobuf::FieldDescriptor::TYPE_STRING) << field->full_name();
      EXPECT_NE(type, google::protobuf::FieldDescriptor::TYPE_BYTES) << field->full_name();
      if (field->message_type() != nullptr) look(field->message_type());
    }
  };
  for (const google::protobuf::Descriptor* root : {v1::Kernel::descriptor(), v1::Stmt::descriptor(), v1::Expr::descriptor(), v1::Var::descriptor(),
                                                   v1::Buffer::descriptor(), v1::Param::descriptor(), v1::CompileOptions::descriptor()}) {
    look(root);
  }
  EXPECT_GT(seen.size(), 20u) << "the walk saw the ops";
}

}  // namespace
}  // namespace kiln::server
