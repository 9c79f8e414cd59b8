// SPDX-License-Identifier: Apache-2.0
//
// Values of integer expressions in a parallel loop that are known while it is compiled: the same for all threads, in a register's iteration.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

class SettledValues {
 public:
  SettledValues(const ir::Module& module, const compiler::Facts& facts, const compiler::ThreadLoop& loop)
      : module_(module), facts_(facts), loop_(loop) {}

  std::optional<int64_t> At(ir::ExprId id, int64_t reg) const;
  // Whether an expression is the same in the iterations of a register and the next, which is its neighbour in the last variable.
  bool AreOne(ir::ExprId id, int64_t first) const;

 private:
  std::optional<int64_t> ValueAt(ir::ExprId id, int variable, int64_t at) const;
  std::vector<int64_t> PlacesOf(int variable, int64_t reg) const;

  const ir::Module& module_;
  const compiler::Facts& facts_;
  const compiler::ThreadLoop& loop_;
};

}  // namespace kiln::llvm_ir
