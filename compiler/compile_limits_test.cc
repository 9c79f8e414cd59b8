// SPDX-License-Identifier: Apache-2.0
//
// Programs that ask for more than a target has, or for very much; and tensors that may share memory.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ctime>

#include "compiler/compile.h"
#include "compiler/compile_testing.h"
#include "compiler/target/target.h"

namespace kiln::compiler {
namespace {

std::string LocalText(int64_t elements) {
  return fmt::format(R"(kiln 1
func @f(%A: global f32[64], %C: global f32[64]) thread(%t) {{
  kernel @k grid(1) threads 64 blocks(%b) {{
    %l = alloc local f32[{0}]
    store %l[i32(%A[0])] = %A[%t]
    store %C[%t] = %l[i32(%A[1])]
  }}
}}
)",
                     elements);
}

// An array of a thread that no target holds is the program's fault, and the figure is named.
TEST(CompileLimits, ArraysOfAThread) {
  for (const target::Target& target : target::All()) {
    SCOPED_TRACE(target.name);
    const v1::WorkerResult refused = CompileText(LocalText(target.MaxLocalBytes() / 4 + 1), target.name);
    ASSERT_FALSE(refused.has_artifact());
    EXPECT_EQ(refused.diagnostics(0).kind(), v1::Diagnostic::INVALID);
    EXPECT_NE(FirstError(refused).find(std::to_string(target.MaxLocalBytes())), std::string::npos) << FirstError(refused);
    EXPECT_TRUE(CompileText(LocalText(4096), target.name).has_artifact());
  }
}

TEST(CompileLimits, WhatHasNoMeaningIsRefused) {
  v1::CompileRequest request;
  request.set_module(LocalText(64));
  request.set_target("cuda:sm_80");
  request.mutable_explain()->add_after("layouts");
  request.mutable_options()->set_pointer_alignment(32);
  EXPECT_TRUE(Compile(request, {}).has_artifact());
  request.mutable_explain()->add_after("layout");
  EXPECT_NE(FirstError(Compile(request, {})).find("no pass is called 'layout'"), std::string::npos);
  request.clear_explain();
  request.mutable_options()->set_pointer_alignment(24);
  EXPECT_NE(FirstError(Compile(request, {})).find("pointer_alignment is 24, which is no power of two"), std::string::npos);
}

// A name is the request's: in the code, in what launchers are told and in the report; and nothing else differs.
TEST(CompileLimits, KernelsHaveTheNameThatIsAskedFor) {
  for (const std::string target : {"cuda:sm_80", "hip:gfx942", "emu:sm_80"}) {
    SCOPED_TRACE(target);
    v1::CompileRequest request;
    request.set_module(LocalText(64));
    request.set_target(target);
    const v1::WorkerResult plain = Compile(request, {});
    request.mutable_options()->set_entry_name("_attention2");
    const v1::WorkerResult named = Compile(request, {});
    ASSERT_TRUE(named.has_artifact()) << FirstError(named);
    EXPECT_EQ(named.artifact().launch().launches(0).entry(), "_attention2_0");
    EXPECT_EQ(named.artifact().report().kernels(0).entry(), "_attention2_0");
    EXPECT_TRUE(named.artifact().code().contains("_attention2_0"));
    EXPECT_FALSE(plain.artifact().code().contains("attention"));
    for (const std::string wrong : {"2attention", "a b", "a\n", "ä", "a.b"}) {
      request.mutable_options()->set_entry_name(wrong);
      EXPECT_TRUE(FirstError(Compile(request, {})).starts_with("entry_name is '" + wrong)) << wrong;
    }
    request.mutable_options()->set_entry_name(std::string(129, 'a'));
    EXPECT_FALSE(Compile(request, {}).has_artifact());
  }
}

// What LLVM itself refuses ends in a diagnostic, not in the end of the process.
TEST(CompileLimits, WhatOnlyLlvmKnows) {
  const v1::WorkerResult result = CompileText(LocalText(131056 / 4), "hip:gfx942");
  ASSERT_FALSE(result.has_artifact());
  EXPECT_EQ(result.diagnostics(0).kind(), v1::Diagnostic::INVALID);
  EXPECT_NE(FirstError(result).find("stack frame size"), std::string::npos) << FirstError(result);
}

std::string AliasText(const char* clause) {
  return fmt::format(R"(kiln 1
func @f(%A: global f16[4096, 64]{0}, %B: global f16[64, 64], %C: global f16[4096, 64]{0}) outputs(2) {{
  kernel @k grid(4) threads 128 blocks(%b) {{
    for pipelined %k in 8 stages 3 {{
      %a = alloc shared f16[64, 64]
      %w = alloc shared f16[64, 64]
      %c = alloc fragment f32[64, 64]
      copy %A[%k * 64, 0; 64, 64] -> %a[0, 0; 64, 64]
      copy %B[0, 0; 64, 64] -> %w[0, 0; 64, 64]
      gemm %a[0, 0; 64, 64], %w[0, 0; 64, 64] -> %c[0, 0; 64, 64] clear
      copy %c[0, 0; 64, 64] -> %C[(%k + 1) * 64, 0; 64, 64]
    }}
  }}
}}
)",
                     clause);
}

// Each iteration reads what the one before wrote, if the tensors overlap: no load may run ahead of the stores, nor by a path that does not
// see them.
TEST(CompileLimits, LoadsOfWhatMayBeWrittenStayBehindTheStores) {
  for (const char* arch : {"cuda:sm_80", "cuda:sm_90a"}) {
    SCOPED_TRACE(arch);
    const v1::WorkerResult apart = CompileText(AliasText(""), arch), shared = CompileText(AliasText(" may_alias"), arch);
    ASSERT_TRUE(apart.has_artifact() && shared.has_artifact()) << (apart.has_artifact() ? FirstError(shared) : FirstError(apart));
    // The results leave by tensor copies or plainly, the operand that may be one of them comes without a tensor map.
    EXPECT_GE(Count(apart, "cp.async.bulk.tensor"), Count(shared, "cp.async.bulk.tensor"));
    for (const v1::Decision& decision : shared.artifact().report().decisions()) {
      const bool runs_ahead = decision.pass() == "pipeline" || decision.pass() == "rings";
      EXPECT_FALSE(runs_ahead && decision.subject() == "a") << decision.decision();
    }
  }
}

TEST(CompileLimits, WhatMayBeWrittenIsNotReadThroughTheReadOnlyPath) {
  const auto text = [](const char* clause) {
    return fmt::format(R"(kiln 1
func @f(%A: global f32[1024]{0}, %B: global f32[1024]{0}, %D: global f32[1024], %E: global f32[1024]) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    for parallel %i in 1024 {{
      store %B[%i] = %A[%i] + %D[%i]
    }}
    for parallel %i_1 in 1024 {{
      store %E[%i_1] = %A[1023 - %i_1]
    }}
  }}
}}
)",
                       clause);
  };
  const v1::WorkerResult apart = CompileText(text(""), "cuda:sm_80"), shared = CompileText(text(" may_alias"), "cuda:sm_80");
  EXPECT_GT(Count(apart, "ld.global.nc"), Count(shared, "ld.global.nc"));
  EXPECT_GT(Count(shared, "ld.global.nc"), 0u);  // of D
  // What one thread wrote to B another may read from A.
  EXPECT_EQ(Count(apart, "bar.sync") + Count(apart, "barrier.sync"), 0u);
  EXPECT_GT(Count(shared, "bar.sync") + Count(shared, "barrier.sync"), 0u);
}

TEST(CompileLimits, TilesBeyondSharedMemorySayWhoUsesWhat) {
  const v1::WorkerResult result = CompileText(GemmText(256, 256, 512, 128), "cuda:sm_80");
  const std::string error = FirstError(result);
  EXPECT_TRUE(result.diagnostics(0).statement().contains("alloc shared")) << result.diagnostics(0).DebugString();
  EXPECT_GT(result.diagnostics(0).line(), 0u);
  EXPECT_NE(error.find("524288 bytes of shared memory"), std::string::npos) << error;
  EXPECT_NE(error.find("262144 bytes"), std::string::npos) << error;
  EXPECT_NE(error.find("smaller tiles"), std::string::npos) << error;
}

TEST(CompileLimits, TilesBeyondTheRegistersSayWhoUsesWhat) {
  const v1::WorkerResult result = CompileText(GemmText(1024, 1024, 16, 128), "cuda:sm_80");
  const std::string error = FirstError(result);
  EXPECT_TRUE(result.diagnostics(0).statement().contains("alloc fragment")) << result.diagnostics(0).DebugString();
  EXPECT_NE(error.find("8192 registers"), std::string::npos) << error;
}

TEST(CompileLimits, ALongParallelLoopStaysSmallCode) {
  const auto text = [](int extent) {
    return fmt::format(R"(kiln 1
func @f(%A: global f32[{0}], %B: global f32[{0}]) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    for parallel %i in {0} {{
      store %B[%i] = %A[%i] + 1.0
    }}
  }}
}}
)",
                       extent);
  };
  const v1::WorkerResult small = CompileText(text(1 << 15), "cuda:sm_80"), large = CompileText(text((1 << 22) + 1), "cuda:sm_80");
  ASSERT_TRUE(small.has_artifact() && large.has_artifact());
  EXPECT_LT(large.artifact().code().size(), 8 * small.artifact().code().size());
}

// Hundreds of branches that share what they compare.
TEST(CompileLimits, StoresUnderBranchesTakeTimeInProportion) {
  const std::clock_t before = std::clock();
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f[%n](%A: global f8e4m3fnuz[65, min(%n, 151), 2, %n, %n] strides(1024, 100, 64, %n, 1),
            %B: global bool[(%n + 99) // 100, 64, (%n + 15) // 16]) thread(%t) {
  kernel @k grid(%n + 8, 3, 132) threads 1024 blocks(%a, %b, %c) {
    store %B[%b + 56, floormod(%t, 64), floormod(%a, 64)] = bool(%c)
    for parallel %i, %j, %k in 64, 64, 16 {
      if 1687552.0:tf32 > tf32(%t) {
        for vectorized %l in 8 {
          store %A[%i, %j, %k, %l, floormod(%t, 64)] = f8e4m3fnuz(%b)
        }
      }
      store %B[%i, %j, %k] = bool(%i)
    }
  }
}
)",
                                              "cuda:sm_90");
  EXPECT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_LT(std::clock() - before, 4 * CLOCKS_PER_SEC);
}

// Hundreds of loops that are left at once, while an array of as many elements waits for its next reader.
TEST(CompileLimits, WhatStandsBehindABreakTakesNoTime) {
  const std::clock_t before = std::clock();
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f[%n](%X: global f32[%n], %Y: global f32[%n]) outputs(1) {
  kernel @k grid(%n) threads 128 blocks(%a) {
    %b = alloc fragment f8e5m2[256]
    %c = alloc fragment f8e5m2[]
    for parallel %i in 256 {
      for serial %j in %n {
        store %Y[%a] = %X[%j]
        break
      }
      store %b[%i] = f8e5m2(%i)
    }
    for serial %j in %n {
      reduce absmax %b[0; 256] -> %c[; ] dim 0 accumulate
    }
    store %Y[%a] = f32(%b[max(min(%a, 255), 0)]) + f32(%c[])
  }
}
)",
                                              "cuda:sm_100a");
  EXPECT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_LT(std::clock() - before, 2 * CLOCKS_PER_SEC);
}

// LLVM would move the minima behind the store, where all 4,096 loaded bytes were alive.
TEST(CompileLimits, ArithmeticOfManyLoadsStaysThere) {
  const v1::WorkerResult made = CompileText(R"(kiln 1
func @f(%C: global bf16[128], %n: i32) outputs(0) {
  kernel @k grid(1) threads 16 blocks(%b) {
    %X = alloc fragment u8[16, 16, 16]
    %Y = alloc fragment u8[16, 1, 16]
    reduce min %X[0, 0, 0; 16, 16, 16] -> %Y[0, 0, 0; 16, 1, 16] dim 1
    for parallel %i in 16 {
      store %Y[%i, 0, 9] = u8(%n)
      store %C[%i] = bf16(%i)
    }
  }
}
)",
                                            "hip:gfx942");
  ASSERT_TRUE(made.has_artifact()) << FirstError(made);
  EXPECT_EQ(made.artifact().report().kernels(0).spill_bytes(), 0u);
}

}  // namespace
}  // namespace kiln::compiler
