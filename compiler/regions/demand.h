// SPDX-License-Identifier: Apache-2.0
//
// Which elements of a tile matter: those from which something goes to memory, through products, sums and loops that keep rows or columns apart.
#pragma once

#include <set>
#include <utility>

#include "compiler/regions/lets.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class Demand {
 public:
  Demand(ir::Module& module, const ir::Kernel& kernel, const Lets& lets) : module_(module), kernel_(kernel), lets_(lets) {}

  // Whether the elements of `tile` with an index v along `dim` matter only where x(v) < bound, `var` being v in x: each store to memory of
  // what they become is under that condition.
  bool IsBelow(ir::BufferId tile, size_t dim, ir::ExprId x, ir::VarId var, ir::ExprId bound);

 private:
  class Query;
  ir::Module& module_;
  const ir::Kernel& kernel_;
  const Lets& lets_;
};

}  // namespace kiln::compiler
