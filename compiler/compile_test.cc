// SPDX-License-Identifier: Apache-2.0
#include "compiler/compile.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <ranges>
#include <tuple>

#include "compiler/compile_testing.h"
#include "compiler/passes.h"
#include "compiler/target/target.h"
#include "ir/codec/encode.h"
#include "ir/grammar/random_module.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

class Environment : public testing::Environment {
 public:
  void SetUp() override { Initialize(); }
};
[[maybe_unused]] const auto* const kEnvironment = testing::AddGlobalTestEnvironment(new Environment);

TEST(Compile, EveryTargetTwiceTheSameBytes) {
  for (const target::Target& target : target::All()) {
    SCOPED_TRACE(target.name);
    const v1::WorkerResult first = CompileText(GemmText(64, 64, 32, 128), target.name);
    ASSERT_TRUE(first.has_artifact()) << FirstError(first);
    const v1::WorkerResult second = CompileText(GemmText(64, 64, 32, 128), target.name);
    EXPECT_EQ(first.artifact().SerializeAsString(), second.artifact().SerializeAsString());
    EXPECT_GT(first.artifact().code().size(), 500u);
  }
}

TEST(Compile, NamesAreNotInTheArtifact) {
  std::string text = GemmText(64, 64, 32, 128);
  const v1::WorkerResult first = CompileText(text, "cuda:sm_80");
  for (size_t at = 0; (at = text.find("%w", at)) != std::string::npos; at += 2) text.replace(at, 2, "%weights");
  const v1::WorkerResult second = CompileText(text, "cuda:sm_80");
  ASSERT_TRUE(first.has_artifact() && second.has_artifact());
  EXPECT_EQ(first.artifact().SerializeAsString(), second.artifact().SerializeAsString());
}

// What a kernel only reads is read through the read-only path; what it also writes is not.
TEST(Compile, LoadsOfWhatIsOnlyReadNeedNoOrder) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f32[1024], %B: global f32[1024]) {
  kernel @k grid(1) threads 128 blocks(%b) {
    for parallel %i in 1024 {
      store %B[%i] = %A[%i] + %B[%i]
    }
  }
}
)",
                                              "cuda:sm_80");
  EXPECT_EQ(Count(result, "ld.global.nc.v4"), 2u);
  EXPECT_EQ(Count(result, "ld.global.v4"), 2u);
  EXPECT_EQ(Count(result, "no_allocate"), 0u);
}

// A reduction's reads stream by; halves of words become f32 by one operation each.
TEST(Compile, ReductionsReadOnceInWholeWords) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global bf16[64, 1024], %S: global f32[64]) {
  kernel @k grid(64) threads 128 blocks(%b) {
    %tile = alloc fragment f32[1, 1024]
    %sum = alloc fragment f32[1]
    copy %A[%b, 0; 1, 1024] -> %tile[0, 0; 1, 1024]
    reduce sum %tile[0, 0; 1, 1024] -> %sum[0; 1] dim 1
    copy %sum[0; 1] -> %S[%b; 1]
  }
}
)",
                                              "cuda:sm_80");
  EXPECT_EQ(Count(result, "ld.global.nc.L1::no_allocate.v4"), 1u);
  EXPECT_EQ(Count(result, "cvt.f32.bf16"), 0u);
}

// Of 384 threads, the lanes of a warp and then one partial result of each of the 12 warps: 5 and 4 exchanges, and one load.
TEST(Compile, ReductionsOfAnyNumberOfWarpsExchangeInWarpsFirst) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f32[64, 1536], %S: global f32[64]) {
  kernel @k grid(64) threads 384 blocks(%b) {
    %tile = alloc fragment f32[1, 1536]
    %sum = alloc fragment f32[1]
    copy %A[%b, 0; 1, 1536] -> %tile[0, 0; 1, 1536]
    reduce sum %tile[0, 0; 1, 1536] -> %sum[0; 1] dim 1
    copy %sum[0; 1] -> %S[%b; 1]
  }
}
)",
                                              "cuda:sm_80");
  EXPECT_EQ(Count(result, "shfl.sync.bfly"), 9u);
  EXPECT_EQ(Count(result, "ld.shared"), 1u);
}

// Also where rows may be outside, and subnormals flushed: cvt.ftz would take the unit for exponentials.
TEST(Compile, HalvesOfWordsThatAreLoadedUnderAConditionBecomeFloatsInOneOperation) {
  for (const bool fast_math : {false, true}) {
    v1::CompileRequest request;
    request.set_target("cuda:sm_90a");
    request.mutable_options()->set_fast_math(fast_math);
    request.set_module(R"(kiln 1
func @f[%M](%A: global bf16[%M, 1024], %L: global i32[%M], %S: global f32[%M]) {
  kernel @k grid(%M) threads 128 blocks(%b) {
    %tile = alloc fragment f32[1, 1024]
    %sum = alloc fragment f32[1]
    copy %A[%b, 0; 1, 1024] -> %tile[0, 0; 1, 1024]
    reduce sum %tile[0, 0; 1, 1024] -> %sum[0; 1] dim 1
    for parallel %i in 1 { store %S[%b + %i] = exp(%sum[%i]) - f32(%A[%b, %L[%b]]) }
  }
}
)");
    const v1::WorkerResult result = Compile(request, {});
    ASSERT_TRUE(result.has_artifact()) << FirstError(result);
    EXPECT_GE(Count(result, "shl.b32"), 4u);
    EXPECT_EQ(Count(result, "cvt.ftz.f32.bf16"), 0u);
    EXPECT_EQ(Count(result, "cvt.f32.bf16"), fast_math ? 0u : 1u);
  }
}

// What a short loop reads again is looked for in the cache.
TEST(Compile, ReductionsKeepWhatIsReadAgain) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global bf16[64, 1024], %L: global i32[64], %S: global f32[64]) {
  kernel @k grid(64) threads 128 blocks(%b) {
    %tile = alloc fragment f32[1, 1024]
    %sum = alloc fragment f32[1]
    copy %A[%b, 0; 1, 1024] -> %tile[0, 0; 1, 1024]
    reduce sum %tile[0, 0; 1, 1024] -> %sum[0; 1] dim 1
    for parallel %i in 1 { store %S[%b + %i] = %sum[%i] - f32(%A[%b, %L[%b]]) }
  }
}
)",
                                              "cuda:sm_80");
  EXPECT_EQ(Count(result, "no_allocate"), 0u);
  EXPECT_EQ(Count(result, "ld.global.nc.v4"), 1u);
}

// Four blocks of 256 threads leave each thread 64 registers; the report says so.
TEST(Compile, BlocksOnAMultiprocessor) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f32[64, 256]) {
  kernel @k grid(64) threads 256 min_blocks 4 blocks(%b) {
    for parallel %i in 256 { store %A[%b, %i] = %A[%b, %i] + 1.0 }
  }
}
)",
                                              "cuda:sm_90a");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_EQ(Count(result, ".minnctapersm 4"), 1u);
  const auto& decisions = result.artifact().report().decisions();
  EXPECT_TRUE(std::ranges::any_of(decisions, [](const v1::Decision& d) { return d.decision() == "at least 4 blocks on a multiprocessor"; }));
}

// Two at a time as they lie in their registers; a sum's order is its own.
TEST(Compile, MaximaOfHalfWordsGoInPairs) {
  const auto compile = [](const char* kind) {
    return CompileText(fmt::format(R"(kiln 1
func @f(%A: global bf16[64, 1024], %S: global bf16[64]) {{
  kernel @k grid(64) threads 128 blocks(%b) {{
    %tile = alloc fragment bf16[1, 1024]
    %most = alloc fragment bf16[1]
    copy %A[%b, 0; 1, 1024] -> %tile[0, 0; 1, 1024]
    reduce {} %tile[0, 0; 1, 1024] -> %most[0; 1] dim 1
    copy %most[0; 1] -> %S[%b; 1]
  }}
}}
)",
                                   kind),
                       "cuda:sm_80");
  };
  EXPECT_EQ(Count(compile("max"), "max.bf16x2"), 3u);
  EXPECT_EQ(Count(compile("min"), "min.bf16x2"), 3u);
  EXPECT_EQ(Count(compile("sum"), "bf16x2"), 0u);
}

// Whichever side the loop names first, both are accessed 16 bytes at a time, without shared memory.
TEST(Compile, TransposesTakeWholeVectorsOnBothSides) {
  for (const char* store : {"store %B[%i, %j] = %A[%j, %i]", "store %B[%j, %i] = %A[%i, %j]"}) {
    SCOPED_TRACE(store);
    const v1::WorkerResult result = CompileText(fmt::format(R"(kiln 1
func @f(%A: global f16[64, 64], %B: global f16[64, 64]) {{
  kernel @k grid(1) threads 64 blocks(%b) {{
    for parallel %i, %j in 64, 64 {{
      {}
    }}
  }}
}}
)",
                                                            store),
                                                "cuda:sm_80");
    EXPECT_EQ(Count(result, "ld.global.nc.v4"), 8u);
    EXPECT_EQ(Count(result, "st.global.v4"), 8u);
    EXPECT_EQ(Count(result, "st.global"), 8u);
    EXPECT_EQ(Count(result, "ld."), 8u + Count(result, "ld.param"));
  }
}

// 64 × 128 weights of 4 bits by 256 threads are 16 pairs of each: one load of a byte, bits for both floats, one subtraction and one product.
TEST(Compile, PackedWeightsBecomeFloatsInPairs) {
  const v1::WorkerResult result = CompileText(golden::ReadFile("tests/golden/pipeline/packed_weights.sm_90a.kiln"), "cuda:sm_90a");
  constexpr size_t kPairs = 64 * 128 / 256 / 2 * 4;  // and 4 iterations
  EXPECT_EQ(Count(result, "mul.bf16x2"), kPairs);
  EXPECT_EQ(Count(result, "ld.shared.b8"), kPairs);
  EXPECT_EQ(Count(result, "cvt.rn.bf16.s"), 0u);
}

// Of pairs of e2m1 numbers in words of four each, the first three take a shift and a mask; what differs between them is known.
TEST(Compile, ChoicesByPlaceAreMadeAheadOfTime) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%W: global u32[64, 8], %A: global bf16[16, 64], %C: global f32[16, 64]) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %words = alloc shared u32[64, 8]
    %a = alloc shared bf16[16, 64]
    %w = alloc fragment bf16[64, 64]
    %c = alloc fragment f32[16, 64]
    copy %W[0, 0; 64, 8] -> %words[0, 0; 64, 8]
    copy %A[0, 0; 16, 64] -> %a[0, 0; 16, 64]
    for parallel %i, %j in 64, 64 {
      store %w[%i, %j] = reinterpret.bf16(select(floormod(%j, 32) < 24, u16(%words[%i, %j // 32 * 4 + floormod(%j, 8) // 2] >> u32(floormod(%j, 2) * 16)) << u16(floormod(%j, 32) // 8 * 3) & 33216:u16, u16(%words[%i, %j // 32 * 4 + floormod(%j, 8) // 2] >> u32(floormod(%j, 2) * 16)) << 2:u16 & 32768:u16 | u16(%words[%i, %j // 32 * 4 + floormod(%j, 8) // 2] >> u32(floormod(%j, 2) * 16)) >> 4:u16 & 192:u16 | u16(%words[%i, %j // 32 * 4 + floormod(%j, 8) // 2] >> u32(floormod(%j, 2) * 16)) >> 6:u16 & 256:u16)) * 2.0:bf16
    }
    gemm %a[0, 0; 16, 64], %w[0, 0; 64, 64] -> %c[0, 0; 16, 64] transpose_b clear
    copy %c[0, 0; 16, 64] -> %C[0, 0; 16, 64]
  }
}
)",
                                              "cuda:sm_90");
  constexpr size_t kFourths = 64 * 64 / 128 / 2 / 4;
  EXPECT_EQ(Count(result, "selp"), 0u);
  EXPECT_LE(Count(result, "shr.u32"), 2 * kFourths + 2);  // and of the thread's number
}

// Whichever four neighbours a thread takes, it loads them together.
TEST(Compile, NeighboursInAnyOrderAreOneLoad) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global u32[64, 32], %B: global u32[64, 32]) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %tile = alloc shared u32[64, 32]
    copy %A[0, 0; 64, 32] -> %tile[0, 0; 64, 32]
    for parallel %i, %j in 64, 32 {
      store %B[%i, %j] = %tile[%i, %j // 4 * 4 + floormod(%j, 2) * 2 + floormod(%j, 4) // 2]
    }
  }
}
)",
                                              "cuda:sm_80");
  EXPECT_EQ(Count(result, "ld.shared.v4"), 4u);
  EXPECT_EQ(Count(result, "ld.shared"), 4u);
}

TEST(Compile, EveryProgramOfTheGoldensOnEveryTarget) {
  for (const auto& path : golden::Inputs("threads")) {
    for (const target::Target& target : target::All()) {
      SCOPED_TRACE(fmt::format("{} {}", path.string(), target.name));
      const v1::WorkerResult result = CompileText(golden::ReadFile(path), target.name);
      EXPECT_TRUE(result.has_artifact()) << FirstError(result);
    }
  }
}

// Whatever a program says, the compiler refuses it or compiles it; it never fails by its own fault.
TEST(Compile, RandomProgramsAreRefusedOrCompiled) {
  size_t compiled = 0;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    for (const char* target : {"cuda:sm_80", "hip:gfx1100"}) {
      SCOPED_TRACE(fmt::format("seed {} {}", seed, target));
      const ir::Module module = ir::RandomModule(seed).Make(false);
      const v1::WorkerResult result = CompileText(ir::EncodeBytes(module), target);
      for (const v1::Diagnostic& d : result.diagnostics()) ASSERT_NE(d.kind(), v1::Diagnostic::INTERNAL) << d.message();
      compiled += result.has_artifact();
    }
  }
  EXPECT_GT(compiled, 20u);
}

std::string Code(const std::string& body, std::string_view params, int threads = 128, std::string_view target = "cuda:sm_80") {
  const v1::WorkerResult result =
      CompileText(fmt::format("kiln 1\nfunc @f({}) {{\n  kernel @k grid(1) threads {} blocks(%b) {{\n{}\n  }}\n}}\n", params, threads, body), target);
  EXPECT_TRUE(result.has_artifact()) << FirstError(result);
  return result.artifact().code();
}

int Occurrences(const std::string& text, std::string_view word) {
  int count = 0;
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

// What LLVM needs to promote a fragment's registers grows with the number of their reads times the length of the block.
TEST(Compile, ABlockReadsAndWritesARegisterOnce) {
  const auto accesses = [](int products) {
    std::string text = GemmText(64, 64, 32, 128);
    const size_t begin = text.find("    gemm "), end = text.find('\n', begin) + 1;
    const std::string gemm = text.substr(begin, end - begin);
    for (int i = 1; i < products; ++i) text.insert(end, gemm.substr(0, gemm.find(" clear")) + "\n");
    v1::CompileRequest request;
    request.set_module(text);
    request.set_target("cuda:sm_80");
    request.mutable_explain()->set_llvm(true);
    const v1::WorkerResult result = Compile(request, {});
    EXPECT_TRUE(result.has_artifact()) << FirstError(result);
    EXPECT_EQ(result.dumps(0).pass(), "llvm");
    EXPECT_EQ(Occurrences(result.artifact().code(), "mma.sync"), 16 * products);
    return Occurrences(result.dumps(0).text(), " load ") + Occurrences(result.dumps(0).text(), " store ");
  };
  EXPECT_EQ(accesses(1), accesses(8));
}

TEST(Compile, AStoreEndsWhatAConditionSaidOfMemory) {
  // The second statement reads %I[0] anew: nothing is known of it any more.
  const std::string checked = Code(R"(if %I[0] >= 0 && %I[0] < 16 {
      store %I[0] = 1000000
      store %O[%I[0]] = 1.0
    })",
                                   "%I: global i32[1], %O: global f32[16]");
  EXPECT_GE(Occurrences(checked, "setp."), 2) << checked;  // the condition, and the bound of the second store
}

// Where registers add constants to one index, it is compared in 64 bits once.
TEST(Compile, ManyRegistersCompareTheirConstants) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f[%n: i64](%O: global f32[%n]) {
  kernel @k grid(9) threads 128 blocks(%b) {
    for parallel %i in 4096 {
      store %O[i64(%b) * 12288:i64 + i64(%i) * 3:i64] = 1.0
    }
  }
}
)",
                                              "cuda:sm_80");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  const std::string& code = result.artifact().code();
  EXPECT_EQ(Occurrences(code, "st.global"), 32) << code;
  EXPECT_LE(Occurrences(code, "64 \t%p"), 2) << code;
}

// Versions of a tile are told apart up to the most stages that a loop may have.
TEST(Compile, ALongPipelineKeepsItsCopiesInFlight) {
  for (const int stages : {4, 20, 32}) {
    const v1::WorkerResult result = CompileText(fmt::format(R"(kiln 1
func @f(%A: global f16[32, 1024], %B: global f16[1024, 32], %C: global f16[32, 32]) outputs(2) {{
  kernel @k grid(1) threads 32 blocks(%b) {{
    %a = alloc shared f16[32, 16]
    %w = alloc shared f16[16, 32]
    %c = alloc fragment f32[32, 32]
    fill %c[0, 0; 32, 32] = 0.0
    for pipelined %k in 64 stages {} {{
      copy %A[0, %k * 16; 32, 16] -> %a[0, 0; 32, 16]
      copy %B[%k * 16, 0; 16, 32] -> %w[0, 0; 16, 32]
      gemm %a[0, 0; 32, 16], %w[0, 0; 16, 32] -> %c[0, 0; 32, 32]
    }}
    copy %c[0, 0; 32, 32] -> %C[0, 0; 32, 32]
  }}
}}
)",
                                                            stages),
                                                "cuda:sm_80");
    EXPECT_GE(Count(result, fmt::format("cp.async.wait_group \t{};", stages - 2)), 1u) << stages;
    EXPECT_EQ(Count(result, "cp.async.wait_group \t0;"), 0u) << stages;
  }
}

TEST(Compile, AGuardOfADivisionStays) {
  const std::string code = Code(R"(for parallel %j in 128 {
      store %O[%j] = select(%A[%j] != 0, 100 / %A[%j], 7)
    })",
                                "%A: global i32[128], %O: global i32[128]");
  EXPECT_GE(Occurrences(code, "selp."), 1) << code;
}

TEST(Compile, ASelectGuardsItsLoads) {
  const std::string code = Code(R"(%s = alloc shared f32[128]
    for parallel %j in 128 { store %s[%j] = %A[%j] }
    for parallel %j in 128 { store %O[%j] = select(%j >= 1, %s[%j - 1], 0.0) })",
                                "%A: global f32[128], %O: global f32[128]");
  EXPECT_EQ(Occurrences(code, "+-4]"), 0) << code;
}

// Neighbours on which a mask decides together are loaded together; the mask is all that is compared. Others are, too, where the tensor has them, and
// then chosen from.
TEST(Compile, AMaskOfWholeVectorsLoadsVectors) {
  const auto code = [](std::string_view mask, std::string_view divides = "assume floormod(%n, 4:i64) == 0:i64") {
    const v1::WorkerResult result = CompileText(fmt::format(R"(kiln 1
func @f[%n: i64](%s: i32, %A: global f32[%n], %O: global f32[512]) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    {}
    for parallel %j in 512 {{ store %O[%j] = masked({}, %A[%j], 0.0) }}
  }}
}}
)",
                                                            divides, mask),
                                                "cuda:sm_80");
    EXPECT_TRUE(result.has_artifact()) << FirstError(result);
    return result.artifact().code();
  };
  EXPECT_EQ(Occurrences(code("i64(%j) < %n"), "ld.global.nc.v4"), 1);
  EXPECT_EQ(Occurrences(code("i64(%j) < %n"), "setp."), 1);
  for (const std::string_view apart : {"i64(%j) < %n", "%j >= 101", "floormod(%j, 3) != 1"}) {
    EXPECT_EQ(Occurrences(code(apart, ""), "ld.global.nc.v4"), 1) << apart;
    EXPECT_EQ(Occurrences(code(apart, ""), "ld.global.nc"), 1) << apart;
  }
  EXPECT_EQ(Occurrences(code("%s > 3"), "ld.global.nc.v4"), 1);
  EXPECT_EQ(Occurrences(code("%j >= 100 && %j // 8 != 5"), "ld.global.nc.v4"), 1);
}

// Neighbours under one condition are stored together; those that meet it in a row are where all do, and else one by one.
TEST(Compile, AConditionOfWholeVectorsStoresVectors) {
  const auto code = [](std::string_view cond) {
    return Code(fmt::format("for parallel %j in 512 {{ if {} {{ store %O[%j] = %A[%j] + 1.0 }} }}", cond),
                "%s: i32, %n: i32, %A: global f32[512], %O: global f32[512]");
  };
  for (const std::string_view whole : {"%j < 400", "%s > 3", "%j >= %s * 4", "%j < 400 && %n != %s"}) {
    EXPECT_EQ(Occurrences(code(whole), "st.global.v4"), 1) << whole;
    EXPECT_EQ(Occurrences(code(whole), "ld.global.nc.v4"), 1) << whole;
  }
  for (const std::string_view parted : {"%j < 401", "%j < %n", "%j > %s && %j <= %n"}) {
    EXPECT_EQ(Occurrences(code(parted), "st.global.v4"), 1) << parted;
    EXPECT_GE(Occurrences(code(parted), "st.global"), 4) << parted;
    EXPECT_EQ(Occurrences(code(parted), "ld.global.nc.v4"), 1) << parted;
  }
  for (const std::string_view each : {"floormod(%j, 3) == 1", "%j < 401 || %j == %s"}) {
    EXPECT_EQ(Occurrences(code(each), "st.global.v4"), 0) << each;
    EXPECT_EQ(Occurrences(code(each), "st.global"), 4) << each;
  }
}

TEST(Compile, AsyncCopiesOfAnyWidth) {
  for (const auto& [rows, columns, threads] : {std::tuple{64, 7, 32}, {64, 3, 32}, {64, 6, 64}, {33, 2, 128}}) {
    const std::string shape = fmt::format("{}, {}", rows, columns);
    Code(fmt::format("%s = alloc shared f32[{0}]\ncopy %A[0, 0; {0}] -> %s[0, 0; {0}]\ncopy %s[0, 0; {0}] -> %O[0, 0; {0}]", shape),
         fmt::format("%A: global f32[{0}], %O: global f32[{0}]", shape), threads);
  }
}

TEST(Compile, UnalignedTilesAreNotReadByMatrix) {
  const auto code = [](int offset) {
    return Code(fmt::format(R"(%a = alloc shared f16[64, 64]
    %w = alloc shared f16[32, 64]
    %c = alloc fragment f32[64, 64]
    copy %A[0, 0; 64, 64] -> %a[0, 0; 64, 64]
    copy %B[0, 0; 32, 64] -> %w[0, 0; 32, 64]
    gemm %a[0, {0}; 64, 32], %w[0, 0; 32, 64] -> %c[0, 0; 64, 64] clear
    copy %c[0, 0; 64, 64] -> %C[0, 0; 64, 64])",
                            offset),
                "%A: global f16[64, 64], %B: global f16[32, 64], %C: global f32[64, 64]");
  };
  EXPECT_GT(Occurrences(code(8), "ldmatrix"), Occurrences(code(4), "ldmatrix"));
}

TEST(Compile, RegistersAreCountedForEachKernel) {
  std::string text = "kiln 1\nfunc @f(%A: global f32[128, 384]) {\n";
  for (int k = 0; k < 2; ++k) {
    text += fmt::format(
        "  kernel @k{0} grid(1) threads 128 blocks(%b{0}) {{\n    %c{0} = alloc fragment f32[128, 384]\n"
        "    copy %A[0, 0; 128, 384] -> %c{0}[0, 0; 128, 384]\n"
        "    copy %c{0}[0, 0; 128, 384] -> %A[0, 0; 128, 384]\n  }}\n",
        k);
  }
  const v1::WorkerResult result = CompileText(text + "}\n", "cuda:sm_80");
  EXPECT_TRUE(result.has_artifact()) << FirstError(result);
}

TEST(Compile, AGemmIntoAPartIsRefusedByName) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f16[64, 32], %B: global f16[32, 64]) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %a = alloc shared f16[64, 32]
    %w = alloc shared f16[32, 64]
    %c = alloc fragment f32[128, 64]
    copy %A[0, 0; 64, 32] -> %a[0, 0; 64, 32]
    copy %B[0, 0; 32, 64] -> %w[0, 0; 32, 64]
    gemm %a[0, 0; 64, 32], %w[0, 0; 32, 64] -> %c[64, 0; 64, 64] clear
  }
}
)",
                                              "cuda:sm_80");
  EXPECT_NE(FirstError(result).find("part of 'c'"), std::string::npos) << FirstError(result);
  for (const v1::Diagnostic& d : result.diagnostics()) EXPECT_NE(d.kind(), v1::Diagnostic::INTERNAL);
}

// What pads a tile is known when it is compiled.
TEST(Compile, ConstantsOfEightBitFloatsAreLiterals) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f8e4m3[64, 32]) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %c = alloc fragment f8e4m3[64, 32]
    fill %c[0, 0; 64, 32] = f8e4m3(1.5)
    copy %c[0, 0; 64, 32] -> %A[0, 0; 64, 32]
  }
}
)",
                                              "cuda:sm_90a");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_EQ(result.artifact().code().find("cvt"), std::string::npos) << result.artifact().code();
}

TEST(Compile, AnUnknownTargetNamesTheNearest) {
  const std::string error = FirstError(CompileText(GemmText(64, 64, 32, 128), "cuda:sm_91"));
  EXPECT_NE(error.find("sm_91"), std::string::npos) << error;
  EXPECT_NE(error.find("sm_90"), std::string::npos) << error;
}

TEST(Compile, ProductsOfOtherThreadsThanWholeWarpsAreWarnedOf) {
  for (const auto& [threads, target, warps] : {std::tuple(100, "cuda:sm_80", "warps of 32"), std::tuple(96, "hip:gfx942", "warps of 64")}) {
    const v1::WorkerResult result = CompileText(GemmText(16, 16, 16, threads), target);
    ASSERT_TRUE(result.has_artifact()) << FirstError(result);
    ASSERT_EQ(result.diagnostics_size(), 1);
    EXPECT_EQ(result.diagnostics(0).severity(), v1::Diagnostic::WARNING);
    EXPECT_NE(result.diagnostics(0).message().find(warps), std::string::npos) << result.diagnostics(0).DebugString();
  }
  EXPECT_EQ(CompileText(GemmText(64, 64, 32, 128), "hip:gfx942").diagnostics_size(), 0);
}

TEST(Compile, ExplainShowsEachPassAndTheCode) {
  v1::CompileRequest request;
  request.set_module(GemmText(64, 64, 32, 128));
  request.set_target("hip:gfx942");
  request.mutable_explain()->add_after("all");
  request.mutable_explain()->set_llvm(true);
  request.mutable_explain()->set_assembly(true);
  const v1::WorkerResult result = Compile(request, {});
  ASSERT_TRUE(result.has_artifact());
  std::string dumped, all;
  for (const v1::PassDump& dump : result.dumps()) dumped += dump.pass() + " ";
  for (const Pass& pass : Passes()) all += std::string(pass.name) + " ";
  EXPECT_EQ(dumped, all + "llvm llvm-optimized assembly ");
  EXPECT_NE(result.dumps().rbegin()->text().find("v_mfma"), std::string::npos);
}

}  // namespace
}  // namespace kiln::compiler
