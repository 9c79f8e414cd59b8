// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/sass/early_reads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "compiler/llvm/emit.h"
#include "compiler/llvm/sass/sass_test_code.h"
#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Bits Lds(uint64_t d, uint64_t words, uint64_t scoreboard) { return Bits(0x984).D(d).A(200).Width(words).On(scoreboard); }
Bits Ldsm(uint64_t d, uint64_t log2, uint64_t scoreboard) { return Bits(0x83b).D(d).A(200).Matrices(log2).On(scoreboard); }
Bits Sts(uint64_t b, uint64_t words) { return Bits(0x988).A(201).B(b).Width(words); }
Bits Add(uint64_t d, uint64_t a, uint64_t b) { return Bits(0x221).D(d).A(a).B(b); }
// What is found in `code`, or nothing.
std::string Found(const std::vector<Bits>& code, const char* arch = "sm_90a") {
  const auto early = FindEarlyRead(Cubin(code), arch);
  return early ? early->Text() : "";
}

// A loop that stores four registers under a condition, then loads them.
std::vector<Bits> Loop(bool hopper = true) { return {Branch(1, hopper).If(0), Sts(4, 4), Lds(4, 4, 0), Branch(-4, hopper).If(1), Exit()}; }
constexpr const char* kOfLoop = "kernel reads R4 at 0x10, which a load before it still writes";

TEST(EarlyReads, AcrossTheBackEdgeOfALoop) {
  EXPECT_EQ(Found(Loop()), kOfLoop);
  for (const char* arch : {"sm_80", "sm_86", "sm_89"}) EXPECT_EQ(Found(Loop(false), arch), kOfLoop);
  // Whoever of them waits, only for the right scoreboard.
  for (size_t i : {0, 1, 3}) {
    std::vector<Bits> code = Loop();
    code[i].Waits(0);
    EXPECT_EQ(Found(code), "") << i;
    code = Loop();
    code[i].Waits(1);
    EXPECT_EQ(Found(code), kOfLoop) << i;
  }
}

// The loop begins with a barrier of some threads. Threads that have parted run other code, which waits for the loads and returns behind the
// barrier; the straight way does not wait.
TEST(EarlyReads, BehindABarrierOfSomeThreads) {
  const auto loop = [](bool hopper) {
    return std::vector<Bits>{Branch(4, hopper).IfParted(), Sts(4, 4),         Lds(4, 4, 0), Branch(-4, hopper).If(1), Exit(),
                             Bits(0x348).Waits(0),         Branch(-6, hopper)};
  };
  for (const char* arch : {"sm_80", "sm_90a"}) EXPECT_EQ(Found(loop(arch == std::string("sm_90a")), arch), kOfLoop);
  std::vector<Bits> code = loop(true);
  code[0].Waits(0);
  EXPECT_EQ(Found(code), "");
  code = loop(true);
  code[0] = Branch(4);
  EXPECT_EQ(Found(code), "") << "the straight way is never taken";
}

TEST(EarlyReads, InAStraightLine) {
  EXPECT_EQ(Found({Lds(4, 4, 2), Add(1, 2, 7), Exit()}), "kernel reads R7 at 0x10, which a load before it still writes");
  EXPECT_EQ(Found({Lds(4, 4, 2), Add(1, 7, 2), Exit()}), "kernel reads R7 at 0x10, which a load before it still writes");
  EXPECT_EQ(Found({Lds(4, 4, 2), Add(1, 3, 8), Exit()}), "");
  EXPECT_EQ(Found({Lds(4, 4, 2), Add(1, 2, 7).Waits(2), Exit()}), "");
  EXPECT_EQ(Found({Lds(4, 4, 2), Add(1, 2, 3).Waits(2), Add(1, 2, 7), Exit()}), "");
  EXPECT_EQ(Found({Lds(4, 1, 2), Add(1, 2, 5), Exit()}), "");
  EXPECT_EQ(Found({Lds(2, 2, 2), Sts(0, 4), Exit()}), "kernel reads R2 at 0x10, which a load before it still writes");
  EXPECT_EQ(Found({Lds(200, 1, 2), Lds(4, 1, 3), Exit()}), "kernel reads R200 at 0x10, which a load before it still writes") << "an address";
  EXPECT_EQ(Found({Lds(255, 4, 2), Sts(255, 1), Exit()}), "") << "no register";
  EXPECT_EQ(Found({Ldsm(4, 1, 2), Add(1, 2, 5), Exit()}), "kernel reads R5 at 0x10, which a load before it still writes");
  EXPECT_EQ(Found({Ldsm(4, 1, 2), Add(1, 2, 6), Exit()}), "");
}

TEST(EarlyReads, OfConstantsAreNone) {
  EXPECT_EQ(Found({Lds(7, 1, 2), Bits(0x821).D(1).A(2).B(7), Exit()}), "") << "FADD of a constant";
  EXPECT_EQ(Found({Lds(7, 1, 2), Bits(0x823).D(1).A(2).B(7).C(3), Exit()}), "") << "FFMA of a constant";
  EXPECT_NE(Found({Lds(7, 1, 2), Bits(0x823).D(1).A(2).B(3).C(7), Exit()}), "");
}

TEST(EarlyReads, ASecondLoadReplacesTheFirst) {
  EXPECT_EQ(Found({Lds(4, 1, 0), Lds(4, 1, 1), Add(1, 2, 4).Waits(1), Exit()}), "");
  EXPECT_NE(Found({Lds(4, 1, 0), Lds(4, 1, 1), Add(1, 2, 4).Waits(0), Exit()}), "");
  EXPECT_EQ(Found({Lds(4, 1, 0), Lds(4, 1, 7), Add(1, 2, 4), Exit()}), "") << "counted where is not known";
}

TEST(EarlyReads, UnderConditions) {
  EXPECT_EQ(Found({Lds(4, 1, 0).If(8 + 3), Add(1, 2, 4).If(3), Exit()}), "") << "one of both is executed";
  EXPECT_EQ(Found({Lds(4, 1, 0), Lds(4, 1, 1).If(3), Add(1, 2, 4).If(3).Waits(1), Exit()}), "");
  EXPECT_NE(Found({Lds(4, 1, 0), Add(1, 2, 4).If(1), Exit()}), "");
  EXPECT_NE(Found({Lds(4, 1, 0), Exit().If(1), Add(1, 2, 4), Exit()}), "");
  EXPECT_EQ(Found({Lds(4, 1, 0), Exit(), Add(1, 2, 4), Exit()}), "") << "never executed after the load";
  EXPECT_EQ(Found({Lds(4, 1, 0), Branch(1), Add(1, 2, 4), Exit()}), "");
  EXPECT_NE(Found({Lds(4, 1, 0), Branch(1).If(1), Bits(0x918), Add(1, 2, 4), Exit()}), "");
}

TEST(EarlyReads, CallsAreTakenToWait) {
  for (uint64_t opcode : {0x944, 0x343, 0x950, 0x949, 0x348}) {
    EXPECT_EQ(Found({Lds(4, 1, 0), Bits(opcode), Add(1, 2, 4), Exit()}), "") << opcode;
  }
  EXPECT_NE(Found({Lds(4, 1, 0), Bits(0x941), Add(1, 2, 4), Exit()}), "") << "BSYNC is none";
  EXPECT_NE(Found({Lds(4, 1, 0), Bits(0x918), Add(1, 2, 4), Exit()}), "") << "NOP is none";
}

TEST(EarlyReads, DepbarWaits) {
  Bits depbar(0x91a);
  depbar.low |= 3ULL << 44;
  EXPECT_EQ(Found({Lds(4, 1, 3), depbar, Add(1, 2, 4), Exit()}), "");
  EXPECT_NE(Found({Lds(4, 1, 2), depbar, Add(1, 2, 4), Exit()}), "");
}

TEST(EarlyReads, OfWhatIsNotKnownNothingIsSaid) {
  EXPECT_EQ(Found(Loop(), "sm_75"), "");
  EXPECT_EQ(Found(Loop(), "sm_100a"), "");
  EXPECT_EQ(FindEarlyRead("", "sm_90a"), std::nullopt);
  EXPECT_EQ(FindEarlyRead("no ELF file", "sm_90a"), std::nullopt);
  EXPECT_EQ(Found({Lds(4, 1, 0), Bits(0x7ff).A(4).B(4).C(4), Exit()}), "") << "an unknown instruction";
  EXPECT_EQ(Found({Branch(1000), Branch(-1000), Branch(1LL << 40), Lds(4, 1, 0)}), "") << "branches to the outside";
}

TEST(EarlyReads, DamagedFiles) {
  const std::string cubin = Cubin(Loop());
  ASSERT_TRUE(FindEarlyRead(cubin, "sm_90a"));
  for (size_t bytes = 0; bytes < cubin.size(); ++bytes) {
    // With its own end, so that a reader beyond it is seen by a sanitizer.
    const std::vector<char> part(cubin.begin(), cubin.begin() + ptrdiff_t(bytes));
    EXPECT_EQ(FindEarlyRead({part.data(), part.size()}, "sm_90a"), std::nullopt) << bytes;
  }
  for (size_t at = 0; at < cubin.size(); ++at) {
    for (int value : {0, 1, 127, 128, 255}) {
      std::string damaged = cubin;
      damaged[at] = char(value);
      FindEarlyRead(damaged, "sm_90a");
    }
  }
}

TEST(EarlyReads, TimeIsProportionalToLength) {
  // Loops in one another, each of which hands a load to the next outer one.
  constexpr int kDepth = 20000;
  std::vector<Bits> code;
  for (int i = 0; i < kDepth; ++i) code.push_back(Branch(1).If(0)), code.push_back(Bits(0x918));
  for (int i = 0; i < kDepth; ++i) {
    code.push_back(Lds(uint64_t(i % 100), 1, uint64_t(i % 6)));
    code.push_back(Branch(-int64_t(code.size()) + kDepth - i).If(1));
  }
  code.push_back(Exit());
  EXPECT_EQ(Found(code), "");
}

// ptxas as it would be with the fault at all levels from `wrong` on.
class FaultyPtxas {
 public:
  explicit FaultyPtxas(int wrong) {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    std::ofstream(folder_ + "/wrong") << Cubin(Loop());
    std::vector<Bits> loop = Loop();
    loop[3].Waits(0);
    std::ofstream(folder_ + "/right") << Cubin(loop);
    std::ofstream(Path()) << "#!/bin/sh\n[ ${2#-O} -ge " << wrong << " ] && made=wrong || made=right\nexec /bin/cat " << folder_ << "/$made > $5\n";
    ::chmod(Path().c_str(), 0700);
  }
  ~FaultyPtxas() {
    for (const char* name : {"/wrong", "/right", "/ptxas"}) ::unlink((folder_ + name).c_str());
    ::rmdir(folder_.c_str());
  }
  std::string Path() const { return folder_ + "/ptxas"; }

 private:
  std::string folder_ = ::testing::TempDir() + "ptxas-XXXXXX";
};

const target::Target& Hopper() { return **target::Find("cuda:sm_90a"); }

TEST(EarlyReads, AreMadeAgainWithLessOptimization) {
  for (const int wrong : {4, 3, 2, 1}) {
    const FaultyPtxas ptxas(wrong);
    const auto made = RunPtxas(ptxas.Path(), Hopper(), "");
    ASSERT_TRUE(made) << made.error().text;
    EXPECT_EQ(FindEarlyRead(made->cubin, "sm_90a"), std::nullopt);
    if (wrong == 4) {
      EXPECT_THAT(made->warnings, IsEmpty());
      continue;
    }
    EXPECT_THAT(made->warnings, ElementsAre(HasSubstr(std::string("-O3: ") + kOfLoop)));
    EXPECT_THAT(made->warnings[0], HasSubstr("code was wrong")) << "tests/ptxas looks for these words";
    EXPECT_THAT(made->warnings[0], HasSubstr(wrong == 1 ? "what -O0 makes" : "what -O1 makes"));
    EXPECT_EQ(made->warnings[0].find("; -O1: ") != std::string::npos, wrong == 1);
  }
}

TEST(EarlyReads, AreNeverServed) {
  const FaultyPtxas ptxas(0);
  for (const bool optimized : {true, false}) {
    const auto made = RunPtxas(ptxas.Path(), Hopper(), "", optimized);
    ASSERT_FALSE(made);
    EXPECT_TRUE(made.error().from_outside) << "the program is not at fault";
    EXPECT_THAT(made.error().text, HasSubstr(std::string("-O0: ") + kOfLoop));
  }
}

TEST(EarlyReads, OfThisPtxas) {
  const std::string ptxas = FindPtxas();
  if (ptxas.empty()) GTEST_SKIP() << "NO PTXAS ON THIS MACHINE: nothing is known of its fault";
  std::ostringstream ptx;
  ptx << std::ifstream("compiler/llvm/sass/early_reads_test.ptx").rdbuf();
  ASSERT_THAT(ptx.str(), HasSubstr("ld.shared"));
  const auto made = RunPtxas(ptxas, Hopper(), ptx.str());
  ASSERT_TRUE(made) << made.error().text;
  EXPECT_EQ(FindEarlyRead(made->cubin, "sm_90a"), std::nullopt);
  if (made->warnings.empty()) GTEST_SKIP() << "THIS PTXAS HAS NO SUCH FAULT: the check is not tried with real code";
  EXPECT_THAT(made->warnings, ElementsAre(HasSubstr("kernel reads R")));
}

}  // namespace
}  // namespace kiln::llvm_ir
