// SPDX-License-Identifier: Apache-2.0
//
// kilnd with the real worker and the emulator, and two programs for it.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <system_error>
#include <vector>

#include "server/access/tokens.h"
#include "server/testing/run_client.h"

namespace kiln::server::testing {

inline constexpr const char* kDouble = R"(kiln 1
func @double[%m](%A: global f32[%m, 64], %B: global f32[%m, 64]) outputs(1) {
  kernel @main grid((%m + 63) // 64) threads 128 blocks(%bx) {
    %t = alloc fragment f32[64, 64]
    copy %A[%bx * 64, 0; 64, 64] -> %t[0, 0; 64, 64]
    for parallel %i, %j in 64, 64 {
      store %t[%i, %j] = %t[%i, %j] + %t[%i, %j]
    }
    copy %t[0, 0; 64, 64] -> %B[%bx * 64, 0; 64, 64]
  }
}
)";

inline constexpr const char* kForever = R"(kiln 1
func @forever(%A: global f32[1], %B: global f32[1]) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    while %A[0] < 1.0 {
      store %B[0] = %A[0] + 1.0
    }
  }
}
)";

inline std::vector<float> Counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

class RunTest : public DaemonTest {
 protected:
  void Start(std::vector<std::string> options = {}) {
    options.insert(options.begin(), "--worker-executable=" KILN_BIN "/kiln-worker");
    daemon_->Start(options);
  }

  // For the next start; whoever calls takes LD_LIBRARY_PATH away again.
  void UseFakeDriver() {
    const fs::path drivers = folder_ / "drivers";
    fs::create_directory(drivers);
    fs::create_symlink(fs::path(KILN_BIN).parent_path() / "testing/libkiln_fake_driver.so", drivers / "libcuda.so.1");
    ::setenv("LD_LIBRARY_PATH", drivers.c_str(), 1);
  }

  // The same with an NVML.
  void UseFakeNvml() {
    UseFakeDriver();
    fs::create_symlink(fs::path(KILN_BIN).parent_path() / "testing/libkiln_fake_nvml.so", folder_ / "drivers/libnvidia-ml.so.1");
  }

  RunAnswer Double(std::size_t rows = 64, const std::string& device = "emu:sm_80") {
    const auto rows64 = static_cast<std::int64_t>(rows);
    return RunClient(kDouble, device).Tensor(Counting(rows * 64), {rows64, 64}).Run(*daemon_);
  }

  void ExpectDoubleWorks() {
    const RunAnswer answer = Double();
    ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
    EXPECT_EQ(answer.FaultKind(), "");
    EXPECT_EQ(answer.Floats().at(100), 200.0f);
  }

  static RunClient Forever() { return RunClient(kForever, "emu:sm_80").Tensor({0.0f}, {1}).Tensor({0.0f}, {1}); }

  v1::DeviceStats Emulators() { return daemon_->Stats().devices(0); }
  bool Busy(unsigned count) {
    return daemon_->Eventually([&] { return Emulators().busy() == count; });
  }
  // Runs under way that hold memory for their tensors.
  long MemoriesOfRuns() {
    return std::ranges::count_if(fs::directory_iterator("/proc/" + std::to_string(daemon_->pid()) + "/fd"), [](const fs::directory_entry& file) {
      std::error_code closed;
      return fs::read_symlink(file, closed).native().starts_with("/memfd:kiln-run");
    });
  }
  pid_t Zygote() { return Daemon::Children(daemon_->pid()).at(0); }

  // Waits for the end of all of them. What it returns tells of those that stay.
  std::string Remaining(const std::vector<pid_t>& processes) {
    std::string lines;
    daemon_->Eventually([&] {
      lines.clear();
      for (const pid_t process : processes) {
        std::string line;
        std::getline(std::ifstream("/proc/" + std::to_string(process) + "/stat"), line);
        if (!line.empty() && line.find(") Z") == std::string::npos) lines += line + "\n";
      }
      return lines.empty();
    });
    return lines;
  }
};

class TwoTenantsTest : public RunTest {
 protected:
  void SetUp() override {
    RunTest::SetUp();
    fs::create_directories(daemon_->State());
    alice_ = NewToken("alice", "alice", kAllScopes);
    bob_ = NewToken("bob", "bob", kAllScopes);
  }

  static constexpr const char* kAllScopes = "read,compile,tune,run,admin";
  std::string NewToken(const std::string& name, const std::string& tenant, const std::string& scopes) {
    const std::string secret = NewSecret();
    tokens_.push_back({name, tenant, *ParseScopes(scopes), HashToken(secret), {}});
    EXPECT_TRUE(WriteTokens(fs::path(daemon_->State()) / "tokens", tokens_));
    return secret;
  }

  std::vector<Token> tokens_;
  std::string alice_, bob_;
};

}  // namespace kiln::server::testing
