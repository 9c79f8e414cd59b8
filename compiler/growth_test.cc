// SPDX-License-Identifier: Apache-2.0
//
// What the passes take for programs of thousands of statements: in proportion to their number, or little more.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <functional>
#include <ostream>
#include <string>
#include <string_view>
#include <variant>

#include "compiler/growth_testing.h"
#include "compiler/passes.h"
#include "ir/text/parse.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

struct Form {
  const char* name;
  std::function<std::string(int)> write;        // the statement of a number
  std::function<std::string(int)> before = {};  // what so many statements use
  std::function<std::string(int)> after = {};
  int few = 1000;  // statements
};

std::string TextOf(const Form& form, int statements) {
  std::string text = fmt::format(R"(kiln 1
func @f(%X: global f32[1048576], %Y: global f32[1048576], %P: global f32[1048576] may_alias, %Q: global f32[1048576] may_alias, %N: global i32[512]) outputs(1) thread(%t) {{
  kernel @k grid(64) threads 128 blocks(%b) {{
{})",
                                 form.before ? form.before(statements) : "");
  for (int i = 0; i < statements; ++i) text += form.write(i);
  return text + (form.after ? form.after(statements) : "") + "  }\n}\n";
}

void PrintTo(const Form& form, std::ostream* out) { *out << form.name; }

std::function<std::string(int)> Always(const char* text) {
  return [text](int) { return text; };
}

// One statement in two lines, which stand alternately.
std::function<std::string(int)> InTurn(std::function<std::string(int)> even, std::function<std::string(int)> odd) {
  return [=](int i) { return i % 2 == 0 ? even(i) : odd(i); };
}

std::function<std::string(int)> FromTheNext() {
  return [](int i) { return fmt::format("    store %a{}[%k] = %a{}[%k] + 1.0\n", i / 4, i / 4 + 1); };
}
std::function<std::string(int)> ArraysInALoop(const char* space) {
  return [space](int n) {
    std::string text;
    for (int i = 0; i <= n / 4; ++i) text += fmt::format("    %a{} = alloc {} f32[2]\n", i, space);
    return text + fmt::format("    store %a{}[0] = %X[%t]\n    for serial %k in 2 {{\n", n / 4);
  };
}

const Form kForms[] = {
    {"stores", [](int i) { return fmt::format("    store %Y[%b * 4096 + {}] = %X[%b * 4096 + {}]\n", i % 4096, i * 7 % 4096); }},
    {"copies",
     InTurn([](int i) { return fmt::format("    copy %X[{}; 64] -> %s[{}; 64]\n", i % 16000 * 64, i % 64 * 64); },
            [](int i) { return fmt::format("    copy %s[{}; 64] -> %Y[{}; 64]\n", i % 64 * 64, i % 16000 * 64); }),
     Always("    %s = alloc shared f32[4096]\n")},
    {"a chain of lets",
     [](int i) { return fmt::format("    let %x{} = {} + %X[{}]\n", i, i == 0 ? "0.0" : fmt::format("%x{}", i - 1), i); },
     {},
     [](int n) { return fmt::format("    store %Y[%t] = %x{}\n", n - 1); }},
    {"a chain of places",
     [](int i) { return fmt::format("    let %x{} = floormod({} * 3 + {}, 1000)\n", i, i == 0 ? "%t" : fmt::format("%x{}", i - 1), i); },
     {},
     [](int n) { return fmt::format("    store %Y[%x{}] = 1.0\n", n - 1); }},
    {"lets in use", InTurn([](int i) { return fmt::format("    let %x{} = %X[%t + {}]\n", i, i); },
                           [](int i) { return fmt::format("    store %Y[%t + {}] = %x{} + %x0\n", i % 4096 * 128, i - 1); })},
    {"conditions", InTurn([](int i) { return fmt::format("    if %t < {} {{\n", i % 127 + 1); },
                          [](int i) { return fmt::format("    store %Y[%t + {}] = 1.0\n    }}\n", i % 4096 * 128); })},
    {"lets and conditions",
     InTurn([](int i) { return fmt::format("    let %x{} = %X[%t + {}]\n", i, i); },
            [](int i) { return fmt::format("    if %X[{}] < %x{} {{\n      store %Y[%t + {}] = 1.0\n    }}\n", i, i - 1, i % 4096 * 128); })},
    {"assumptions", InTurn([](int i) { return fmt::format("    assume %b + {} < 100000\n", i); },
                           [](int i) { return fmt::format("    store %Y[%b + {}] = 1.0\n", i); })},
    {"a branch of statements that order memory",
     InTurn([](int i) { return fmt::format("      atomic add %Y[%b + {}] = 1.0 order release\n", i % 4096 * 128); },
            [](int i) { return fmt::format("      store %Y[%b + {}] = %X[%b + {}]\n", i % 4096 * 128, i); }),
     [](int n) {
       std::string text;
       for (int i = 0; i < std::min(n, 200); ++i) text += fmt::format("    store %Y[%t + {}] = 1.0\n", i * 128);
       return text + "    if %X[0] > 0.0 {\n";
     },
     Always("    }\n"), 400},
    {"elements of one loop", [](int i) { return fmt::format("    store %Y[%i + {}] = %X[%i + {}]\n", i * 64, i); },
     Always("    for parallel %i in 64 {\n"), Always("    }\n")},
    {"lets of one loop, and stores of them", [](int i) { return fmt::format("      store %Y[%i + {}] = %y{}\n", i * 64, i); },
     [](int n) {
       std::string text = "    for parallel %i in 64 {\n      let %y0 = %X[%i]\n";
       for (int i = 1; i < n; ++i) text += fmt::format("      let %y{} = %y{} * %y{} + %X[%i + {}]\n", i, i - 1, i - 1, i);
       return text;
     },
     Always("    }\n")},
    {"aliasing elements of one loop", [](int i) { return fmt::format("    store %P[%i + {}] = %X[%i + {}]\n", i * 64, i); },
     Always("    for parallel %i in 64 {\n"), Always("    }\n")},
    {"barriers in a loop",
     InTurn([](int i) { return fmt::format("    store %s[%t] = %X[%t + {}]\n", i); },
            [](int i) { return fmt::format("    store %Y[%t + {}] = %s[127 - %t]\n", i % 4096 * 128); }),
     Always("    %s = alloc shared f32[4096]\n    for serial %k in 100 {\n"), Always("    }\n")},
    {"arrays of a thread, each made from the next", FromTheNext(), ArraysInALoop("local"), Always("    }\n    store %Y[%t] = %a0[0]\n")},
    {"fragments of a thread, each made from the next", FromTheNext(), ArraysInALoop("fragment"), Always("    }\n    store %Y[%t] = %a0[0]\n"), 72},
    {"serial loops",
     InTurn([](int i) { return fmt::format("    for serial %i{} in %N[{}] {{\n", i, i % 512); },
            [](int i) { return fmt::format("      store %Y[%i{} * 128 + %t] = %X[%i{} + {}]\n    }}\n", i - 1, i - 1, i % 512); }),
     {},
     {},
     200},
    {"pipelined loops",
     InTurn([](int i) { return fmt::format("    for pipelined %i{} in 10 stages 2 {{\n      copy %X[%i{} * 1024; 1024] -> %s[0; 1024]\n", i, i); },
            [](int i) { return fmt::format("      copy %s[0; 1024] -> %Y[%i{} * 1024; 1024]\n    }}\n", i - 1); }),
     Always("    %s = alloc shared f32[1024]\n"),
     {},
     200},
    {"pipelined loops, a tile each",
     InTurn(
         [](int i) { return fmt::format("    for pipelined %i{} in 10 stages 3 {{\n      copy %X[%i{} * 1024; 1024] -> %s{}[0; 1024]\n", i, i, i); },
         [](int i) { return fmt::format("      copy %s{}[0; 1024] -> %Y[%i{} * 1024; 1024]\n    }}\n", i - 1, i - 1); }),
     [](int n) {
       std::string tiles;
       for (int i = 0; i < n; i += 2) tiles += fmt::format("    %s{} = alloc shared f32[1024]\n", i);
       return tiles;
     },
     {},
     80},
    {"tiles", InTurn([](int i) { return i % 4 == 0 ? fmt::format("    %s{} = alloc shared f32[32]\n", i) : ""; },
                     [](int i) {
                       return fmt::format("    copy %X[{}; 32] -> %s{}[0; 32]\n    copy %s{}[0; 32] -> %Y[{}; 32]\n", i, i / 4 * 4, i / 4 * 4,
                                          i % 4096 * 128);
                     })},
    {"fragments", InTurn([](int i) { return i % 4 == 0 ? fmt::format("    %f{} = alloc fragment f32[128]\n", i) : ""; },
                         [](int i) {
                           return fmt::format("    copy %X[{}; 128] -> %f{}[0; 128]\n    copy %f{}[0; 128] -> %Y[{}; 128]\n", i, i / 4 * 4, i / 4 * 4,
                                              i % 4096 * 128);
                         })},
};

double Seconds(const Form& form, int statements, const char* target) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(TextOf(form, statements), diagnostics);
  EXPECT_TRUE(module) << form.name << ": " << diagnostics.all()[0].message;
  if (!module) return 0;
  const Context context{*target::Find(target), {}};
  v1::WorkerResult result;
  const double seconds = ProcessorSeconds([&] { (void)RunPasses(*module, context, {}, {}, diagnostics, result); });
  for (const ir::Diagnostic& d : diagnostics.all()) EXPECT_EQ(d.severity, ir::Severity::kWarning) << form.name << ": " << d.message;
  return seconds;
}

// The loops write to the same elements, so threads wait before each of them, once. However many there are, no wait stays within.
TEST(LongKernels, ThreadsWaitBeforeEachLoop) {
  const Form& loops = *std::ranges::find(kForms, std::string_view("serial loops"), &Form::name);
  for (const int statements : {10, 2000}) {
    ir::Diagnostics diagnostics;
    auto module = ir::Parse(TextOf(loops, statements), diagnostics);
    ASSERT_TRUE(module);
    const Context context{*target::Find("cuda:sm_90a"), {}};
    v1::WorkerResult result;
    ASSERT_TRUE(RunPasses(*module, context, {}, {}, diagnostics, result));
    int within = 0, before = 0;
    for (const ir::Stmt& stmt : module->kernels[0].body) {
      before += std::holds_alternative<ir::Barrier>(stmt.op);
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) {
        ir::Walk(body, [&](const ir::Stmt& inner) { within += std::holds_alternative<ir::Barrier>(inner.op); });
      });
    }
    EXPECT_EQ(within, 0) << statements;
    EXPECT_GE(before, statements / 2 - 1) << statements;
  }
}

// Loops around one another. What each leaves pending takes as many iterations to find as its tile has versions.
std::string NestText(int depth) {
  std::string text = R"(kiln 1
func @f(%X: global f32[4096], %N: global i32[64]) thread(%t) {
  kernel @k grid(1) threads 128 blocks(%b) {
)";
  for (int i = 0; i < depth; ++i) text += fmt::format("    %s{} = alloc shared f32[8, 128]\n", i);
  text += "    if %X[%t] > 0.0 {\n";
  for (int i = 0; i < depth; ++i)
    text += fmt::format("    for serial %i{0} in %N[{0}] {{\n    store %s{0}[floormod(%i{0}, 8), %t] = %X[%t + {0}]\n", i);
  for (int i = 0; i < depth; ++i) text += "    }\n";
  return text + "    }\n  }\n}\n";
}

TEST(LongKernels, LoopsAroundOneAnotherDoNotMultiplyVisits) {
  for (const int depth : {3, 9}) {
    ir::Diagnostics diagnostics;
    auto module = ir::Parse(NestText(depth), diagnostics);
    ASSERT_TRUE(module) << diagnostics.all()[0].message;
    const Context context{*target::Find("cuda:sm_90a"), {}};
    v1::WorkerResult result;
    EXPECT_TRUE(RunPasses(*module, context, {}, {}, diagnostics, result)) << depth << ": " << diagnostics.all()[0].message;
    int barriers = 0;
    ir::Walk(module->kernels[0].body, [&](const ir::Stmt& inner) { barriers += std::holds_alternative<ir::Barrier>(inner.op); });
    EXPECT_EQ(barriers, 0) << "each thread writes elements of its own";
  }
}

// One store along the columns has more orders of the tile's elements looked at, and few of them in all loops.
TEST(LongKernels, OrdersOfATileAreLookedAtOnce) {
  const auto fastest = [](const char* store) {
    const Form loops{"", [](int i) { return fmt::format("    for parallel %i, %j in 64, 64 {{ store %f[%i, %j] = %f[%i, %j] * {}.0 + 1.0 }}\n", i); },
                     Always("    %f = alloc fragment f32[64, 64]\n    for parallel %i, %j in 64, 64 { store %f[%i, %j] = %X[%i * 64 + %j] }\n"),
                     Always(store)};
    double least = Seconds(loops, 80, "cuda:sm_90a");
    for (int i = 0; i < 4; ++i) least = std::min(least, Seconds(loops, 80, "cuda:sm_90a"));
    return least;
  };
  const double along = fastest("    for parallel %i, %j in 64, 64 { store %Y[%i * 64 + %j] = %f[%i, %j] }\n"),
               across = fastest("    for parallel %i, %j in 64, 64 { store %Y[%j * 64 + %i] = %f[%i, %j] }\n");
  EXPECT_LT(across, 4 * along) << along << " s, then " << across << " s";
}

class PassTime : public testing::TestWithParam<Form> {};

TEST_P(PassTime, GrowsInProportion) {
  const Growth growth = MeasureGrowth(GetParam().few, [](int statements) { return Seconds(GetParam(), statements, "cuda:sm_90a"); });
  EXPECT_LT(growth.ratio(), kBar) << growth.few << " s, then " << growth.many << " s";
  RecordProperty("few", fmt::format("{}", growth.few)), RecordProperty("many", fmt::format("{}", growth.many));
}

// One name of them is an error; of the others, the line is read for the names that it would have defined.
TEST(LongTexts, LinesThatAreWrongAreFoundInProportion) {
  const auto seconds = [](int lines) {
    std::string text = TextOf({"", Always("    store %Y[%missing] = 1.0\n")}, lines);
    return ProcessorSeconds([&] {
      ir::Diagnostics diagnostics;
      EXPECT_FALSE(ir::Parse(text, diagnostics));
      EXPECT_EQ(diagnostics.errors(), 1u);
    });
  };
  const Growth growth = MeasureGrowth(3000, seconds);
  EXPECT_LT(growth.ratio(), kBar) << growth.few << " s, then " << growth.many << " s";
}

std::string NameOf(const testing::TestParamInfo<Form>& form) {
  std::string name;
  for (const char c : std::string(form.param.name)) name += std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}
INSTANTIATE_TEST_SUITE_P(Forms, PassTime, testing::ValuesIn(kForms), NameOf);

}  // namespace
}  // namespace kiln::compiler
