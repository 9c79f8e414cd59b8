// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/canonicalize.h"

#include <gtest/gtest.h>

#include <sstream>
#include <unordered_map>

#include "ir/grammar/random_module.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/visit.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

// What a module does, as text: each statement with an effect, its expressions with all variables replaced by values.
// Loops of unknown extent run twice, unknown branches both ways.
class Trace {
 public:
  explicit Trace(ir::Module module) : module_(std::move(module)) {
    for (size_t i = 0; i < module_.buffers.size(); ++i) module_.buffers[i].name = "buffer" + std::to_string(i);
    for (size_t i = 0; i < module_.vars.size(); ++i) module_.vars[i].name = "var" + std::to_string(i);
  }

  std::string Run() {
    for (const ir::Kernel& kernel : module_.kernels) {
      (void)Execute(kernel.body);
      out_ += "end of kernel\n";
    }
    return std::move(out_);
  }

 private:
  enum class Flow { kNext, kBreak, kContinue };

  ir::ExprId Value(ir::ExprId id) {
    return module_.exprs.Rewrite(id, [this](ir::ExprId leaf) -> std::optional<ir::ExprId> {
      auto it = values_.find(module_.exprs[leaf].ref);
      bool bound = module_.exprs[leaf].op == ir::ExprOp::kVar && it != values_.end();
      return bound ? std::optional(it->second) : std::nullopt;
    });
  }

  Flow Execute(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      if (Flow flow = Execute(stmt); flow != Flow::kNext) return flow;
    }
    return Flow::kNext;
  }

  // A header is written where something happens under it.
  Flow Under(const std::string& header, const ir::Block& block) {
    std::string before = std::exchange(out_, "");
    Flow flow = Execute(block);
    std::string inside = std::exchange(out_, std::move(before));
    if (!inside.empty()) out_ += header + "\n" + inside + "end\n";
    return flow;
  }

  Flow Execute(const ir::Stmt& given) {
    ir::Stmt stmt = given;
    if (auto* loop = std::get_if<ir::For>(&stmt.op)) return Loop(*loop);
    ir::ForEachExpr(stmt.op, [this](ir::ExprId& id) { id = Value(id); });
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) return Branch(*branch);
    if (auto* let = std::get_if<ir::Let>(&stmt.op)) {
      values_[Index(let->var)] = let->value;
      return Flow::kNext;
    }
    if (std::holds_alternative<ir::Alloc>(stmt.op)) return Flow::kNext;
    if (auto* assume = std::get_if<ir::Assume>(&stmt.op); assume && module_.exprs.IsConst(assume->cond, 1)) return Flow::kNext;
    auto* loop = std::get_if<ir::While>(&stmt.op);
    if (loop != nullptr && module_.exprs.IsConst(loop->cond, 0)) return Flow::kNext;
    out_ += ir::PrintStmt(module_, stmt) + "\n";
    if (loop != nullptr) (void)Execute(loop->body);
    if (std::holds_alternative<ir::Break>(stmt.op)) return Flow::kBreak;
    return std::holds_alternative<ir::Continue>(stmt.op) ? Flow::kContinue : Flow::kNext;
  }

  Flow Branch(const ir::If& branch) {
    if (auto cond = module_.exprs.ConstInt(branch.cond)) return Execute(*cond != 0 ? branch.then_body : branch.else_body);
    (void)Under("if " + ir::PrintExpr(module_, branch.cond), branch.then_body);
    (void)Under("else of " + ir::PrintExpr(module_, branch.cond), branch.else_body);
    return Flow::kNext;
  }

  Flow Loop(const ir::For& loop) {
    ir::ExprId extent = Value(loop.extents[0]);
    std::optional<int64_t> known = module_.exprs.ConstInt(extent);
    for (int64_t i = 0; i < std::min<int64_t>(known.value_or(2), 2); ++i) {
      values_[Index(loop.vars[0])] = module_.exprs.Int(i);
      std::string header = known == 1 ? "once" : "loop to " + ir::PrintExpr(module_, extent);
      if (Under(header, loop.body) == Flow::kBreak) break;
    }
    return Flow::kNext;
  }

  ir::Module module_;
  std::unordered_map<uint32_t, ir::ExprId> values_;
  std::string out_;
};

// A loop of one iteration becomes its body.
std::string WithoutOnce(const std::string& trace) {
  std::string out, line;
  std::vector<bool> once;
  for (std::istringstream in(trace); std::getline(in, line);) {
    bool opens = line == "once" || line.starts_with("loop to ") || line.starts_with("if ") || line.starts_with("else of ");
    if (opens) once.push_back(line == "once");
    bool hidden = line == "once" || (line == "end" && once.back());
    if (line == "end") once.pop_back();
    if (!hidden) out += line + "\n";
  }
  return out;
}

TEST(Canonicalize, TheProgramDoesTheSame) {
  size_t lines = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    ir::Module module = ir::RandomModule(seed).Make(false);
    ir::Diagnostics diagnostics;
    std::string before = WithoutOnce(Trace(module).Run());
    (void)Canonicalize(module, {}, diagnostics);
    ASSERT_EQ(WithoutOnce(Trace(module).Run()), before) << seed;
    lines += size_t(std::ranges::count(before, '\n'));
  }
  EXPECT_GT(lines, 3000u);
}

TEST(Canonicalize, Golden) {
  for (const auto& path : golden::Inputs("canonicalize")) {
    ir::Diagnostics diagnostics;
    auto module = ir::Parse(golden::ReadFile(path), diagnostics);
    ASSERT_TRUE(module) << path << ": " << diagnostics.all()[0].message;
    bool valid = Canonicalize(*module, {}, diagnostics).has_value();
    std::string text = ir::Print(*module);
    if (!valid) text = diagnostics.all()[0].message + "\n  in: " + diagnostics.all()[0].statement + "\n";
    golden::Expect(path, text);
  }
}

TEST(Canonicalize, AVectorizedLoopOfOneIterationIsItsBodyAtOnce) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(R"(kiln 1
func @f(%A: global f32[64]) {
  kernel @k grid(4) threads 32 blocks(%b) {
    for vectorized %v in 1 { store %A[%b + %v] = 1.0 }
    for vectorized %v in 4 { store %A[%b + %v] = 2.0 }
  }
})",
                          diagnostics);
  ASSERT_TRUE(module) << diagnostics.all()[0].message;
  ASSERT_TRUE(Canonicalize(*module, {}, diagnostics)) << diagnostics.all()[0].message;
  const std::string once = ir::Print(*module);
  const ir::Block& body = module->kernels[0].body;
  ASSERT_EQ(body.size(), 2u) << once;
  EXPECT_TRUE(std::holds_alternative<ir::Store>(body[0].op)) << once;
  ASSERT_TRUE(std::holds_alternative<ir::For>(body[1].op)) << once;
  EXPECT_EQ(std::get<ir::For>(body[1].op).kind, ir::LoopKind::kUnroll);
  ASSERT_TRUE(Canonicalize(*module, {}, diagnostics));
  EXPECT_EQ(ir::Print(*module), once);
}

TEST(Canonicalize, ASecondTimeChangesNothing) {
  size_t valid = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    ir::Module module = ir::RandomModule(seed).Make(false);
    ir::Diagnostics diagnostics;
    // Some index tiles by variables that turn out to be constants outside them, and nothing else can be wrong.
    if (!Canonicalize(module, {}, diagnostics)) {
      for (const ir::Diagnostic& d : diagnostics.all()) ASSERT_EQ(d.message.find("index "), 0u) << d.message;
      continue;
    }
    ++valid;
    std::string once = ir::Print(module);
    ASSERT_TRUE(Canonicalize(module, {}, diagnostics));
    ASSERT_EQ(ir::Print(module), once) << seed;
  }
  EXPECT_GT(valid, 100u);
}

}  // namespace
}  // namespace kiln::compiler
