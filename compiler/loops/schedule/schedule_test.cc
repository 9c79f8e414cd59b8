// SPDX-License-Identifier: Apache-2.0
//
// What the passes that reorder and divide loops ask: whether an order keeps conflicting statements in order, and where masks hold.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "compiler/analysis/dependences.h"
#include "compiler/analysis/uniform.h"
#include "compiler/loops/schedule/slot.h"
#include "ir/op.h"
#include "ir/text/parse.h"

namespace kiln::compiler {
namespace {

ir::Module Parsed(const std::string& text) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(text, diagnostics);
  EXPECT_TRUE(module) << text << diagnostics.all()[0].message;
  return *std::move(module);
}

// The first loop of the kernel that is no parallel one.
const ir::For& LoopOf(const ir::Module& module) {
  for (const ir::Stmt& stmt : module.kernels[0].body)
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) return *loop;
  throw std::logic_error("no loop");
}

// A loop of `count` statements, each of which writes one of four fragments from another.
std::string RandomBody(std::mt19937& random, int count) {
  std::string text = "kiln 1\nfunc @f(%X: global f32[64]) {\n  kernel @k grid(1) threads 64 blocks(%b) {\n";
  for (int i = 0; i < 4; ++i) text += fmt::format("    %f{} = alloc fragment f32[64]\n", i);
  text += "    for serial %k in 9 {\n";
  for (int i = 0; i < count; ++i)
    text +=
        fmt::format("      for parallel %i{} in 64 {{\n        store %f{}[%i{}] = %f{}[%i{}] + 1.0\n      }}\n", i, random() % 4, i, random() % 4, i);
  return text + "    }\n  }\n}\n";
}

// When each statement of each iteration starts and has ended, counted in steps of the slots one after the other.
struct Times {
  std::map<std::pair<int, size_t>, int> start, end;
};
Times TimesOf(const Slot& slot, std::span<const Work> works, size_t cut, int iterations) {
  Times times;
  int now = 0;
  for (int turn = 0; turn <= iterations; ++turn) {
    for (const Step& step : slot.steps) {
      const int iteration = step.stmt < cut ? turn : turn - 1;
      if (iteration < 0 || iteration >= iterations) continue;
      const std::pair at(iteration, step.stmt);
      if (!step.wait) times.start[at] = ++now;
      if (step.wait || works[step.stmt].unit == 0) times.end[at] = ++now;
    }
  }
  return times;
}

TEST(Slot, ConflictingStatementsStayInOrder) {
  std::mt19937 random(0x51075107);
  for (int round = 0; round < 200; ++round) {
    const ir::Module module = Parsed(RandomBody(random, 7));
    const Dependences dependences(module, LoopOf(module).body);
    std::vector<Work> works;
    for (size_t i = 0; i < 7; ++i)
      works.push_back(random() % 3 == 0 ? Work{.unit = double(random() % 1000 + 1)}
                                        : Work{.threads = double(random() % 1000), .at_once = random() % 5 == 0});
    for (size_t cut = 1; cut <= works.size(); ++cut) {
      const auto slot = MakeSlot(works, dependences, cut);
      ASSERT_TRUE(slot);
      const Times times = TimesOf(*slot, works, cut, 3);
      ASSERT_EQ(times.end.size(), 3 * works.size());
      for (const auto& [a, ended] : times.end)
        for (const auto& [b, started] : times.start)
          if (a < b && dependences.Conflict(a.second, b.second)) {
            EXPECT_LT(ended, started) << "round " << round << ", cut " << cut << ": " << a.second << " of iteration " << a.first << ", " << b.second
                                      << " of " << b.first;
          }
    }
  }
}

TEST(Slot, AProductRunsBesideArithmeticOfTheNextIteration) {
  // s = product; p = f(s); o = product of p
  const ir::Module module = Parsed(R"(kiln 1
func @f(%X: global f32[64]) {
  kernel @k grid(1) threads 64 blocks(%b) {
    %s = alloc fragment f32[64]
    %p = alloc fragment f32[64]
    %o = alloc fragment f32[64]
    for serial %k in 9 {
      for parallel %i in 64 { store %s[%i] = 1.0 }
      for parallel %j in 64 { store %p[%j] = %s[%j] }
      for parallel %l in 64 { store %o[%l] = %o[%l] + %p[%l] }
    }
  }
}
)");
  const Dependences dependences(module, LoopOf(module).body);
  const std::vector<Work> works{{.unit = 1000}, {.threads = 900}, {.unit = 1000}};
  EXPECT_EQ(InOrder(works), 2900);
  EXPECT_EQ(MakeSlot(works, dependences, 3)->cycles, 2900);  // nothing to run beside
  const auto slot = MakeSlot(works, dependences, 2);
  EXPECT_LE(slot->cycles, 2900);
  // The next first product starts before the end of the second one.
  std::vector<std::pair<size_t, bool>> order;
  for (const Step& step : slot->steps) order.emplace_back(step.stmt, step.wait);
  const auto at = [&](size_t stmt, bool wait) { return std::ranges::find(order, std::pair(stmt, wait)) - order.begin(); };
  EXPECT_LT(at(0, false), at(2, true));
}

TEST(Slot, AVariableIsOfItsIteration) {
  const ir::Module module = Parsed(R"(kiln 1
func @f(%X: global i32[64]) {
  kernel @k grid(1) threads 64 blocks(%b) {
    %s = alloc fragment i32[64]
    for serial %k in 9 {
      let %x = %X[%k]
      for parallel %i in 64 { store %s[%i] = %x }
    }
  }
}
)");
  const Dependences dependences(module, LoopOf(module).body);
  const std::vector<Work> works(2);
  EXPECT_FALSE(MakeSlot(works, dependences, 1)) << "the value of another iteration";
  EXPECT_TRUE(MakeSlot(works, dependences, 2));
}

// A random comparison of small multiples of the loop's variables, %k and constants.
std::string Comparison(std::mt19937& random) {
  const auto sum = [&] {
    std::string text = fmt::format("{}", int(random() % 41) - 20);
    for (const char* var : {"%i", "%j", "%k"})
      if (random() % 2 == 0) text = fmt::format("({} {} {} * {})", text, random() % 2 == 0 ? "+" : "-", var, random() % 5 + 1);
    return text;
  };
  const char* const operations[] = {"<", "<=", ">", ">="};
  return sum() + " " + operations[random() % 4] + " " + sum();
}

TEST(Decided, IsWhatIsKnownOfBothSides) {
  const ir::Module module = Parsed(R"(kiln 1
func @f(%X: global f32[64], %n: i32) {
  kernel @k grid(1) threads 64 blocks(%b) {
    for serial %k in (%n + 127) // 128 {
      if %k + 1 < 1 {
      }
      if %k + 1 > 0 {
      }
      if %k < 7 {
      }
      if %k * %n >= 0 {
      }
    }
  }
}
)");
  const ir::For& loop = LoopOf(module);
  Facts facts(module);
  facts.EnterKernel(module.kernels[0]);
  facts.EnterLoop(loop);
  const auto decided = [&](size_t i) { return Decided(module, facts, std::get<ir::If>(loop.body[i].op).cond); };
  EXPECT_EQ(decided(0), false);
  EXPECT_EQ(decided(1), true);
  EXPECT_EQ(decided(2), std::nullopt) << "another iteration";
  EXPECT_EQ(decided(3), std::nullopt) << "may wrap";
}

TEST(HoldsEverywhere, IsWhatAllIterationsSay) {
  std::mt19937 random(20261126);
  int held = 0, divided = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string condition = random() % 2 == 0 ? Comparison(random) : Comparison(random) + " && " + Comparison(random);
    ir::Module module = Parsed(fmt::format(R"(kiln 1
func @f(%X: global f32[64]) {{
  kernel @k grid(1) threads 64 blocks(%b) {{
    %s = alloc fragment f32[6, 5]
    for serial %k in 12 {{
      for parallel %i, %j in 6, 5 {{
        store %s[%i, %j] = select({}, 1.0, 0.0)
      }}
    }}
  }}
}}
)",
                                           condition));
    const ir::For& outer = LoopOf(module);
    const auto& loop = std::get<ir::For>(outer.body[0].op);
    const ir::ExprNode value = module.exprs[std::get<ir::Store>(loop.body[0].op).value];
    if (value.op != ir::ExprOp::kSelect) continue;
    Facts facts(module);
    facts.EnterKernel(module.kernels[0]), facts.EnterLoop(outer), facts.EnterLoop(loop);
    const auto sums = HoldsEverywhere(module, facts, value.args[0], loop);
    ASSERT_TRUE(sums) << condition;
    int holding = 0;
    for (int k = 0; k < 12; ++k) {
      bool all = true;
      for (int i = 0; i < 6; ++i) {
        for (int j = 0; j < 5; ++j) {
          ir::ExprId at = value.args[0];
          for (const auto& [var, number] : {std::pair(outer.vars[0], k), {loop.vars[0], i}, {loop.vars[1], j}})
            at = module.exprs.Substitute(at, var, module.exprs.Int(number));
          all &= module.exprs.ConstInt(at).value() != 0;
        }
      }
      const bool said =
          std::ranges::all_of(*sums, [&](const Linear& sum) { return sum.constant + sum.Coefficient(module.VarRef(outer.vars[0])) * k >= 0; });
      EXPECT_EQ(said, all) << condition << " at " << k;
      holding += said;
    }
    held += holding == 12, divided += holding > 0 && holding < 12;
  }
  EXPECT_GT(held, 5);
  EXPECT_GT(divided, 20);
}

TEST(HoldsEverywhere, ArithmeticThatMayWrapSaysNothing) {
  ir::Module module = Parsed(R"(kiln 1
func @f[%n](%X: global f32[%n]) {
  kernel @k grid((%n + 63) // 64) threads 64 blocks(%b) {
    %s = alloc fragment f32[64]
    for serial %k in 12 {
      for parallel %i in 64 {
        store %s[%i] = select(%b * 80 + %i < %n, 1.0, 0.0)
      }
    }
  }
}
)");
  const ir::For& outer = LoopOf(module);
  const auto& loop = std::get<ir::For>(outer.body[0].op);
  const ir::ExprId condition = module.exprs[std::get<ir::Store>(loop.body[0].op).value].args[0];
  const auto holds = [&](std::optional<int64_t> most) {
    Facts facts(module);
    const ir::VarId size{module.exprs[module.buffers[0].shape[0]].ref};
    if (most) facts.Assume(module.exprs.Make(ir::ExprOp::kLe, {module.VarRef(size), module.exprs.Int(*most, module[size].dtype)}));
    facts.EnterKernel(module.kernels[0]), facts.EnterLoop(outer), facts.EnterLoop(loop);
    return HoldsEverywhere(module, facts, condition, loop).has_value();
  };
  EXPECT_FALSE(holds({})) << "the last block's sum may be beyond 32 bits";
  EXPECT_TRUE(holds(1 << 28));
}

TEST(HoldsEverywhere, NarrowTypesWrap) {
  ir::Module module = Parsed(R"(kiln 1
func @f(%X: global f32[64]) {
  kernel @k grid(512) threads 64 blocks(%b) {
    %s = alloc fragment f32[64]
    for serial %k in 12 {
      for parallel %i in 64 {
        store %s[%i] = select(u8(%b) + u8(1) >= u8(1), 1.0, 0.0)
      }
    }
  }
}
)");
  const ir::For& outer = LoopOf(module);
  const auto& loop = std::get<ir::For>(outer.body[0].op);
  Facts facts(module);
  facts.EnterKernel(module.kernels[0]), facts.EnterLoop(outer), facts.EnterLoop(loop);
  const ir::ExprId condition = module.exprs[std::get<ir::Store>(loop.body[0].op).value].args[0];
  EXPECT_FALSE(HoldsEverywhere(module, facts, condition, loop)) << "255 + 1 is 0";
}

}  // namespace
}  // namespace kiln::compiler
