// SPDX-License-Identifier: Apache-2.0
//
// Sizes of expressions as trees. With shared subexpressions a small pool can stand for an endless text, and a deep expression would
// overflow the stack of a recursive walk. Readers refuse both.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/expr/expr.h"

namespace kiln::ir {

struct ExprSize {
  uint32_t depth;
  uint64_t nodes;  // written out, shared parts counted each time; saturates
};

class ExprSizes {
 public:
  explicit ExprSizes(const ExprPool& pool) : pool_(pool) {}
  ExprSize Of(ExprId id);

 private:
  const ExprPool& pool_;
  std::vector<ExprSize> sizes_;  // of the first expressions of the pool
};

}  // namespace kiln::ir
