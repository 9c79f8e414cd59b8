// SPDX-License-Identifier: Apache-2.0
//
// What an expression of the kernel lies between, as expressions that the launcher computes. Where that depends on the sign of such an
// expression, the launcher is to check it. As everywhere, indices do not overflow.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct HostRange {
  std::optional<ir::ExprId> low, high;  // i64, both reachable ends
};

class HostRanges {
 public:
  // Of the kernel's block variables.
  HostRanges(ir::Module& module, const ir::Kernel& kernel);
  // A variable of a loop, which counts from 0 to below the extent.
  void Enter(ir::VarId var, ir::ExprId extent);

  // What must be 1 or more for a range to hold is added to `positive`.
  HostRange Of(ir::ExprId id, std::vector<ir::ExprId>& positive) const;
  // Whether it is 0 or more, if each of `positive` is 1 or more.
  bool IsNatural(ir::ExprId id, std::vector<ir::ExprId>& positive) const;

 private:
  class Query;
  ir::Module& module_;
  std::map<ir::VarId, ir::ExprId> extents_;
};

}  // namespace kiln::compiler
