// SPDX-License-Identifier: Apache-2.0
//
// Where the threads of a block may differ: in values that they compute from their index, and in the statements that they run depending on
// such values. Everywhere else they do the same.
#pragma once

#include <set>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class Divergence {
 public:
  Divergence(const ir::Module& module, const ir::Block& body);

  // Whether threads may see different values of an expression.
  bool Differs(ir::ExprId id) const;
  // Of a For or While: of the threads that come to it, some may leave it, or go on to its next iteration, before others.
  bool IsLeftEarly(const void* loop) const { return left_.contains(loop); }
  // Whether each thread runs this store or atomic, outside of parallel loops, for itself. If not, it runs once for the block.
  bool IsOfEachThread(const ir::Stmt& stmt) const { return of_each_thread_.contains(&stmt); }

 private:
  void Visit(const ir::Block& block, bool divergent);
  void VisitStmt(const ir::Stmt& stmt, bool divergent);
  void TakeAllToDiffer(const ir::Block& body);
  void VisitLoop(const ir::Block& body, const void* loop, bool differs, bool divergent);
  void Leave() {
    if (apart_ && !loops_.empty()) left_.insert(loops_.back());
  }
  void Write(const ir::Stmt& stmt, ir::BufferId buffer, const std::vector<ir::ExprId>& indices, ir::ExprId value, bool divergent);

  const ir::Module& module_;
  std::set<ir::VarId> vars_;        // lets that differ
  std::set<ir::BufferId> locals_;   // locals that do
  std::set<const void*> left_;      // loops that some threads may leave, or go on in, before others
  std::vector<const void*> loops_;  // around
  std::set<const ir::Stmt*> of_each_thread_;
  bool in_parallel_ = false;
  bool apart_ = false;  // within the innermost loop, threads that entered together may have taken different paths
};

}  // namespace kiln::compiler
