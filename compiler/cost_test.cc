// SPDX-License-Identifier: Apache-2.0
//
// What a compile costs is known before LLVM: small programs that ask for much are refused with figures or stay loops, long ones take time in
// proportion to their length.
#include <algorithm>
#include <set>

#include "compiler/compile_testing.h"
#include "compiler/growth_testing.h"

namespace kiln::compiler {
namespace {

std::string LocalFill(int x, int y, int z) {
  return fmt::format(R"(kiln 1
func @f(%Y: global f32[64]) outputs(0) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    %l = alloc local f32[{0}, {1}, {2}]
    fill %l[0, 0, 0; {0}, {1}, {2}] = 1.0
    store %Y[%b] = %l[%b, %b, %b]
  }}
}}
)",
                     x, y, z);
}

std::string Row(int n) {
  return fmt::format(R"(kiln 1
func @f(%X: global f32[128, {0}], %Y: global f32[128, {0}]) outputs(1) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    %t = alloc fragment f32[128, {0}]
    copy %X[0, 0; 128, {0}] -> %t[0, 0; 128, {0}]
    copy %t[0, 0; 128, {0}] -> %Y[0, 0; 128, {0}]
  }}
}}
)",
                     n);
}

// Statements of one block, each with a condition: the worst that LLVM's passes get.
std::string Stores(int n) {
  std::string text =
      "kiln 1\nfunc @f(%X: global f32[1048576], %Y: global f32[1048576]) outputs(1) {\n  kernel @k grid(64) threads 128 blocks(%b) {\n";
  for (int i = 0; i < n; ++i) text += fmt::format("    store %Y[%b * 4096 + {}] = %X[%b * 4096 + {}] + {}.0\n", i % 4096, i * 7 % 4096, i);
  return text + "  }\n}\n";
}

v1::WorkerResult CompileWith(const std::string& text, std::string_view target, const v1::CompileOptions& options) {
  v1::CompileRequest request;
  request.set_module(text);
  request.set_target(std::string(target));
  *request.mutable_options() = options;
  return Compile(request, {});
}

double Seconds(const std::string& text, std::string_view target) {
  return ProcessorSeconds([&] { EXPECT_TRUE(CompileText(text, target).has_artifact()); });
}

TEST(Cost, LongLoopsOverLocalArraysStayLoops) {
  for (const char* target : {"cuda:sm_90a", "hip:gfx1201", "emu:sm_86"}) {
    const v1::WorkerResult result = CompileText(LocalFill(64, 64, 4), target);
    ASSERT_TRUE(result.has_artifact()) << target << ": " << FirstError(result);
    EXPECT_LT(result.artifact().code().size(), 200'000u) << target;
  }
}

TEST(Cost, WhatIsUnrolledIsTheOptionsToSay) {
  v1::CompileOptions few;
  few.set_max_unrolled(8);
  const v1::WorkerResult all = CompileText(LocalFill(4, 4, 4), "cuda:sm_80"), some = CompileWith(LocalFill(4, 4, 4), "cuda:sm_80", few);
  EXPECT_EQ(Count(all, "setp.lt"), 0u);
  EXPECT_GT(Count(some, "setp.lt"), 0u);
}

TEST(Cost, FragmentsOfManyRegistersAreRefusedWithFigures) {
  const std::string error = FirstError(CompileText(Row(777), "hip:gfx1100"));
  EXPECT_NE(error.find("777 registers of each thread at a time"), std::string::npos) << error;
  EXPECT_NE(error.find("max_fragment_registers is 640"), std::string::npos) << error;
  v1::CompileOptions more;
  more.set_max_fragment_registers(1000);
  EXPECT_TRUE(CompileWith(Row(777), "cuda:sm_80", more).has_artifact());
}

TEST(Cost, CodeTooLongForLlvmIsRefusedWithFigures) {
  v1::CompileOptions options;
  options.set_max_code(30'000);
  for (const char* target : {"cuda:sm_90a", "hip:gfx942", "emu:sm_90a"}) {
    const v1::WorkerResult result = CompileWith(Stores(3000), target, options);
    EXPECT_NE(FirstError(result).find("more than 30000 LLVM instructions"), std::string::npos) << target << ": " << FirstError(result);
    EXPECT_EQ(result.diagnostics_size(), 1) << "said once";
    EXPECT_EQ(result.diagnostics(0).kind(), v1::Diagnostic::INVALID);
    EXPECT_GT(result.diagnostics(0).line(), 500) << "it names where the limit was reached";
    EXPECT_TRUE(CompileWith(Stores(500), target, options).has_artifact()) << target;
  }
  EXPECT_NE(FirstError(CompileText(Stores(8000), "hip:gfx942")).find("more than 60000 LLVM instructions"), std::string::npos);
}

// Barriers stand between stores to places that other threads have stored to. With them, the loops have more statements than max_unrolled: they stay
// loops, and are short code.
TEST(Cost, LoopsThatGrowBeyondTheLimitStayLoops) {
  std::string loops;
  for (int i = 0; i < 8; ++i)
    loops += fmt::format(
        "    for unroll %i{0} in 64 {{\n      for unroll %j{0} in 32 {{\n        store %Y[(%i{0} * 32 + %j{0}) * 128 + %t] = 1.0\n"
        "        store %Y[(%i{0} * 32 + %j{0}) * 128 + 127 - %t] = 2.0\n      }}\n    }}\n",
        i);
  const std::string head = "kiln 1\nfunc @f(%Y: global f32[262144]) outputs(0) thread(%t) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n";
  const v1::WorkerResult result = CompileText(head + loops + "  }\n}\n", "hip:gfx942");
  EXPECT_TRUE(result.has_artifact()) << FirstError(result);
}

// The text that is explained is that of the code, whose blocks are cut so that selection takes time in proportion to them.
TEST(Cost, LongCodeOfOneBlockIsExplainedAsItIsCut) {
  v1::CompileRequest request;
  std::string text =
      "kiln 1\nfunc @f(%X: global f32[262144], %Y: global f32[262144]) outputs(1) thread(%t) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n";
  for (int i = 0; i < 2000; ++i) {
    std::string value = fmt::format("%X[%t + {}]", i * 128);
    for (int part = 0; part < 8; ++part) value = fmt::format("({} + {}.0) * {}.5", value, i + part, part);
    text += fmt::format("    store %Y[%t + {}] = {}\n", i * 128, value);
  }
  request.set_module(text + "  }\n}\n");
  request.set_target("hip:gfx942");
  request.mutable_explain()->set_assembly(true);
  const v1::WorkerResult result = Compile(request, {});
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  // Values that pass from one block to the next take memory.
  const uint32_t bytes = result.artifact().report().kernels(0).local_bytes();
  EXPECT_GT(bytes, 0u);
  EXPECT_TRUE(result.dumps().rbegin()->text().contains(fmt::format(".private_segment_fixed_size: {}\n", bytes)));
}

// Loops that become long code without a statement of their own for each part, and calls that become long code when they are inlined.
TEST(Cost, CodeThatOneStatementBecomesCountsToo) {
  const std::string head =
      "kiln 1\nfunc @f(%X: global f32[1048576], %Y: global f32[1048576]) outputs(1) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n";
  std::string stores, sines;
  for (int i = 0; i < 200; ++i) stores += fmt::format("      store %Y[{} + %i] = %X[%i * 3 + {}]\n", i * 4096, i);
  for (int i = 0; i < 100; ++i) sines += fmt::format("    store %Y[{0}] = sin(%X[{0}])\n", i);
  v1::CompileOptions options;
  options.set_max_code(5000);
  for (const std::string& body : {"    for parallel %i in 4096 {\n" + stores + "    }\n", sines}) {
    const v1::WorkerResult result = CompileWith(head + body + "  }\n}\n", "cuda:sm_90a", options);
    EXPECT_NE(FirstError(result).find("more than 5000 LLVM instructions"), std::string::npos) << FirstError(result);
    EXPECT_EQ(result.diagnostics_size(), 1);
  }
}

TEST(Cost, TooFewRegistersAreTheOptionsFault) {
  v1::CompileOptions one;
  one.set_max_registers(1);
  const v1::WorkerResult result = CompileWith(Row(64), "hip:gfx942", one);
  EXPECT_NE(FirstError(result).find("max_registers is 1, too few"), std::string::npos) << FirstError(result);
  EXPECT_EQ(result.diagnostics(0).kind(), v1::Diagnostic::INVALID);
}

TEST(Cost, MoreLocalMemoryThanThereIsIsTheProgramsFault) {
  const v1::WorkerResult result = CompileText(LocalFill(64, 32, 32), "hip:gfx942");
  EXPECT_NE(FirstError(result).find("131056 for a thread"), std::string::npos) << FirstError(result);
  EXPECT_EQ(result.diagnostics(0).kind(), v1::Diagnostic::INVALID);
}

TEST(Cost, WhoWritesALongKernelHearsThatItIsSlow) {
  EXPECT_EQ(CompileText(Stores(100), "cuda:sm_90a").diagnostics_size(), 0);
  const v1::WorkerResult result = CompileText(Stores(8000), "cuda:sm_90a");
  ASSERT_EQ(result.diagnostics_size(), 1);
  EXPECT_NE(result.diagnostics(0).message().find("only in part"), std::string::npos) << result.diagnostics(0).message();
}

// A thread adds up `terms` elements of shared memory; in a loop, or before a barrier that its sum is used behind.
std::string Sum(int terms, bool in_loop) {
  std::string sum = "    store %l[0] = 0.0\n";
  for (int i = 0; i < terms; ++i) sum += fmt::format("    store %l[0] = %l[0] + %s[%t + {}]\n", i);
  return "kiln 1\nfunc @f(%X: global f32[4096], %Y: global f32[128]) outputs(1) thread(%t) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n"
         "    %s = alloc shared f32[4096]\n    %l = alloc local f32[1]\n    copy %X[0; 4096] -> %s[0; 4096]\n" +
         (in_loop ? "    for serial %r in 100 {\n" + sum + "    }\n" : sum + "    barrier\n") +
         "    if %t < 64 {\n      store %Y[%t] = %l[0]\n    }\n  }\n}\n";
}

// LLVM would load all terms in front of the loop or the barrier, and add them up behind it.
TEST(Cost, SumsDoNotKeepTheirTermsAlive) {
  for (const bool in_loop : {false, true}) {
    const v1::WorkerResult result = CompileText(Sum(2000, in_loop), "cuda:sm_90a");
    ASSERT_TRUE(result.has_artifact()) << FirstError(result);
    const std::string& code = result.artifact().code();
    EXPECT_LT(code.find("add.f32"), code.size() / 10) << "the first addition comes late";
    EXPECT_EQ(result.diagnostics_size(), 0);
  }
  const v1::WorkerResult amd = CompileText(Sum(2000, true), "hip:gfx1100");
  ASSERT_EQ(amd.diagnostics_size(), 1);
  EXPECT_NE(amd.diagnostics(0).message().find("only in part"), std::string::npos) << amd.diagnostics(0).message();
}

// Products that one after the other add to the same sums.
std::string Products(int n) {
  std::string text =
      "kiln 1\nfunc @f(%A: global f16[64, 64], %B: global f16[64, 64]) outputs(1) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n"
      "    %h = alloc shared f16[64, 64]\n    %f = alloc fragment f32[64, 64]\n    copy %A[0, 0; 64, 64] -> %h[0, 0; 64, 64]\n"
      "    fill %f[0, 0; 64, 64] = 0.0\n";
  for (int i = 0; i < n; ++i) {
    text += "    gemm %h[0, 0; 64, 64], %h[0, 0; 64, 64] -> %f[0, 0; 64, 64]\n    copy %f[0, 0; 64, 64] -> %h[0, 0; 64, 64]\n";
  }
  return text + "    copy %f[0, 0; 64, 64] -> %B[0, 0; 64, 64]\n  }\n}\n";
}

// The names of the first registers that the products of `code` add to.
std::set<std::string> Accumulators(const std::string& code) {
  std::set<std::string> names;
  for (size_t at = code.find("wgmma.mma_async"); at != std::string::npos; at = code.find("wgmma.mma_async", at + 1)) {
    const size_t open = code.find('{', at);
    names.insert(code.substr(open, code.find(',', open) - open));
  }
  return names;
}

// ptxas takes time with the cube of the products that add to one register.
TEST(Cost, ManyProductsDoNotAddToTheSameRegisters) {
  const v1::WorkerResult few = CompileText(Products(8), "cuda:sm_90a"), many = CompileText(Products(60), "cuda:sm_90a");
  ASSERT_TRUE(few.has_artifact() && many.has_artifact()) << FirstError(few) << FirstError(many);
  EXPECT_EQ(Accumulators(few.artifact().code()).size(), 1u) << "code that takes no time stays as it is";
  EXPECT_EQ(Accumulators(many.artifact().code()).size(), 60u);
}

TEST(Cost, ValuesThatCannotFitAreRefused) {
  std::string text =
      "kiln 1\nfunc @f(%X: global f32[1048576], %Y: global f32[1048576]) outputs(1) thread(%t) {\n  kernel @k grid(64) threads 128 blocks(%b) {\n";
  for (int i = 0; i < 1000; ++i) text += fmt::format("    let %x{} = %X[%b * 4096 + {}]\n", i, i);
  text += "    barrier\n";
  for (int i = 0; i < 1000; ++i) text += fmt::format("    store %Y[%t * 1000 + {}] = %x{} * %x{}\n", i, 999 - i, i);
  text += "  }\n}\n";
  const v1::WorkerResult spills = CompileText(text, "cuda:sm_90a");
  ASSERT_EQ(spills.diagnostics_size(), 1);
  EXPECT_NE(spills.diagnostics(0).message().find("registers at a time; what does not fit is spilled"), std::string::npos)
      << spills.diagnostics(0).message();
  v1::CompileOptions less;
  less.set_max_fragment_registers(200);
  for (const char* target : {"cuda:sm_90a", "hip:gfx942"}) {
    const v1::WorkerResult refused = CompileWith(text, target, less);
    EXPECT_FALSE(refused.has_artifact());
    EXPECT_NE(FirstError(refused).find("4 times max_fragment_registers is 800"), std::string::npos) << FirstError(refused);
  }
}

// All registers of a row are alive from its load to its store: LLVM's allocator would take minutes to choose which of them to spill.
TEST(Cost, LongCodeThatIsCrowdedThroughoutIsNotOptimizedForAmd) {
  const std::string text = R"(kiln 1
func @f(%X: global f32[128, 600], %Y: global f32[128, 600]) outputs(1) {
  kernel @k grid(1) threads 128 blocks(%b) {
    %t = alloc fragment f32[128, 600]
    %m = alloc fragment f32[128]
    copy %X[0, 0; 128, 600] -> %t[0, 0; 128, 600]
    reduce max %t[0, 0; 128, 600] -> %m[0; 128] dim 1
    for parallel %i, %j in 128, 600 {
      store %t[%i, %j] = exp(%t[%i, %j] - %m[%i])
    }
    copy %t[0, 0; 128, 600] -> %Y[0, 0; 128, 600]
  }
}
)";
  for (const char* target : {"hip:gfx1100", "hip:gfx942"}) {
    const v1::WorkerResult result = CompileText(text, target);
    ASSERT_TRUE(result.has_artifact()) << FirstError(result);
    const auto lowered = std::ranges::count_if(result.timings(), [](const v1::Timing& timing) { return timing.stage() == "lower"; });
    EXPECT_EQ(lowered, 2) << target << ": what was made without moving code is kept";
    ASSERT_EQ(result.diagnostics_size(), 1) << target;
    EXPECT_NE(result.diagnostics(0).message().find("only in part"), std::string::npos) << result.diagnostics(0).message();
  }
}

// Each of few threads adds up rows of shared memory, whose elements it loads first: fewer are alive than spill at once, but they are for long.
TEST(Cost, HowCrowdedAmdsCodeMayBeIsTheOptionsToSay) {
  const auto rows = [](int n) {
    return fmt::format(R"(kiln 1
func @f(%Y: global u8[{0}]) outputs(0) {{
  kernel @k grid(1) threads 7 blocks(%b) {{
    %s = alloc shared u8[{0}, {0}]
    %r = alloc shared u8[1, {0}]
    fill %s[0, 0; {0}, {0}] = 1:u8
    reduce sum %s[0, 0; {0}, {0}] -> %r[0, 0; 1, {0}] dim 0
    copy %r[0, 0; 1, {0}] -> %Y[0; {0}]
  }}
}}
)",
                       n);
  };
  const v1::WorkerResult crowded = CompileText(rows(63), "hip:gfx1201");
  ASSERT_EQ(crowded.diagnostics_size(), 1) << FirstError(crowded);
  EXPECT_NE(crowded.diagnostics(0).message().find("max_crowding is 64000"), std::string::npos) << crowded.diagnostics(0).message();
  EXPECT_EQ(CompileText(rows(49), "hip:gfx1201").diagnostics_size(), 0);
  v1::CompileOptions less;
  less.set_max_crowding(1);
  const v1::WorkerResult refused = CompileWith(rows(49), "hip:gfx1201", less);
  ASSERT_EQ(refused.diagnostics_size(), 1) << FirstError(refused);
  EXPECT_NE(refused.diagnostics(0).message().find("max_crowding is 1"), std::string::npos) << refused.diagnostics(0).message();
}

// Rows overlap, so that an address is computed once and used again far below, and each use chooses between it and one that is inside: LLVM's
// allocator would take minutes to choose which addresses to spill.
TEST(Cost, AddressesThatAreChosenAmongOthersTakeRegisters) {
  v1::CompileOptions options;
  options.set_max_unrolled(1);
  const v1::WorkerResult result = CompileWith(R"(kiln 1
func @f(%X: global bf16[512, 3, 65536, 17, 16] strides(1, 64, 8, 100, 1)) outputs(0) {
  kernel @k grid(1000) threads 1 blocks(%b) {
    copy %X[floormod(%b, 505), 0, 0, %b * 9, 0; 8, 3, 8, 9, 8] -> %X[0, 0, %b + 10138, 2, floormod(%b, 9); 8, 3, 8, 9, 8]
  }
}
)",
                                              "hip:gfx1201", options);
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  ASSERT_EQ(result.diagnostics_size(), 1);
  EXPECT_TRUE(result.diagnostics(0).message().contains("registers at a time; what does not fit is spilled")) << result.diagnostics(0).message();
}

// Fewer addresses are alive in one block than there are registers, but each of them takes two.
TEST(Cost, HalvesOfAddressesCrowdAmdsRegisters) {
  v1::CompileOptions options;
  options.set_max_unrolled(1);
  const v1::WorkerResult result = CompileWith(R"(kiln 1
func @f[%n](%X: global u64[3, 4096, 2, 17], %Y: global u8[%n], %Z: global u8[17]) outputs(2) {
  kernel @k grid(2, 8) threads 1 blocks(%b, %c) {
    %s = alloc shared u8[3, 5, 12, 17]
    copy %X[%n * 3, %b * 5, %c * 12, 0; 3, 5, 12, 17] -> %s[0, 0, 0, 0; 3, 5, 12, 17]
    copy %s[0, 0, 0, 0; 1, 1, 1, 17] -> %Z[0; 17]
  }
}
)",
                                              "hip:gfx90a", options);
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  ASSERT_EQ(result.diagnostics_size(), 1);
  EXPECT_TRUE(result.diagnostics(0).message().contains("max_crowding is 64000")) << result.diagnostics(0).message();
}

// Only some threads store the results: LLVM would move all of the work to the store, and keep the 1,024 values that it reads until then.
TEST(Cost, WorkDoesNotMoveToWhereItKeepsMoreAliveThanFits) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%Y: global i8[512, 64]) outputs(0) {
  kernel @k grid(4) threads 192 blocks(%b) {
    %p = alloc shared u8[4, 31, 32]
    %q = alloc shared u8[4, 1, 32]
    reduce max %p[0, 0, 0; 4, 31, 32] -> %q[0, 0, 0; 4, 1, 32] dim 1
    copy %q[0, 0, 0; 4, 1, 32] -> %Y[0, 0; 4, 32]
  }
}
)",
                                              "hip:gfx942");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_EQ(result.artifact().report().kernels(0).spill_bytes(), 0u);
  EXPECT_EQ(result.diagnostics_size(), 0);
}

std::string SetsArray(int conditions) {
  std::string text =
      "kiln 1\nfunc @f(%X: global f32[4096], %Y: global f32[128]) outputs(1) thread(%t) {\n  kernel @k grid(64) threads 128 blocks(%b) {\n"
      "    %l = alloc local f32[4096]\n    fill %l[37; 64] = 0.0\n";
  for (int i = 0; i < conditions; ++i) text += fmt::format("    if %X[{}] < 1.0 {{\n      store %l[{}] = {}.0\n    }}\n", i, i * 37 % 4096, i);
  return text + "    store %Y[%t] = %l[37] + %l[74]\n  }\n}\n";
}

// To make registers of an array, LLVM looks through all blocks for each element.
TEST(Cost, ArraysOfLongKernelsStayInMemory) {
  const v1::WorkerResult registers = CompileText(SetsArray(50), "cuda:sm_90a"), memory = CompileText(SetsArray(2000), "cuda:sm_90a");
  EXPECT_EQ(Count(registers, ".local"), 0u);
  EXPECT_GT(Count(memory, ".local"), 0u);
  ASSERT_EQ(memory.diagnostics_size(), 1);
  EXPECT_NE(memory.diagnostics(0).message().find("only in part"), std::string::npos) << memory.diagnostics(0).message();
}

// It reads elements that it has not written, of which LLVM's SDWA pass makes an instruction that gfx9 does not have.
TEST(Cost, WhatAmdsBackendFailsToOptimizeIsMadeWithout) {
  const v1::WorkerResult result = CompileText(R"(kiln 1
func @f(%Y: global bf16[32], %a: f16) outputs(0) {
  kernel @k grid(7) threads 64 blocks(%b) {
    for parallel %i in 16 {
      for vectorized %j in 7 {
        for vectorized %k in 2 {
          %l = alloc local f16[5]
          store %l[%k + 3] = fma(f16(%b), %a, 0.0:f16)
          %m = alloc local f16[3]
          if %l[floormod(%i, 5)] < %a {
            store %m[floormod(%b, 3)] = max(sin(%l[floormod(%i, 5)]), %l[3])
          }
        }
      }
      store %Y[%i] = bf16(%i)
    }
  }
}
)",
                                              "hip:gfx942");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  ASSERT_EQ(result.diagnostics_size(), 1);
  EXPECT_NE(result.diagnostics(0).message().find("without its optimizing backend"), std::string::npos) << result.diagnostics(0).message();
}

// Each element has a branch, all of them on whether the thread has an iteration. SimplifyCFG would go through all of the code for each.
TEST(Cost, BranchesOnOneConditionStayApart) {
  std::string text =
      "kiln 1\nfunc @f(%X: global f32[4096], %Y: global f32[262144]) outputs(1) {\n  kernel @k grid(1) threads 128 blocks(%b) {\n"
      "    for parallel %i in 64 {\n";
  for (int i = 0; i < 3000; ++i) text += fmt::format("      store %Y[%i + {}] = %X[%i + {}]\n", i % 500 * 64, i % 500);
  const v1::WorkerResult result = CompileText(text + "    }\n  }\n}\n", "cuda:sm_90a");
  ASSERT_TRUE(result.has_artifact()) << FirstError(result);
  EXPECT_GT(Count(result, "setp."), 1000u);
}

TEST(Cost, LongKernelsTakeTimeInProportion) {
  for (const char* target : {"cuda:sm_90a", "emu:sm_90a"}) {
    const Growth growth = MeasureGrowth(600, [&](int statements) { return Seconds(Stores(statements), target); });
    EXPECT_LT(growth.ratio(), kBar) << target << ": " << growth.few << " s, then " << growth.many << " s";
    RecordProperty(target, fmt::format("{}", growth.ratio()));
  }
}

}  // namespace
}  // namespace kiln::compiler
