// SPDX-License-Identifier: Apache-2.0
//
// How an integer expression changes while one variable grows and all others stay: what says which blocks of a grid have more to do. Arithmetic that
// wraps is not considered, so that only choices may follow from it, and nothing that must be right.
#pragma once

#include <map>
#include <utility>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

enum class Growth {
  kNone,  // the variable does not occur
  kUp,    // never falls
  kDown,  // never rises
  kUnknown,
};

class Growths {
 public:
  // Variables that `body` binds stand for their values, but those in which threads of one block differ, which count as none of the block's.
  Growths(const ir::Module& module, const ir::Block& body);

  Growth Of(ir::ExprId id, ir::VarId var) { return Of(id, var, 0); }

 private:
  Growth Of(ir::ExprId id, ir::VarId var, int depth);
  Growth OfNode(const ir::ExprNode& node, ir::VarId var, int depth);

  const ir::Module& module_;
  std::map<ir::VarId, ir::ExprId> values_;
  std::map<std::pair<ir::ExprId, ir::VarId>, Growth> known_;
};

}  // namespace kiln::compiler
