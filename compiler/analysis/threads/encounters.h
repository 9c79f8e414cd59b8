// SPDX-License-Identifier: Apache-2.0
//
// Whether two accesses of a buffer, one after the other, can meet: in one element, and there by different threads.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/facts.h"
#include "ir/op.h"

namespace kiln::compiler {

// An access and the statement that does it.
struct Occurrence {
  const ir::Stmt& stmt;
  const Access& access;
};

class Encounters {
 public:
  Encounters(const ir::Module& module, const ir::Kernel& kernel);

  // No element is accessed by both, whatever the variables are.
  bool Apart(const Occurrence& a, const Occurrence& b) const;
  // Both give every element of the buffer to the same one thread. Known of async copies and of parallel loops whose layout is decided.
  bool BySameThreads(const Occurrence& a, const Occurrence& b) const;

 private:
  const std::vector<Range>& Reach(const Occurrence& at) const;
  ir::ThreadRange ThreadsOf(const ir::Stmt& stmt) const;
  void FindNarrowed(const ir::Block& block, const std::optional<ir::ThreadRange>& threads);

  const ir::Module& module_;
  const ir::Kernel& kernel_;
  Facts facts_;                                                                               // what holds in the whole kernel
  using Region = std::tuple<const ir::Stmt*, std::vector<ir::ExprId>, std::vector<int64_t>>;  // where, from, how far

  std::map<const ir::Stmt*, ir::ThreadRange> narrowed_;  // statements that not all threads come to
  mutable std::map<Region, std::vector<Range>> reaches_;
};

}  // namespace kiln::compiler
