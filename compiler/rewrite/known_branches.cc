// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/known_branches.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "compiler/analysis/uniform.h"

namespace kiln::compiler {
namespace {

void Visit(const ir::Module& module, ir::Block& block, Facts facts) {
  ir::Block result;
  for (ir::Stmt& stmt : block) {
    if (ir::Block* taken = TakenBranch(module, facts, stmt)) {
      ir::Block body = std::move(*taken);
      Visit(module, body, facts);
      std::ranges::move(body, std::back_inserter(result));
      continue;
    }
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Facts then = facts;
      then.Assume(branch->cond);
      Visit(module, branch->then_body, std::move(then));
      Visit(module, branch->else_body, facts);
    } else if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind != ir::LoopKind::kParallel) {
      Facts inner = facts;
      inner.EnterLoop(*loop);
      Visit(module, loop->body, std::move(inner));
    } else if (auto* repeat = std::get_if<ir::While>(&stmt.op)) {
      Visit(module, repeat->body, facts);
    } else if (const auto* let = std::get_if<ir::Let>(&stmt.op)) {
      facts.Bind(*let);
    } else if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) {
      facts.Assume(assume->cond);
    }
    result.push_back(std::move(stmt));
  }
  block = std::move(result);
}

}  // namespace

ir::Block* TakenBranch(const ir::Module& module, const Facts& facts, ir::Stmt& stmt) {
  auto* branch = std::get_if<ir::If>(&stmt.op);
  if (branch == nullptr || branch->IsNarrowed()) return nullptr;
  const std::optional<bool> holds = Decided(module, facts, branch->cond);
  return !holds ? nullptr : *holds ? &branch->then_body : &branch->else_body;
}

void ReplaceKnownBranches(const ir::Module& module, ir::Kernel& kernel) {
  Facts facts(module);
  facts.EnterKernel(kernel);
  Visit(module, kernel.body, std::move(facts));
}

}  // namespace kiln::compiler
