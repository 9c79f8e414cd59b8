// SPDX-License-Identifier: Apache-2.0
//
// What the rewrites of the IR do to each op: where a variable or a buffer is replaced, no use of it is left, and the program computes the same.
#include <gtest/gtest.h>

#include <regex>

#include "compiler/rewrite/versions.h"
#include "ir/canonical.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"
#include "ir/visit.h"
#include "tests/emulator/ops/program.h"
#include "tests/emulator/ops/run.h"

namespace kiln::emulator::testing {
namespace {

// Of the first kernel, without what is declared before it.
std::string BodyOf(const ir::Module& module) {
  const std::string text = ir::Print(module);
  return text.substr(text.find("  kernel @"));
}

int64_t Uses(const std::string& text, const std::string& name) {
  const std::regex use("%" + name + "\\b");
  return std::distance(std::sregex_iterator(text.begin(), text.end(), use), {});
}

bool HasOp(const ir::Module& module, std::string_view name) {
  bool has = false;
  ir::Walk(module.kernels[0].body, [&](const ir::Stmt& stmt) { has |= ir::Name(stmt.op) == name; });
  return has;
}

// Calls fn(VarId&) for what binds a variable, and fn(BufferId&) for what declares a buffer.
template <typename Fn>
struct Binders : ir::FieldVisitor {
  Fn& fn;
  explicit Binders(Fn& f) : fn(f) {}
  void Binds(ir::VarId& var, std::string_view) { fn(var); }
  void Declares(ir::BufferId& buffer, std::string_view) { fn(buffer); }
};

// Gives every variable and every buffer of the kernel another name, each by the rewrite that passes use. The names of tensors keep their order.
struct Renaming {
  ir::Module& module;
  ir::Kernel& kernel = module.kernels[0];

  void Run() {
    const size_t vars = module.vars.size(), buffers = module.buffers.size();
    for (uint32_t i = 0; i < vars; ++i) {
      ir::Var twin = module.vars[i];
      twin.name = "new_" + twin.name;
      const ir::ExprId ref = module.VarRef(module.AddVar(std::move(twin)));
      compiler::Substitute(module, kernel.body, ir::VarId{i}, ref);
    }
    for (uint32_t i = 0; i < buffers; ++i) {
      ir::Buffer twin = module.buffers[i];
      twin.name = "new_" + twin.name;
      compiler::ReplaceBuffer(module, kernel.body, ir::BufferId{i}, module.AddBuffer(std::move(twin)));
      module.buffers[i] = {.space = ir::Space::kShared, .dtype = ir::DType::kF32, .shape = {module.exprs.Int(1)}, .name = module.buffers[i].name};
    }
    auto rename = ir::Overloaded{[&](ir::VarId& id) { id = ir::VarId(ir::Index(id) + vars); },
                                 [&](ir::BufferId& id) { id = ir::BufferId(ir::Index(id) + buffers); }};
    ir::Walk(kernel.body, [&](ir::Stmt& stmt) { ir::Fields(stmt.op, Binders(rename)); });
    for (ir::VarId& var : kernel.block_vars) rename(var);
    for (ir::Param& param : module.params) std::visit(rename, param);
  }
};

// Results in the order of the parameters' names.
std::vector<std::vector<double>> ResultsOf(ir::Module module, std::string_view target, std::string_view after = {},
                                           const v1::CompileOptions& options = {}) {
  const Tensors numbers = SmallNumbers(module, 1);
  std::vector<std::vector<double>> results;
  for (auto& [name, values] : Runner(std::move(module), target, after, options).Run(numbers)) results.push_back(std::move(values));
  return results;
}

void ExpectRenamed(const ir::Module& module, std::string_view target, std::string_view after = {}, const v1::CompileOptions& options = {}) {
  ir::Module renamed = module;
  Renaming{renamed}.Run();
  const std::string body = BodyOf(renamed);
  const ir::Names names(module);
  for (uint32_t i = 0; i < module.vars.size(); ++i) EXPECT_EQ(Uses(body, names.Of(ir::VarId{i})), 0) << names.Of(ir::VarId{i}) << " in\n" << body;
  for (uint32_t i = 0; i < module.buffers.size(); ++i) {
    EXPECT_EQ(Uses(body, names.Of(ir::BufferId{i})), 0) << names.Of(ir::BufferId{i}) << " in\n" << body;
  }
  ir::Diagnostics diagnostics;
  ASSERT_TRUE(ir::Verify(renamed, diagnostics)) << diagnostics.all()[0].message << "\n" << body;
  EXPECT_EQ(ResultsOf(std::move(renamed), target, after, options), ResultsOf(module, target, after, options));
}

class RowTest : public ::testing::TestWithParam<Row> {};
INSTANTIATE_TEST_SUITE_P(Ops, RowTest, ::testing::ValuesIn(kRows), NameOf<Row>);

TEST_P(RowTest, HasItsOp) { EXPECT_TRUE(HasOp(Parsed(TextOf(GetParam())), GetParam().op)); }

TEST_P(RowTest, IsPrintedAsItIsWritten) {
  const auto words = [](const std::string& text) { return std::regex_replace(text, std::regex("\\s+"), " "); };
  EXPECT_EQ(words(ir::Print(Parsed(TextOf(GetParam())))), words(TextOf(GetParam())));
}

TEST_P(RowTest, VariableBecomesConstant) {
  const Row& row = GetParam();
  const std::string statements = std::regex_replace(std::string(row.statements), std::regex("%v\\b"), "1");
  const ir::Module given = Parsed(TextOf(row)), expected = Parsed(TextOf({row.op, statements, row.kernel}));
  ir::Module substituted = given;
  const auto v = std::ranges::find(substituted.vars, "v", &ir::Var::name) - substituted.vars.begin();
  compiler::Substitute(substituted, substituted.kernels[0].body, ir::VarId(v), substituted.exprs.Int(1));
  EXPECT_EQ(ir::Print(substituted), ir::Print(expected));
  const auto results = ResultsOf(expected, TargetsOf(row.op, row.kernel)[0]);
  EXPECT_EQ(ResultsOf(substituted, TargetsOf(row.op, row.kernel)[0]), results);
  EXPECT_EQ(ResultsOf(given, TargetsOf(row.op, row.kernel)[0]), results);
}

TEST_P(RowTest, IsRenamed) { ExpectRenamed(Parsed(TextOf(GetParam())), TargetsOf(GetParam().op, GetParam().kernel)[0]); }

// Two programs that differ in one operand differ in their key.
TEST_P(RowTest, EachUseIsInTheKey) {
  const auto bytes = [&](const std::string& statements) {
    ir::Diagnostics diagnostics;
    return ir::CanonicalBytes(*ir::Parse(TextOf({GetParam().op, "\n    let %u = 2" + statements, GetParam().kernel}), diagnostics));
  };
  const std::string given(GetParam().statements);
  for (size_t at = given.find("%v"); at != std::string::npos; at = given.find("%v", at + 1)) {
    std::string changed = given;
    changed[at + 1] = 'u';
    EXPECT_NE(bytes(changed), bytes(given)) << changed;
  }
}

class MadeRowTest : public ::testing::TestWithParam<MadeRow> {};
INSTANTIATE_TEST_SUITE_P(Ops, MadeRowTest, ::testing::ValuesIn(kMadeRows), NameOf<MadeRow>);

TEST_P(MadeRowTest, IsRenamed) {
  const MadeRow& row = GetParam();
  const v1::CompileOptions options = OptionsOf(row);
  ir::Module module = Parsed(MadeTextOf("pipelined %k in 32 stages 3"));
  RunPassesUpTo(row.pass, module, row.target, options);
  ASSERT_TRUE(HasOp(module, row.op)) << ir::Print(module);
  ExpectRenamed(module, row.target, row.pass, options);
}

}  // namespace
}  // namespace kiln::emulator::testing
