// SPDX-License-Identifier: Apache-2.0
//
// Which box of which strided tensor the elements are that a parallel loop accesses in a flat one. Strides are the factors that the launcher
// knows, bounds are those that the loop's conditions compare with.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "compiler/regions/host_range.h"
#include "compiler/regions/sums.h"
#include "ir/module.h"

namespace kiln::compiler {

// Elements of a flat tensor, one for each iteration: that at `offset`, where all `conditions` hold.
struct Elements {
  std::vector<ir::VarId> vars;
  std::vector<int64_t> extents;
  ir::ExprId offset;
  std::vector<ir::ExprId> conditions;
};

// The same, outermost dimension first.
struct Box {
  std::vector<ir::ExprId> shape, strides;  // of the tensor, i64, for the launcher
  std::vector<ir::ExprId> offsets;         // of the box in it
  std::vector<std::optional<size_t>> var;  // the loop's variable along the dimension, by position; none: the box has one index there
  std::vector<ir::ExprId> positive;        // as View has it
};

// `is_wanted(x, position, m)`: whether something needs an iteration only if the natural number x is below m. Its elements may then be any
// where x % m, min(x, m - 1) or a choice by x < m is asked for and x is not below m. nullopt: they are no box with neighbours in memory along
// one of the loop's variables.
using IsWantedBelow = std::function<bool(ir::ExprId x, size_t position, ir::ExprId m)>;
std::optional<Box> BoxOf(ir::Module& module, const HostRanges& ranges, const Elements& elements, const IsWantedBelow& is_wanted);

}  // namespace kiln::compiler
