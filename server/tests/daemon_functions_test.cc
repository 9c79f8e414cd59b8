// SPDX-License-Identifier: Apache-2.0
//
// Programs with functions in other languages: who may have them compiled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "server/access/tokens.h"
#include "server/system/guarded_file.h"
#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {
namespace {

using grpc::StatusCode;

class FunctionsTest : public DaemonTest {
 protected:
  static v1::CompileRequest Request() {
    v1::CompileRequest request = MakeRequest(Order::kAnswer, 3);
    request.set_module(R"(kiln 1
func @main() {
  function @f0 llvm "f" {
    "define void @f() {"
    "  ret void"
    "}"
  }
  kernel @main grid(1) threads 32 blocks(%b) {
    call @f0()
  }
})");
    return request;
  }
  std::string AccessWith(const std::string& scopes) {
    const std::string access = (folder_ / "access.toml").string();
    WriteGuarded(access, "[[user]]\nuid = " + std::to_string(::getuid()) + "\ntenant = \"me\"\nscopes = [" + scopes + "]\n");
    return access;
  }
};

TEST_F(FunctionsTest, NeedAScopeThatNobodyHasUnlessItIsGiven) {
  EXPECT_THAT(FormatScopes(kEveryScope), ::testing::Not(::testing::HasSubstr("raw")));
  daemon_->Start();
  const auto refused = daemon_->Compile(Request());
  EXPECT_EQ(refused.status.error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_THAT(refused.status.error_message(), ::testing::HasSubstr("needs the scope raw"));
  EXPECT_THAT(refused.status.error_message(), ::testing::HasSubstr("kilnd token new"));
  v1::CompileRequest ranked = Request();
  ranked.mutable_explain()->mutable_estimate();
  EXPECT_EQ(daemon_->Compile(ranked).status.error_code(), StatusCode::PERMISSION_DENIED) << "to rank it is work of a worker, too";
  EXPECT_EQ(daemon_->Stats().compiles(), 0u);
  EXPECT_TRUE(daemon_->Compile(MakeRequest(Order::kAnswer, 3)).status.ok()) << "others are compiled";
}

TEST_F(FunctionsTest, AreCompiledForWhoHasIt) {
  const std::string access = AccessWith("\"read\", \"compile\", \"raw\"");
  daemon_->Start({"--access=" + access});
  EXPECT_TRUE(daemon_->Compile(Request()).status.ok());
  AccessWith("\"read\", \"compile\"");
  v1::CompileRequest again = Request();
  again.set_refresh(true);
  EXPECT_TRUE(daemon_->Eventually([&] { return daemon_->Compile(again).status.error_code() == StatusCode::PERMISSION_DENIED; }));
  EXPECT_TRUE(daemon_->Compile(Request()).status.ok()) << "what the tenant has is a hit";
}

}  // namespace
}  // namespace kiln::server::testing
