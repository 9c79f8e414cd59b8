// SPDX-License-Identifier: Apache-2.0
//
// What an artifact tells its launcher. With compile_test.cc, whose environment initialises the compiler.
#include <gtest/gtest.h>

#include "compiler/compile.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

v1::LaunchInfo LaunchInfoOf(const std::string& name, v1::StreamK stream_k) {
  v1::CompileRequest request;
  request.set_module(golden::ReadFile("tests/golden/pipeline/" + name));
  request.set_target("cuda:sm_90a");
  request.mutable_options()->set_stream_k(stream_k);
  const v1::WorkerResult result = Compile(request, {});
  EXPECT_TRUE(result.has_artifact()) << result.DebugString();
  return result.artifact().launch();
}

int Count(const v1::LaunchInfo& info, v1::KernelArg::KindCase kind) {
  int count = 0;
  for (const v1::KernelArg& arg : info.launches(0).args()) count += arg.kind_case() == kind;
  return count;
}

// Launchers older than zeroed workspaces refuse what needs one, by its kind of argument, and nothing else.
TEST(Artifact, FlagsAreAnArgumentOfTheirOwnKind) {
  const v1::LaunchInfo shared = LaunchInfoOf("hopper_stream_few.sm_90a.kiln", v1::STREAM_K_ALWAYS);
  EXPECT_EQ(Count(shared, v1::KernelArg::kWorkspace), 1);
  EXPECT_EQ(Count(shared, v1::KernelArg::kZeroedWorkspace), 1);
  for (const v1::KernelArg& arg : shared.launches(0).args()) {
    const bool zeroed = arg.kind_case() == v1::KernelArg::kZeroedWorkspace;
    if (!zeroed && arg.kind_case() != v1::KernelArg::kWorkspace) continue;
    EXPECT_EQ(shared.workspaces(int(zeroed ? arg.zeroed_workspace() : arg.workspace())).zeroed(), zeroed);
  }
  const v1::LaunchInfo alone = LaunchInfoOf("hopper_stream_few.sm_90a.kiln", v1::STREAM_K_NEVER);
  EXPECT_EQ(Count(alone, v1::KernelArg::kZeroedWorkspace), 0);
}

// A launcher lets those be absent.
TEST(Artifact, TensorsThatNoStatementUses) {
  v1::CompileRequest request;
  request.set_module(
      "kiln 1\n"
      "func @f[%n](%A: global f32[%n], %B: global f32[64], %C: global f32[64]) {\n"
      "  kernel @k grid(1) threads 64 blocks(%b) {\n"
      "    for parallel %i in 64 { store %C[%i] = %B[%i] }\n"
      "  }\n"
      "}\n");
  request.set_target("cuda:sm_90a");
  const v1::WorkerResult result = Compile(request, {});
  ASSERT_TRUE(result.has_artifact()) << result.DebugString();
  const v1::LaunchInfo& info = result.artifact().launch();
  EXPECT_TRUE(info.params(0).unused());
  EXPECT_FALSE(info.params(1).unused() || info.params(1).written());
  EXPECT_FALSE(info.params(2).unused());
  EXPECT_TRUE(info.params(2).written());
}

}  // namespace
}  // namespace kiln::compiler
