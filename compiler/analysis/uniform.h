// SPDX-License-Identifier: Apache-2.0
//
// Where conditions are the same for all threads: within a parallel loop those that hold for all of its iterations, and those that are known.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The sums that are all at least 0 exactly where the condition, comparisons of integers joined by "and", holds. nullopt: the condition is of another
// form, or its arithmetic may wrap as far as `facts` can tell.
std::optional<std::vector<Linear>> SumsOf(const ir::Module& module, const Facts& facts, ir::ExprId cond);

// The sums that are all at least 0 exactly where the condition, comparisons of integers joined by "and", holds in every iteration of `loop`,
// whose extents are constants. No sum has the loop's variables, and none leaves the 32-bit integers. nullopt: the condition is of another form,
// or its arithmetic may wrap as far as `facts`, into which the loop was entered, can tell.
std::optional<std::vector<Linear>> HoldsEverywhere(const ir::Module& module, const Facts& facts, ir::ExprId cond, const ir::For& loop);

// Whether a comparison of integers holds, where `facts` tell; also of a constant.
std::optional<bool> Decided(const ir::Module& module, const Facts& facts, ir::ExprId cond);

// The values between which the sum lies.
Range RangeOf(const Facts& facts, const Linear& sum);

// Lets `facts` know that every size which the kernel computes with is an ordinary one, at most 2^28, so that index arithmetic on them stays within
// 32 bits. Returns the condition for it.
ir::ExprId AssumeOrdinary(ir::Module& module, const ir::Kernel& kernel, Facts& facts);

// The sum as an expression of 32 bits.
ir::ExprId Written(ir::Module& module, const Linear& sum);

}  // namespace kiln::compiler
