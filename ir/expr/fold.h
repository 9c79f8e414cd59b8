// SPDX-License-Identifier: Apache-2.0
//
// Constant folding of single nodes. Only what every host computes alike: the four operations, roundings, comparisons,
// casts; never a function of the math library, whose last bit differs between machines.
#pragma once

#include <optional>
#include <span>

#include "ir/expr/expr.h"

namespace kiln::ir {

// The constant that `node` has when its arguments are the constants `args`; nothing where it is unspecified (a division
// by zero) or not foldable.
std::optional<ExprNode> Fold(const ExprNode& node, std::span<const ExprNode* const> args);

ExprNode ConstIntNode(DType dtype, int64_t value);
ExprNode ConstFloatNode(DType dtype, double value);

}  // namespace kiln::ir
