// SPDX-License-Identifier: Apache-2.0
//
// What sm_90a's own instructions look like in the code of whole compiles, and what ptxas must not be given.
#include <algorithm>
#include <regex>

#include "compiler/compile_testing.h"
#include "compiler/llvm/assemble/find_ptxas.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

// A product is started before the one before it is waited for.
TEST(CompileHopper, ProductsWithSumsOfTheirOwnOverlap) {
  const v1::WorkerResult result = CompileText(golden::ReadFile("tests/golden/pipeline/block_scaled.sm_90a.kiln"), "cuda:sm_90a");
  EXPECT_EQ(Count(result, "wgmma.wait_group.sync.aligned 1"), 3u);
  EXPECT_EQ(Count(result, "wgmma.wait_group.sync.aligned 0"), 1u);
}

// Of the three tensors that tiles are added to, the last is written otherwise, too: its elements are added one by one.
TEST(CompileHopper, TilesAreAddedByTheTensorUnit) {
  const v1::WorkerResult result = CompileText(golden::ReadFile("tests/golden/tensor_copies/added_tiles.sm_90a.kiln"), "cuda:sm_90a");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_GT(Count(result, "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.bulk_group"), 0u);
  EXPECT_GT(Count(result, "atom.global.add.f32"), 0u);
  EXPECT_EQ(result.artifact().launch().tensor_maps_size(), 4);
}

// The metadata come in boxes of 16 bytes, beside the operands, and each instruction takes half of a dense one's columns of A.
TEST(CompileHopper, SparseProductsTakeWhatTensorCopiesBring) {
  const v1::WorkerResult result = CompileText(golden::ReadFile("tests/golden/tensor_copies/sparse.sm_90a.kiln"), "cuda:sm_90a");
  EXPECT_GT(Count(result, "wgmma.mma_async.sp.sync.aligned.m64n128k32.f32.f16.f16"), 0u);
  EXPECT_EQ(Count(result, "wgmma.mma_async.sync"), 0u);
  EXPECT_EQ(Count(result, "cp.async.c"), 0u);
  ASSERT_EQ(result.artifact().launch().tensor_maps_size(), 4);
  EXPECT_EQ(std::ranges::count(result.artifact().launch().tensor_maps(), 0u, &v1::TensorMap::swizzle_bytes), 1);
}

TEST(CompileHopper, WgmmaWhereItIsAskedForAndFits) {
  v1::CompileRequest request;
  request.set_target("cuda:sm_90a");
  const auto code = [&](const std::string& text, bool wgmma) {
    request.set_module(text);
    request.mutable_options()->set_disable_wgmma(!wgmma);
    const v1::WorkerResult result = Compile(request, {});
    EXPECT_TRUE(result.has_artifact()) << FirstError(result);
    return result.artifact().code();
  };
  const std::string fits = code(GemmText(128, 128, 64, 128), true);
  EXPECT_NE(fits.find("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16"), std::string::npos);
  EXPECT_NE(fits.find("fence.proxy.async"), std::string::npos);
  EXPECT_EQ(code(GemmText(128, 128, 64, 128), false).find("wgmma"), std::string::npos);
  // 64 rows are one group's; of 32, the columns are.
  EXPECT_NE(code(GemmText(32, 128, 64, 128), true).find("wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16"), std::string::npos);
  EXPECT_EQ(code(GemmText(32, 96, 64, 128), true).find("wgmma"), std::string::npos);
  // 128 × 384 accumulators would leave a thread of 128 no register.
  EXPECT_EQ(code(GemmText(128, 384, 64, 128), true).find("wgmma"), std::string::npos);
}

// Products of a loop whose tiles stay where they are have 72 descriptors, too many to be kept from one iteration to the next. Those of tiles that the
// loop moves are made in each iteration anyway.
TEST(CompileHopper, LoopsKeepFewDescriptors) {
  const auto made = [](const std::string& version) {
    const std::string text = R"(kiln 1
func @f[%n](%A: global f16[%n, 576], %B: global f16[%n, 576], %C: global f32[64, 64]) {
  kernel @k grid(1) threads 128 blocks(%x) {
    %a = alloc shared f16[64, 576]
    %b = alloc shared f16[2, 64, 576]
    %c = alloc fragment f32[64, 64]
    copy %A[0, 0; 64, 576] -> %a[0, 0; 64, 576]
    fill %c[0, 0; 64, 64] = 0.0
    for serial %i in 4 {
      copy %B[%i * 64, 0; 64, 576] -> %b[VERSION, 0, 0; 1, 64, 576]
      gemm %a[0, 0; 64, 256], %b[VERSION, 0, 0; 1, 64, 256] -> %c[0, 0; 64, 64] transpose_b
      gemm %a[0, 256; 64, 256], %b[VERSION, 0, 256; 1, 64, 256] -> %c[0, 0; 64, 64] transpose_b
      gemm %a[0, 512; 64, 64], %b[VERSION, 0, 512; 1, 64, 64] -> %c[0, 0; 64, 64] transpose_b
    }
    copy %c[0, 0; 64, 64] -> %C[0, 0; 64, 64]
  }
}
)";
    const v1::WorkerResult result = CompileText(std::regex_replace(text, std::regex("VERSION"), version), "cuda:sm_90a");
    EXPECT_TRUE(result.has_artifact()) << FirstError(result);
    return Count(result, "mov.b64 right, {low");
  };
  EXPECT_EQ(made("0"), 36u);
  EXPECT_EQ(made("%i & 1"), 0u);
}

// The rows that cp.async brings to a product, and the tile that the tensor unit stores. What warps exchange is of no concern to either.
TEST(CompileHopper, FencesStandBeforeWhatTheUnitReads) {
  std::string text = golden::ReadFile("tests/golden/pipeline/listed_rows.sm_90a.kiln");
  const auto replace = [&](const std::string& from, const std::string& to) { text = std::regex_replace(text, std::regex(from), to); };
  replace("threads 128", "threads 256");
  const v1::WorkerResult plain = CompileText(text, "cuda:sm_90a");
  EXPECT_EQ(Count(plain, "fence.proxy.async"), 3u);  // in the loop, behind its last copies, and before the tile is stored
  text.insert(text.find("      gemm"), "      %most = alloc fragment f32[64]\n");
  text.insert(text.find("    }\n    copy %acc"),
              "      reduce max %acc[0, 0; 64, 64] -> %most[0; 64] dim 1\n"
              "      for parallel %i_3, %j_2 in 64, 64 {\n        store %acc[%i_3, %j_2] = %acc[%i_3, %j_2] - %most[%i_3]\n      }\n");
  const v1::WorkerResult reduced = CompileText(text, "cuda:sm_90a");
  ASSERT_TRUE(reduced.has_artifact()) << FirstError(reduced);
  EXPECT_GT(Count(reduced, "bar.sync"), Count(plain, "bar.sync"));
  EXPECT_EQ(Count(reduced, "fence.proxy.async"), 3u);
}

// ptxas is asked for the blocks that may fit. It makes the kernel for one where values spill.
TEST(CompileHopper, MoreBlocksAreKeptWhereNothingSpills) {
  v1::CompileRequest request;
  request.set_target("cuda:sm_90a");
  request.set_module(golden::ReadFile("tests/golden/residents/tries.sm_90a.kiln"));
  const v1::WorkerResult result = Compile(request, {});
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_EQ(Count(result, ".minnctapersm 1 // to try: 2"), 1u);
  const Hooks hooks{.ptxas = llvm_ir::FindPtxas()};
  if (hooks.ptxas.empty()) GTEST_SKIP() << "SKIPPED, NOTHING WAS ASSEMBLED: no ptxas";
  const auto registers = [&](const std::string& blocks) {
    v1::Artifact artifact = result.artifact();
    artifact.set_code(std::regex_replace(artifact.code(), std::regex("to try: 2"), "to try: " + blocks));
    const v1::WorkerResult made = Assemble(request, artifact, hooks);
    EXPECT_EQ(made.assembled().kernels_size(), 1) << FirstError(made);
    EXPECT_EQ(made.assembled().kernels(0).spill_bytes(), 0u);
    return made.assembled().kernels(0).registers();
  };
  EXPECT_LE(registers("2"), 128u);
  EXPECT_GE(registers("8"), 96u);  // the fragment alone
}

// A kernel that moves registers between its threads itself counts with those of one block.
TEST(CompileHopper, NoMoreBlocksAreTriedWhereRegistersMove) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%X: global f32[4096, 10240], %Y: global f32[4096, 10240], %Z: global f32[4096, 128]) thread(%t) {
  kernel @k grid(4096) threads 384 blocks(%b) {
    %x = alloc fragment f32[10240]
    %s = alloc fragment f32[1]
    if %t < 128 {
      registers 24
      for parallel %i in 128 {
        store %Z[%b, %i] = 1.0
      }
    } else {
      registers 240 more
      copy %X[%b, 0; 1, 10240] -> %x[0; 10240]
      reduce max %x[0; 10240] -> %s[0; 1] dim 0
      for parallel %i_1 in 10240 {
        store %Y[%b, %i_1] = %x[%i_1] - %s[0]
      }
    }
  }
}
)",
                                              "cuda:sm_90a");
  EXPECT_GT(Count(result, "setmaxnreg"), 0u);
  EXPECT_EQ(Count(result, "to try"), 0u);
}

// What the threads did before the first of two arrivals is ordered by its fence. A tile that they store comes after it.
TEST(CompileHopper, ArrivalsShareAFence) {
  const auto fences = [](const std::string& line) {
    std::string text = golden::ReadFile("tests/golden/synchronize/roles.sm_90a.kiln");
    text.insert(text.find("    %free ="), "    %more = alloc barrier i64[1] arrivals(128)\n");
    if (!line.empty()) text.insert(text.find('\n', text.find(line)), "\n        arrive %more[0]");
    return Count(CompileText(text, "cuda:sm_90a"), "fence.proxy.async.shared::cta");
  };
  const size_t alone = fences("");
  EXPECT_GT(alone, 0u);
  EXPECT_EQ(fences("arrive %free["), alone);
  EXPECT_EQ(fences("copy %r[0; 128]"), alone + 1);
}

// The copies tell the barrier themselves. What their thread did besides is released before, and products see all of it behind the wait.
TEST(CompileHopper, CopiesArriveThemselves) {
  const v1::WorkerResult result = CompileText(golden::ReadFile("tests/golden/synchronize/own_rows.sm_90a.kiln"), "cuda:sm_90a");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_EQ(Count(result, "fence.acq_rel.cta; cp.async.mbarrier.arrive.noinc.shared::cta.b64"), 1u);
  const std::string& code = result.artifact().code();
  const size_t product = code.find("wgmma.mma_async"), waits = code.rfind("mbarrier.try_wait", product);
  ASSERT_NE(product, std::string::npos);
  EXPECT_LT(code.find("fence.proxy.async", waits), product);
}

// Nobody waits for reads of a tensor that nothing writes, nor for copies that have been announced: the copies under way alone are announced. What the
// threads wrote is, too, though they have met since: others have not met them.
TEST(CompileHopper, ArrivalsOfCopiesReleaseNothingElse) {
  const auto code = [](std::string_view before) {
    return CompileText(fmt::format(R"(kiln 1
func @f(%A: global f16[64, 128], %T: global i32[64], %B: global f16[8, 128]) outputs(2) thread(%t) {{
  kernel @k grid(1) threads 256 blocks(%b) {{
    %s = alloc shared f16[2, 8, 128]
    %seen = alloc shared f32[128]
    %full = alloc barrier i64[2] arrivals(128, 128)
    %free = alloc barrier i64[2] arrivals(128, 128)
    if %t < 128 {{
      for serial %k in 8 {{
        await %free[%k & 1] parity (%k // 2 + 1) & 1
        {}
        for parallel %i, %j in 8, 128 {{
          store %s[%k & 1, %i, %j] = %A[%T[%k * 8 + %i], %j]
        }}
        arrive %full[%k & 1]
      }}
    }}
    if %t >= 128 {{
      %x = alloc fragment f16[8, 128]
      fill %x[0, 0; 8, 128] = 0.0:f16
      for serial %k in 8 {{
        await %full[%k & 1] parity (%k // 2) & 1
        for parallel %i, %j in 8, 128 {{
          store %x[%i, %j] = %x[%i, %j] + %s[%k & 1, %i, %j]
        }}
        arrive %free[%k & 1]
      }}
      copy %x[0, 0; 8, 128] -> %B[0, 0; 8, 128]
    }}
  }}
}}
)",
                                   before),
                       "cuda:sm_90a");
  };
  const v1::WorkerResult copies = code(""), stores = code("store %seen[%t] = f32(%k)"),
                         met = code("store %seen[%t] = f32(%k)\n        store %s[%k & 1, 0, %t] = 0.0:f16");
  EXPECT_EQ(Count(copies, "cp.async.mbarrier.arrive.noinc"), 1u);
  EXPECT_EQ(Count(copies, "fence.acq_rel.cta"), 0u);
  EXPECT_EQ(Count(stores, "fence.acq_rel.cta; cp.async.mbarrier.arrive.noinc"), 1u);
  EXPECT_EQ(Count(met, "fence.acq_rel.cta; cp.async.mbarrier.arrive.noinc"), 1u);
}

// ptxas of CUDA 13.0 drops the upper word where a 64-bit constant is added to a product: of the group's part of the tile (three groups), of
// the version of a tile (a loop whose copies go through registers).
TEST(CompileHopper, UpperHalvesOfDescriptorsTakeNoPartInSums) {
  const std::string versions = R"(kiln 1
func @f[%m, %k](%A: global f16[%m, %k], %B: global f16[384, 16], %C: global f32[8, 384]) {
  kernel @k grid(2, 1) threads 128 blocks(%x, %y) {
    %a = alloc shared f16[16, 16]
    %b = alloc shared f16[192, 16]
    %c = alloc fragment f32[16, 192]
    fill %c[0, 0; 16, 192] = 0.0
    for pipelined %i in min(%y + 2, 1) stages 4 {
      copy %A[%y * 16, %i * 16; 16, 16] -> %a[0, 0; 16, 16]
      copy %B[%x * 192, %i * 16; 192, 16] -> %b[0, 0; 192, 16]
      gemm %a[0, 0; 16, 16], %b[0, 0; 192, 16] -> %c[0, 0; 16, 192] transpose_b
    }
    copy %c[0, 0; 16, 192] -> %C[%y * 16, %x * 192; 16, 192]
  }
}
)";
  for (const std::string& program : {GemmText(192, 128, 64, 384), versions}) {
    const v1::WorkerResult result = CompileText(program, "cuda:sm_90a");
    ASSERT_TRUE(result.has_artifact()) << FirstError(result);
    EXPECT_GT(Count(result, "wgmma.mma_async"), 0u);
    for (const auto line : result.artifact().code() | std::views::split('\n')) {
      const std::string_view text(line.begin(), line.end());
      if (!text.contains("add.s64") && !text.contains("or.b64") && !text.contains("mad.")) continue;
      const std::string_view last = text.substr(text.rfind(' ') + 1);
      EXPECT_TRUE(last.starts_with('%') || last.size() < 12) << text;
    }
  }
}

// What ptxas 13.0 makes of st.v2.b8 is wrong where the bytes come from words loaded whole.
TEST(CompileHopper, TwoBytesAreStoredAsOneNumber) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f8e4m3[64], %C: global f8e4m3[1, 126]) {
  kernel @k grid(1) threads 32 blocks(%x) {
    %a = alloc fragment f8e4m3[64]
    copy %A[0; 64] -> %a[0; 64]
    copy %a[0; 64] -> %C[%x, 0; 1, 64]
  }
}
)",
                                              "cuda:sm_90a");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_EQ(Count(result, "st.global.v2.b8"), 0u);
  EXPECT_GT(Count(result, "st.global.b16"), 0u) << result.artifact().code();
}

TEST(CompileHopper, SumsOf8BitFloatsAreFinishedInFloat32) {
  v1::CompileRequest request;
  request.set_target("cuda:sm_90a");
  request.set_module(R"(kiln 1
func @f(%A: global f8e4m3[128, 512], %B: global f8e4m3[256, 512], %C: global f32[128, 256]) {
  kernel @k grid(1) threads 256 blocks(%b) {
    %a = alloc shared f8e4m3[128, 128]
    %w = alloc shared f8e4m3[256, 128]
    %c = alloc fragment f32[128, 256]
    fill %c[0, 0; 128, 256] = 0.0
    for serial %i in 4 {
      copy %A[0, %i * 128; 128, 128] -> %a[0, 0; 128, 128]
      copy %B[0, %i * 128; 256, 128] -> %w[0, 0; 256, 128]
      gemm %a[0, 0; 128, 128], %w[0, 0; 256, 128] -> %c[0, 0; 128, 256] transpose_b
    }
    copy %c[0, 0; 128, 256] -> %C[0, 0; 128, 256]
  }
}
)");
  const auto sums = [&](bool fast) {
    request.mutable_options()->set_fast_accumulation(fast);
    const v1::WorkerResult result = Compile(request, {});
    EXPECT_EQ(Count(result, fast ? "m64n256k32.f32.e4m3.e4m3" : "m64n128k32.f32.e4m3.e4m3"), fast ? 4u : 8u);
    return Count(result, "add.f32");
  };
  EXPECT_EQ(sums(false), 128u);
  EXPECT_EQ(sums(true), 0u);
}

// A limit on registers counts for more than blocks asked for; roles share what the limit leaves.
TEST(CompileHopper, RolesShareTheRegistersThatAKernelStartsWith) {
  v1::CompileRequest request;
  request.set_target("cuda:sm_90a");
  std::string program = golden::ReadFile("tests/golden/threads/hopper_gemm.sm_90a.kiln");
  program.replace(program.find(" blocks("), 1, " min_blocks 2 ");
  request.set_module(program);
  const auto shares = [&](uint32_t limit) {
    request.mutable_options()->set_max_registers(limit);
    const v1::WorkerResult result = Compile(request, {});
    EXPECT_TRUE(result.has_artifact()) << FirstError(result);
    const std::string& code = result.artifact().code();
    const size_t at = code.find("setmaxnreg.inc.sync.aligned.u32 ");
    return at == std::string::npos ? 0 : std::stoi(code.substr(at + 32));
  };
  EXPECT_GT(shares(0), 0);
  EXPECT_LT(shares(0), 168) << "two blocks have half as many each";
  EXPECT_GT(shares(168), 168);
}

// Rows that are read and written: what is written stays in the L2. Not where twice as much is read, nor on targets without such stores.
TEST(CompileHopper, WhatIsWrittenAsMuchAsIsReadStaysInTheL2) {
  const auto program = [](const char* value) {
    return fmt::format(R"(kiln 1
func @f(%A: global f32[64, 1024], %W: global f32[1024], %B: global f32[64, 1024], %C: global f32[64, 1024]) {{
  kernel @k grid(64) threads 128 blocks(%b) {{
    for parallel %i in 1024 {{ store %C[%b, %i] = {} }}
  }}
}}
)",
                       value);
  };
  const std::string says = "stores 4 elements at once, lines that the L2 keeps longer than what is read";
  const auto reported = [&](const v1::WorkerResult& result) {
    return std::ranges::any_of(result.artifact().report().decisions(), [&](const v1::Decision& d) {
      return d.pass() == "accesses" && d.subject() == "C[…] =" && d.decision().ends_with(says);
    });
  };
  const auto explained = [](std::string text, const char* target) {
    v1::CompileRequest request;
    request.set_target(target);
    request.set_module(std::move(text));
    request.mutable_explain();  // for names
    return Compile(request, {});
  };
  const v1::WorkerResult kept = CompileText(program("%A[%b, %i] * %W[%i]"), "cuda:sm_90a");
  EXPECT_EQ(Count(kept, "st.global.L2::cache_hint.v4.b32"), 2u);
  EXPECT_EQ(Count(kept, "createpolicy.fractional.L2::evict_last"), 1u);
  for (const auto& [value, target] : {std::pair{"%A[%b, %i] + %B[%b, %i]", "cuda:sm_90a"}, {"%A[%b, %i] * %W[%i]", "cuda:sm_80"}}) {
    const v1::WorkerResult plain = explained(program(value), target);
    EXPECT_EQ(Count(plain, "cache_hint"), 0u);
    EXPECT_EQ(Count(plain, "st.global.v4"), 2u);
    EXPECT_FALSE(reported(plain));
  }
  EXPECT_TRUE(reported(explained(program("%A[%b, %i] * %W[%i]"), "cuda:sm_90a")));
  EXPECT_FALSE(reported(explained(program("%A[%b, %i] * %W[%i]"), "emu:sm_90a"))) << "it keeps none";
  // Stores of single elements: rows are no multiple of 16 bytes.
  const std::string narrow = R"(kiln 1
func @f(%A: global f32[64, 1023], %C: global f32[64, 1023]) {
  kernel @k grid(64) threads 128 blocks(%b) {
    for parallel %i in 1023 { store %C[%b, %i] = %A[%b, %i] * 2.0 }
  }
}
)";
  const v1::WorkerResult single = explained(narrow, "cuda:sm_90a");
  EXPECT_EQ(Count(single, "cache_hint"), 0u);
  EXPECT_FALSE(reported(single));
}

// Three tensors are read for one that is written: the rows of two of them stand in a let, which two stores share.
TEST(CompileHopper, TrafficIsCountedThroughLets) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%A: global f32[64, 32, 128], %B: global f32[64, 32, 128], %X: global f32[64, 32, 128], %C: global f32[64, 32, 128], %R: global i32[32]) {
  kernel @k grid(64) threads 128 blocks(%b) {
    %a = alloc shared f32[32, 128]
    %c = alloc shared f32[32, 128]
    for parallel %i, %j in 32, 128 {
      let %row = %R[%i]
      store %a[%i, %j] = %A[%b, %row, %j]
      store %c[%i, %j] = %B[%b, %row, %j]
    }
    for parallel %i, %j in 32, 128 { store %C[%b, %i, %j] = %X[%b, %i, %j] + %a[%i, %j] * %c[%i, %j] }
  }
}
)",
                                              "cuda:sm_90a");
  EXPECT_EQ(Count(result, "st.global.v4"), 8u);
  EXPECT_EQ(Count(result, "cache_hint"), 0u);
}

// The products' operands are read again by other blocks.
TEST(CompileHopper, ProductsLeaveTheL2ToTheirOperands) {
  const v1::WorkerResult result = CompileText(GemmText(32, 32, 32, 128), "cuda:sm_90a");
  EXPECT_EQ(Count(result, "cache_hint"), 0u);
}

}  // namespace
}  // namespace kiln::compiler
