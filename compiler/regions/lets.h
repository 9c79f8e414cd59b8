// SPDX-License-Identifier: Apache-2.0
//
// What variables that a kernel binds to index arithmetic stand for.
#pragma once

#include <map>

#include "ir/expr/expr_size.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class Lets {
 public:
  Lets(ir::Module& module, const ir::Kernel& kernel);

  // The expression with values in place of such variables; as it is where that would be too long.
  ir::ExprId Expanded(ir::ExprId id) const;

 private:
  ir::Module& module_;
  mutable ir::ExprSizes sizes_;
  std::map<ir::VarId, ir::ExprId> values_;  // expanded
};

}  // namespace kiln::compiler
