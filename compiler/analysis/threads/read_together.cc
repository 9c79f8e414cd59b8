// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/read_together.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using Index = std::vector<ir::ExprId>;

bool IsParallel(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  return loop != nullptr && loop->kind == ir::LoopKind::kParallel;
}

// Whether a thread finds the same element at the index throughout the kernel.
bool Stays(const ir::Module& module, const Index& index) {
  std::vector<ir::ExprId> open = index;
  while (!open.empty()) {
    const ir::ExprNode& node = module.exprs[open.back()];
    open.pop_back();
    if (node.op == ir::ExprOp::kLoad) return false;
    if (node.op == ir::ExprOp::kVar) {
      const ir::VarKind kind = module.vars[node.ref].kind;
      if (kind == ir::VarKind::kLoop || kind == ir::VarKind::kLet) return false;
    }
    open.insert(open.end(), node.Args().begin(), node.Args().end());
  }
  return true;
}

// The indices at which single statements touch each fragment.
class Singles {
 public:
  explicit Singles(const ir::Module& module) : module_(module) {}

  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      for (Access& access : AccessesOf(module_, stmt)) {
        if (module_[access.buffer].space != ir::Space::kFragment || access.tile || IsParallel(stmt)) continue;
        (access.write ? writes_ : reads_)[access.buffer].insert(std::move(access.indices));
      }
      if (!IsParallel(stmt)) ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Visit(body); });
    }
  }

  std::set<BufferId> ReadElsewhere() const {
    std::set<BufferId> fragments;
    for (const auto& [fragment, writes] : writes_) {
      const auto reads = reads_.find(fragment);
      if (reads == reads_.end()) continue;
      const bool one_place = writes.size() == 1 && reads->second == writes && Stays(module_, *writes.begin());
      if (!one_place) fragments.insert(fragment);
    }
    return fragments;
  }

 private:
  const ir::Module& module_;
  std::map<BufferId, std::set<Index>> reads_, writes_;
};

}  // namespace

std::set<BufferId> ReadTogether(const ir::Module& module, const ir::Block& block) {
  std::set<BufferId> fragments;
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module, stmt)) {
      if (module[access.buffer].space == ir::Space::kFragment && !access.write && (IsParallel(stmt) || access.tile)) fragments.insert(access.buffer);
    }
  });
  return fragments;
}

std::set<BufferId> ReadElsewhere(const ir::Module& module, const ir::Block& block) {
  Singles singles(module);
  singles.Visit(block);
  return singles.ReadElsewhere();
}

}  // namespace kiln::compiler
