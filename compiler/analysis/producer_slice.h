// SPDX-License-Identifier: Apache-2.0
//
// The part of a kernel that the threads which only fill rings run: the statements that fill, the control flow around them, and the lets
// that both need. The other threads run everything else.
#pragma once

#include <functional>
#include <set>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class ProducerSlice {
 public:
  // `fills`: the statements that the slice is for.
  ProducerSlice(const ir::Module& module, const ir::Kernel& kernel, const std::function<bool(const ir::Stmt&)>& fills);

  // Whether the slice computes what the whole program would: nothing it needs depends on a thread or on what the kernel computes.
  bool sound() const { return sound_; }
  bool Runs(const ir::Stmt& stmt) const { return runs_.contains(&stmt); }

 private:
  bool Visit(const ir::Block& block);
  bool VisitStmt(const ir::Stmt& stmt);
  void Need(const ir::Stmt& stmt);

  const ir::Module& module_;
  const std::function<bool(const ir::Stmt&)>& fills_;
  std::set<ir::BufferId> written_;
  std::set<ir::VarId> needed_;
  std::set<const ir::Stmt*> runs_;
  bool sound_ = true;
};

// In a kernel with producers: the statements that fill its rings.
bool FillsRing(const ir::Stmt& stmt);

}  // namespace kiln::compiler
