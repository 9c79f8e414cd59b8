// SPDX-License-Identifier: Apache-2.0
//
// A test of one target: the kernel verifies, optimises and emits, ptxas takes the PTX and lld the object.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {

class DeviceTest : public ::testing::TestWithParam<const target::Target*> {
 protected:
  // Builds with `body`, compiles, and gives the assembly (PTX or GCN).
  std::string Compile(const std::function<void(TestKernel&)>& body) {
    {
      TestKernel k(*GetParam());
      body(k);
      EXPECT_EQ(k.Finish(), "");
      if (k.target.family == target::Family::kAmdgpu) {
        const auto hsaco = EmitHsaco(k.module, *k.machine);
        EXPECT_TRUE(hsaco) << hsaco.error();
      }
    }
    TestKernel k(*GetParam());
    body(k);
    EXPECT_EQ(k.Finish(), "");
    const auto text = EmitAssembly(k.module, *k.machine);
    EXPECT_TRUE(text);
    if (k.target.family == target::Family::kNvptx) Assemble(*text);
    return *text;
  }

  void Assemble(const std::string& ptx) {
    const std::string ptxas = FindPtxas();
    if (ptxas.empty()) {
      std::fprintf(stderr, "NO PTXAS ON THIS MACHINE: PTX of %s is not checked\n", GetParam()->name.data());
      return;
    }
    const auto output = RunPtxas(ptxas, *GetParam(), ptx);
    ASSERT_TRUE(output) << output.error().text << "\n" << ptx;
    EXPECT_FALSE(output->cubin.empty());
    ASSERT_EQ(output->kernels.size(), 1u);
    EXPECT_EQ(output->kernels[0].local_bytes(), 0u) << ptx;
    EXPECT_TRUE(output->warnings.empty()) << output->warnings[0];
  }

  bool IsCuda() const { return GetParam()->family == target::Family::kNvptx; }
};

inline std::vector<const target::Target*> AllTargets() {
  std::vector<const target::Target*> targets;
  for (const target::Target& target : target::All()) targets.push_back(&target);
  return targets;
}
inline std::string ArchOf(const ::testing::TestParamInfo<const target::Target*>& info) { return std::string(info.param->arch); }

}  // namespace kiln::llvm_ir
