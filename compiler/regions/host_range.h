// SPDX-License-Identifier: Apache-2.0
//
// What an expression of the kernel lies between, as expressions that the launcher computes. Where that depends on the sign of such an
// expression, the launcher is to check it. As everywhere, indices do not overflow.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "compiler/regions/sums.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class HostRanges {
 public:
  // Of the kernel's block variables.
  HostRanges(ir::Module& module, const ir::Kernel& kernel);
  // A variable of a loop, which counts from 0 to below the extent.
  void Enter(ir::VarId var, ir::ExprId extent);

  // The least and the greatest value, i64. What must be 1 or more for that to hold is added to `positive`.
  std::optional<ir::ExprId> Low(ir::ExprId id, std::vector<ir::ExprId>& positive) const;
  std::optional<ir::ExprId> High(ir::ExprId id, std::vector<ir::ExprId>& positive) const;
  // Whether it is 0 or more, likewise.
  bool IsNatural(ir::ExprId id, std::vector<ir::ExprId>& positive) const;

 private:
  class Query;
  // Of a loop to an end of the block's own: constant · factors · variable is at most `most`.
  struct Count {
    int64_t constant;
    std::vector<uint32_t> factors;
    Sum most;
  };
  std::optional<Count> CountOf(ir::ExprId extent) const;

  ir::Module& module_;
  std::map<ir::VarId, ir::ExprId> extents_;
  std::map<ir::VarId, Count> counts_;
};

}  // namespace kiln::compiler
