// SPDX-License-Identifier: Apache-2.0
//
// Forms that are rare, but ordinary: each compiles on every target, and some into code of a certain kind.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compiler/compile.h"
#include "compiler/compile_testing.h"
#include "compiler/target/target.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

void CompilesEverywhere(const std::string& text) {
  for (const target::Target& target : target::All()) {
    SCOPED_TRACE(target.name);
    const v1::WorkerResult result = CompileText(text, target.name);
    EXPECT_TRUE(result.has_artifact()) << FirstError(result);
  }
}

// Where a warp multiplies sparse tiles, it does not make them dense; Blackwell's instruction wants the indices in order, and says so.
TEST(CompileForms, SparseProductsOfWarps) {
  const std::string text = golden::ReadFile("tests/golden/instructions/gemm_sparse.sm_80.kiln");
  const v1::WorkerResult ampere = CompileText(text, "cuda:sm_80"), blackwell = CompileText(text, "cuda:sm_120a"),
                         turing = CompileText(text, "cuda:sm_75");
  EXPECT_GT(Count(ampere, "mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"), 0u);
  EXPECT_EQ(Count(ampere, "mma.sync"), 0u);
  EXPECT_GT(Count(blackwell, "mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32"), 0u);
  EXPECT_EQ(Count(turing, "mma.sp"), 0u);
  EXPECT_GT(Count(turing, "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"), 0u);
}

// No instruction of gfx90a multiplies the sparse operand, and the product is refused before that is of interest.
TEST(CompileForms, ASparseProductIsRefusedForItsSums) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f16[64, 32], %M: global u16[64, 4], %B: global f16[64, 16], %C: global f32[64, 16]) outputs(3) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %a = alloc shared f16[64, 32]
    %m = alloc shared u16[64, 4]
    %w = alloc shared f16[64, 16]
    %c = alloc fragment f32[64, 32]
    copy %A[0, 0; 64, 32] -> %a[0, 0; 64, 32]
    copy %M[0, 0; 64, 4] -> %m[0, 0; 64, 4]
    copy %B[0, 0; 64, 16] -> %w[0, 0; 64, 16]
    gemm %a[0, 0; 64, 32], %w[0, 0; 64, 16] -> %c[0, 0; 64, 16] metadata %m[0, 0; 64, 4] clear
    copy %c[0, 0; 64, 16] -> %C[0, 0; 64, 16]
  }
}
)",
                                              "hip:gfx90a");
  EXPECT_NE(FirstError(result).find("accumulates into a part of 'c'"), std::string::npos) << FirstError(result);
}

// A bool is a bit to LLVM and a byte to programs.
TEST(CompileForms, BoolsAreReinterpreted) {
  CompilesEverywhere(R"(kiln 1
func @f(%A: global f8e4m3[64], %B: global bool[64], %C: global u8[64]) thread(%t) {
  kernel @k grid(1) threads 64 blocks(%b) {
    store %B[%t] = reinterpret.bool(%A[%t])
    store %C[%t] = reinterpret.u8(%A[%t] > 0.0:f8e4m3)
  }
}
)");
}

// A tile that a pipelined loop fills early has one version for each iteration; what an assumption says of it afterwards concerns one.
TEST(CompileForms, AnAssumptionReadsMemory) {
  CompilesEverywhere(R"(kiln 1
func @f(%A: global f16[512, 64], %B: global f16[64, 64], %C: global f32[64, 64], %D: global f32[64]) outputs(2, 3) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %a = alloc shared f16[64, 64]
    %w = alloc shared f16[64, 64]
    %c = alloc fragment f32[64, 64]
    fill %c[0, 0; 64, 64] = 0.0
    for pipelined %k in 8 stages 3 {
      copy %A[%k * 64, 0; 64, 64] -> %a[0, 0; 64, 64]
      copy %B[0, 0; 64, 64] -> %w[0, 0; 64, 64]
      gemm %a[0, 0; 64, 64], %w[0, 0; 64, 64] -> %c[0, 0; 64, 64]
    }
    copy %c[0, 0; 64, 64] -> %C[0, 0; 64, 64]
    for parallel %i in 64 {
      assume %a[63, 0] < 3.0:f16
      store %D[%i] = 1.0
    }
  }
}
)");
}

// From tensor to tensor: neither side is a tile, and neither shape is known.
TEST(CompileForms, TensorsAreCopiedBesideProducts) {
  CompilesEverywhere(R"(kiln 1
func @f[%n](%A: global f16[64, 64], %B: global f16[64, 64], %C: global f32[64, 64], %D: global i32[%n, 64], %E: global i32[%n, 64]) outputs(2, 4) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %a = alloc shared f16[64, 64]
    %w = alloc shared f16[64, 64]
    %c = alloc fragment f32[64, 64]
    copy %A[0, 0; 64, 64] -> %a[0, 0; 64, 64]
    copy %B[0, 0; 64, 64] -> %w[0, 0; 64, 64]
    gemm %a[0, 0; 64, 64], %w[0, 0; 64, 64] -> %c[0, 0; 64, 64] clear
    copy %c[0, 0; 64, 64] -> %C[0, 0; 64, 64]
    copy %D[0, 0; 16, 64] -> %E[0, 0; 16, 64]
  }
}
)");
}

// Atomics of threads that run apart are ordered by nothing but themselves. A store beside them would need a barrier.
TEST(CompileForms, ThreadsAddToOneElementApart) {
  static constexpr char kText[] = R"(kiln 1
func @f(%A: global f32[1]) outputs(0) thread(%t) {{
  kernel @k grid(1) threads 64 blocks(%b) {{
    %s = alloc shared f32[1]
    fill %s[0; 1] = 0.0
    if floormod(%t, 2) == 0 {{
      atomic add %s[0] = 1.0
      {} %s[0] = 2.0
    }}
    for serial %i in min(%t, 3) {{
      atomic add %s[0] = 1.0
    }}
    copy %s[0; 1] -> %A[0; 1]
  }}
}}
)";
  CompilesEverywhere(fmt::format(kText, "atomic add"));
  CompilesEverywhere(fmt::format(kText, "atomic max"));
  EXPECT_NE(FirstError(CompileText(fmt::format(kText, "store"), "cuda:sm_90a")).find("threads exchange data here"), std::string::npos);
}

// A tensor that stands for all of memory: where the mask does not hold, and where the arm is not chosen, nothing is read, not even its start.
TEST(CompileForms, OnlyWhatIsAskedForIsReadOfAllMemory) {
  static constexpr char kText[] = R"(kiln 1
func @f(%P: global i64[64], %M: global f32[{}:i64], %A: global f32[64], %B: global f32[64], %C: global f32[256]) outputs(2, 3, 4) thread(%t) {{
  kernel @k grid(1) threads 64 blocks(%b) {{
    for parallel %i in 256 {{
      store %C[%i] = select(%P[0] > 5:i64, %M[%P[0] * 4:i64 + i64(%i)], 1.0)
    }}
    for parallel %i in 64 {{
      store %A[%i] = masked(%i < 7, %M[%P[%i]], 1.0)
    }}
    store %B[%t] = select(%P[%t] > 5:i64, %M[%P[%t]], 1.0)
  }}
}}
)";
  const v1::WorkerResult all = CompileText(fmt::format(kText, int64_t{1} << 50), "cuda:sm_80");
  const v1::WorkerResult tensor = CompileText(fmt::format(kText, 1 << 20), "cuda:sm_80");
  const auto ptx = [](const v1::WorkerResult& result) { return result.has_artifact() ? result.artifact().code() : FirstError(result); };
  // Each load stands behind a branch; else its address is chosen, and vectors are read whichever arm is.
  EXPECT_EQ(Count(all, "selp.b64"), 0u) << ptx(all);
  EXPECT_EQ(Count(all, "ld.global.nc.v4"), 0u) << ptx(all);
  EXPECT_GE(Count(tensor, "selp.b64"), 1u) << ptx(tensor);
  EXPECT_EQ(Count(tensor, "ld.global.nc.v4"), 1u) << ptx(tensor);
}

// LLVM 22's InstCombine makes instructions of mismatched types of it.
TEST(CompileForms, HalvesOfOneKindAreComparedAsTheOther) {
  CompilesEverywhere(R"(kiln 1
func @f(%A: global f16[64], %B: global bf16[64], %C: global bool[64], %D: global bool[64]) outputs(2, 3) thread(%t) {
  kernel @k grid(1) threads 64 blocks(%b) {
    store %C[%t] = reinterpret.bf16(%A[%t]) == 0.0:bf16
    store %D[%t] = reinterpret.f16(%B[%t]) != 0.0:f16
  }
}
)");
  CompilesEverywhere(R"(kiln 1
func @f(%C: global bool[64], %a: f16) outputs(0) thread(%t) {
  kernel @k grid(1) threads 64 blocks(%b) {
    store %C[%t] = reinterpret.bf16(%a) == 0.0:bf16
  }
}
)");
}

// LLVM 22's AMDGPUPromoteAlloca uses what it has deleted.
TEST(CompileForms, ElementsThatNoArrayHasAreReadUnderACondition) {
  CompilesEverywhere(R"(kiln 1
func @f[%n](%A: global u8[%n], %B: global u8[64]) outputs(1) thread(%t) {
  kernel @k grid(1) threads 64 blocks(%b) {
    %a = alloc local u8[64]
    for serial %i in %n {
      if %n == 60 {
        for unroll %j in 16 {
          store %a[%j] = %a[%j * 64 - %n + %n]
          if %A[%i] == 3:u8 {
            store %B[%t] = %a[max(min(%n, 63), 0)]
          }
        }
      }
    }
  }
}
)");
}

// Of a product whose A a loop computes: `before` the product, `within` its loop, if it has one.
std::string ProductOfLoaded(const std::string& before, const std::string& loop, const std::string& within) {
  return fmt::format(R"(kiln 1
func @f(%A: global f16[256, 256], %B: global f16[64, 64], %C: global f32[256, 64]) outputs(2) {{
  kernel @k grid(4) threads 128 blocks(%b) {{
    %a = alloc fragment f16[64, 64]
    %w = alloc shared f16[64, 64]
    %s = alloc fragment f32[64, 64]
    %c = alloc fragment f32[64, 64]
    copy %B[0, 0; 64, 64] -> %w[0, 0; 64, 64]
    fill %c[0, 0; 64, 64] = 0.0
    {}
    {} {{
      {}
      gemm %a[0, 0; 64, 64], %w[0, 0; 64, 64] -> %c[0, 0; 64, 64]
    }}
    copy %c[0, 0; 64, 64] -> %C[%b * 64, 0; 64, 64]
  }}
}}
)",
                     before, loop, within);
}

// An operand in the order of its instruction would be loaded by two elements at once. It goes through shared memory where the loads come as often as
// the product, and stays in registers where they come once for many products, or where it is computed from sums.
TEST(CompileForms, OperandsOfNarrowLoadsPassThroughSharedMemory) {
  const std::string load = "for parallel %i, %j in 64, 64 {\n store %a[%i, %j] = exp2(%A[%b * 64 + %i, %k * 64 + %j]) * %A[%i, %k * 64 + %j]\n }";
  const std::string once = "for parallel %i, %j in 64, 64 {\n store %a[%i, %j] = exp2(%A[%b * 64 + %i, %j]) * %A[%i, %j]\n }";
  const std::string from_sums =
      "gemm %w[0, 0; 64, 64], %w[0, 0; 64, 64] -> %s[0, 0; 64, 64] clear\n for parallel %i, %j in 64, 64 {\n "
      "store %a[%i, %j] = f16(%s[%i, %j] * f32(%A[%b * 64 + %i, %k * 64 + %j] * %A[%i, %k * 64 + %j]))\n }";
  const auto wide = [](const std::string& text) {
    SCOPED_TRACE(text);
    const v1::WorkerResult result = CompileText(text, "cuda:sm_90a");
    EXPECT_GT(Count(result, "wgmma.mma_async"), 0u);
    return Count(result, "ld.global.nc.v4") + Count(result, "ld.global.nc.L1::no_allocate.v4") + Count(result, "ld.global.v4") > 0;
  };
  EXPECT_TRUE(wide(ProductOfLoaded("", "for serial %k in 4", load)));
  EXPECT_TRUE(wide(ProductOfLoaded(once, "if %b >= 0", "")));
  EXPECT_FALSE(wide(ProductOfLoaded(once, "for serial %k in 4", "")));
  EXPECT_FALSE(wide(ProductOfLoaded("", "for serial %k in 4", from_sums)));
}

// A loop of each thread's own has no layout that could tell where a fragment's element is.
TEST(CompileForms, ALoopOfOneStoreReadsAFragment) {
  CompilesEverywhere(R"(kiln 1
func @f(%A: global u8[512]) outputs(0) {
  kernel @k grid(132) threads 256 blocks(%b) {
    %x = alloc fragment f32[1]
    %y = alloc fragment f32[1]
    for vectorized %i in 2 {
      store %A[%i] = u8(masked(%b != 259, %y[0], f32(%i))) + u8(masked(%b > 520, %x[max(min(%b, 0), 0)], 1.0))
    }
    for parallel %j in 1 {
      store %y[%j] = %x[%j]
    }
  }
}
)");
}

// LLVM 22's AMDGPUCodeGenPrepare ends with a segmentation fault.
TEST(CompileForms, ArithmeticTakesOneOfTwoConstantsOfAnotherKind) {
  CompilesEverywhere(R"(kiln 1
func @f(%A: global f32[64], %B: global f32[64], %v: f64) outputs(0, 1) thread(%t) {
  kernel @k grid(1) threads 64 blocks(%b) {
    store %A[%t] = f32(reinterpret.f16(select(isnan(%v), -inf:bf16, 30848.0:bf16))) * 3.0
    store %B[%t] = f32(reinterpret.bf16(select(isnan(%v), 1.0:f16, 2.0:f16))) * 3.0
  }
}
)");
}

// The atomic operation orders the tile's write and what is read behind it, which is of another shape.
TEST(CompileForms, OrderedAtomicsStandBesideWritesOfTiles) {
  CompilesEverywhere(R"(kiln 1
func @f(%A: global f16[0, 17] may_alias, %C: global f32[64] may_alias) outputs(0, 1) {
  kernel @k grid(4) threads 128 blocks(%b) {
    %s = alloc shared f32[8, 4]
    %t = alloc shared f16[8, 32]
    while %b < 3 {
      %f = alloc fragment f32[8, 1]
      for parallel %i, %j in 8, 1 {
        store %s[%i, %j] = f32(%j)
        atomic exchange %C[%b] = 1.0 order acq_rel
        store %f[%i, %j] = 2.0
      }
      for pipelined %k in 1 stages 1 {
        copy %A[0, %k * 32; 8, 32] -> %t[0, 0; 8, 32]
      }
    }
  }
}
)");
}

// A reshape leaves one index as digits by the extents. Nothing is divided to find the place again.
TEST(CompileForms, DigitsOfOneNumberAreOnePlace) {
  const auto text = [](std::string_view first) {
    return fmt::format(R"(kiln 1
func @f(%A: global f32[128, 96], %C: global f32[64, 3, 64]) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    for parallel %i, %j in 128, 96 {{
      atomic add %C[{}, floormod((%j * 128 + %i) // 64, 3), floormod(%j * 128 + %i, 64)] = %A[%i, %j]
    }}
  }}
}}
)",
                       first);
  };
  EXPECT_EQ(Count(CompileText(text("(%j * 128 + %i) // 64 // 3"), "cuda:sm_90a"), "mul.wide.u32 wide"), 0u);
  EXPECT_GT(Count(CompileText(text("%j // 2"), "cuda:sm_90a"), "mul.wide.u32 wide"), 0u) << "of another number";
}

// LLVM 22's InstCombine crashes on the first. A comparison of f32 becomes one of the other kind, too.
TEST(CompileForms, HalvesReadAsTheOtherKindAreComparedWithZero) {
  const auto text = [](std::string_view result) {
    return fmt::format(R"(kiln 1
func @f(%n: i32, %A: global bf16[64], %H: global f16[64], %C: global u32[64]) outputs(3) thread(%t) {{
  kernel @k grid(1) threads 64 blocks(%b) {{
    %x = alloc local bf16[1]
    store %x[0] = bf16(%n) / bf16(%n)
    store %C[%t] = {}
  }}
}}
)",
                       result);
  };
  CompilesEverywhere(
      text("u32(%n) / select(0.0 <= f32(%n) + f32(masked(reinterpret.f16(%x[0]) != 0.0:f16, %A[%t], 0.0:bf16)), 1:u32, u32(%t) + 2:u32)"));
  CompilesEverywhere(text("select(f32(reinterpret.f16(%x[0])) == 0.0, 1:u32, u32(%H[%t]))"));
  CompilesEverywhere(text("select(f32(reinterpret.bf16(f16(%n) / f16(%n))) != 0.0, 1:u32, u32(%A[%t]))"));
}

// The fragment has no place outside of the condition, and within it the threads cannot wait for each other.
TEST(CompileForms, ThreadsOfAConditionHaveAFragmentOfTheirOwn) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f32[64], %B: global f16[64]) outputs(1) thread(%t) {
  kernel @k grid(1) threads 64 blocks(%b) {
    if %A[%t] != 0.0 {
      %x = alloc fragment f16[128, 7]
      for serial %i in 8 {
        store %x[%i, 0] = %x[%i, 0] + 1.0:f16
      }
      store %B[%t] = %x[0, 0]
    }
  }
}
)",
                                              "cuda:sm_90a");
  EXPECT_NE(FirstError(result).find("threads exchange data here"), std::string::npos);
}

// A value for elements outside of a tensor costs nothing where all are inside.
TEST(CompileForms, PadValuesOfTensorsThatAreNeverLeft) {
  const auto copies = [](int column) {
    return Count(CompileText(fmt::format(R"(kiln 1
func @f[%m](%A: global f16[%m, 1024] pad(1.0), %B: global f16[%m, 1024]) outputs(1) {{
  kernel @k grid(%m) threads 128 blocks(%b) {{
    %s = alloc shared f16[1024]
    copy %A[%b, {}; 1, 1024] -> %s[0; 1024]
    copy %s[0; 1024] -> %B[%b, 0; 1, 1024]
  }}
}}
)",
                                         column),
                             "cuda:sm_90a"),
                 "cp.async.");
  };
  EXPECT_GT(copies(0), 0u);
  EXPECT_EQ(copies(8), 0u);
}

}  // namespace
}  // namespace kiln::compiler
