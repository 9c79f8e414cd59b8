// SPDX-License-Identifier: Apache-2.0
//
// What the first passes warn of.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/passes.h"
#include "ir/text/parse.h"

namespace kiln::compiler {
namespace {

// The messages of the passes up to `last`, none of which is an error.
std::vector<std::string> Warnings(const std::string& text, std::string_view last, std::string_view target = "cuda:sm_80") {
  ir::Diagnostics parsing, diagnostics;
  auto module = ir::Parse(text, parsing);
  if (!module) throw std::invalid_argument(text + ": " + parsing.all()[0].message);
  const Context context{*target::Find(target), {}};
  for (const Pass& pass : Passes()) {
    if (!pass.run(*module, context, diagnostics) || pass.name == last) break;
  }
  EXPECT_EQ(diagnostics.errors(), 0u) << text;
  std::vector<std::string> messages;
  for (const ir::Diagnostic& found : diagnostics.all()) messages.push_back(found.message);
  return messages;
}

// Sums and products of the index alone count: what wraps below a remainder is meant.
TEST(Bounds, WarnsOfIndicesOfTensorsThatOverflow) {
  const auto warnings = [](const std::string& statement) {
    std::string text = "kiln 1\nfunc @f[%n](%A: global i8[8589934592:i64], %C: global i8[%n]) thread(%t) {\n";
    text += "  kernel @k grid(1048576) threads 64 blocks(%b) {\n" + statement + "\n  }\n}\n";
    std::string texts;
    for (const std::string& message : Warnings(text, "bounds")) texts += message + "\n";
    return texts;
  };
  const std::string told = "index 8589926400 of dimension 0 of %A, where b = 1048575, is no number of i32: which element it names is not specified\n";
  EXPECT_EQ(warnings("%s = alloc shared i8[8192]\ncopy %A[%b * 8192; 8192] -> %s[0; 8192]"), told);
  EXPECT_EQ(warnings("if %b > 3 { store %A[%b * 8192] = 1:i8 }"), told);
  EXPECT_NE(warnings("store %A[0] = %C[%b * 8192 + %t]"), "");
  EXPECT_NE(warnings("for serial %i in 4 { store %A[%b - %i * 1073741824] = 1:i8 }"), "");
  for (const std::string statement :
       {"for parallel %i in 64 { store %A[i64(%b) * 8192:i64 + i64(%i)] = 1:i8 }", "store %A[%b * 2047 + %t] = 1:i8", "store %A[%b * %n] = 1:i8",
        "store %A[floormod(%b * 8192 + %t, 64)] = 2:i8", "if %b < 100 { store %A[%b * 8192] = 1:i8 }", "store %A[%b - %t] = 1:i8"}) {
    EXPECT_EQ(warnings(statement), "") << statement;
  }
}

// T.Parallel in front of single threads: TileLang lets each of them run all iterations that store to an array of its own.
TEST(Together, WarnsOfOwnArraysThatParallelLoopsSetAndThreadsRead) {
  const auto warnings = [](const std::string& statements) {
    std::string text = "kiln 1\nfunc @f(%A: global f32[64], %C: global f32[64]) thread(%t) {\n  kernel @k grid(1) threads 64 blocks(%b) {\n";
    text += "%l = alloc local f32[8]\n" + statements + "\n  }\n}\n";
    return std::ranges::count_if(Warnings(text, "together"),
                                 [](const std::string& message) { return message.contains("an array of each thread's own"); });
  };
  const std::string set = "for parallel %i in 8 { store %l[%i] = %A[%i] }\n";
  EXPECT_EQ(warnings(set + "store %C[%t] = %l[floormod(%t, 8)]"), 1);
  EXPECT_EQ(warnings(set + "for serial %j in 8 { if %l[%j] > 0.0 { store %C[%j * 8] = 1.0 } }"), 1);
  EXPECT_EQ(warnings("for parallel %i in 8 { let %n = %i + 0 store %l[7 - %n] = %A[%i] store %C[%i] = %l[7 - %n] }\nstore %C[%t] = %l[3]"), 1);
  EXPECT_EQ(warnings(set + "for parallel %j in 8 { store %C[%j] = %l[%j] }"), 0);
  EXPECT_EQ(warnings("for parallel %i in 8 { store %l[0] = %A[%i] store %C[%i] = %l[0] }\nstore %l[0] = 1.0\nstore %C[%t] = %l[0]"), 0);
  EXPECT_EQ(warnings("for unroll %i in 8 { store %l[%i] = %A[%i] }\nstore %C[%t] = %l[floormod(%t, 8)]"), 0);
  const std::string read = "store %C[%t] = %l[floormod(%t, 8)]";
  EXPECT_EQ(warnings("if %t < 1 {\n" + set + "for serial %j in 8 { store %C[%j] = %l[7 - %j] }\n}"), 0) << "one thread runs all iterations";
  EXPECT_EQ(warnings("if %t < 2 {\n" + set + "for serial %j in 8 { store %C[%j] = %l[7 - %j] }\n}"), 1);
  EXPECT_EQ(warnings(set + "for serial %k in 8 { store %l[%k] = %A[%k] }\n" + read), 0);
  EXPECT_EQ(warnings(set + "fill %l[0; 8] = 0.0\n" + read), 0);
  EXPECT_EQ(warnings("fill %l[0; 8] = 0.0\n" + set + read), 1);
  EXPECT_EQ(warnings("if %A[0] > 0.0 {\n" + set + "} else { fill %l[0; 8] = 0.0 }\n" + read), 1);
  EXPECT_EQ(warnings(set + "if %A[0] > 0.0 { fill %l[0; 8] = 0.0 }\n" + read), 0);
  EXPECT_EQ(warnings("for parallel %i in 64 { store %l[floordiv(%i, 64)] = %A[%i] }\nstore %C[%t] = %l[0]"), 0) << "each thread sets the element";
  EXPECT_EQ(warnings("for parallel %i in 512 { store %l[floordiv(%i, 64)] = %A[floormod(%i, 64)] }\n" + read), 0);
}

// Where the program's own barriers say what overlaps, a loop keeps its order.
TEST(Pipeline, WarnsOfStagesThatItLeavesOut) {
  const auto warnings = [](int stages, const std::string& signal) {
    const std::string text = fmt::format(R"(kiln 1
func @f(%A: global f32[8, 128], %C: global f32[128]) thread(%t) {{
  kernel @k grid(1) threads 128 blocks(%b) {{
    %s = alloc shared f32[128]
    %c = alloc fragment f32[128]
    {}
    fill %c[0; 128] = 0.0
    for pipelined %k in 8 stages {} {{
      copy %A[%k, 0; 1, 128] -> %s[0; 128]
      for parallel %i in 128 {{ store %c[%i] = %c[%i] + %s[%i] }}
    }}
    copy %c[0; 128] -> %C[0; 128]
  }}
}}
)",
                                         signal, stages);
    return Warnings(text, "pipeline", "cuda:sm_90a");
  };
  const std::string barrier = "%done = alloc barrier i64[1] arrivals(128)\narrive %done[0]";
  EXPECT_EQ(warnings(3, ""), std::vector<std::string>());
  EXPECT_EQ(warnings(1, barrier), std::vector<std::string>());
  EXPECT_EQ(warnings(3, barrier), std::vector<std::string>{"this loop's 3 stages are left out: the kernel's own barriers say what overlaps"});
}

}  // namespace
}  // namespace kiln::compiler
