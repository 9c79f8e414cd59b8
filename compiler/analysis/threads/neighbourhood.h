// SPDX-License-Identifier: Apache-2.0
//
// How expressions move from one iteration of a loop to the next, over aligned neighbours: iterations v·w … v·w + w − 1 of one variable.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "compiler/analysis/facts.h"
#include "ir/module.h"

namespace kiln::compiler {

// e(v·w + i) = e(v·w) + step · i, and `divisor`, a power of two, divides e(v·w).
struct Steps {
  int64_t step;
  int64_t divisor;
};

// Quotients and remainders of a sum count on with the variable, or keep one value, where all that is added to it, and what divides it, are
// multiples of the width: x / 64 and x mod 64 for x = 64 · block + v and widths up to 64.
class Neighbourhood {
 public:
  // `width`: a power of two. `facts` hold at the loop's body. `wraps`: arithmetic may overflow, as in masks; in indices it does not.
  Neighbourhood(const ir::Module& module, const Facts& facts, ir::VarId var, int64_t width, bool wraps = false)
      : pool_(module.exprs), facts_(facts), var_(var), width_(width), wraps_(wraps) {}

  // nullopt: it does not move in equal steps.
  std::optional<Steps> Of(ir::ExprId id) const;
  // Whether the neighbours have one value.
  bool IsOne(ir::ExprId id) const;

 private:
  std::optional<Steps> Compute(ir::ExprId id) const;
  std::optional<Steps> OfLinear(const Linear& linear) const;
  std::optional<Steps> OfSum(const Linear& linear) const;
  std::optional<Steps> OfTerm(ir::ExprId id) const;
  std::optional<Steps> OfComparison(const ir::ExprNode& node) const;
  std::optional<Steps> OfQuotient(const ir::ExprNode& node) const;
  std::optional<Steps> OfRemainder(const ir::ExprNode& node) const;
  std::optional<Steps> OfSelect(const ir::ExprNode& node) const;
  bool DividesWhole(const ir::ExprNode& node, const Steps& by, bool truncates) const;
  bool IsAligned(const Steps& steps) const { return steps.divisor % width_ == 0; }
  bool IsNaturalHere(ir::ExprId id) const;
  int64_t DivisorOf(ir::ExprId id) const;

  const ir::ExprPool& pool_;
  const Facts& facts_;
  const ir::VarId var_;
  const int64_t width_;
  const bool wraps_;
  mutable std::map<uint32_t, std::optional<Steps>> known_;
};

}  // namespace kiln::compiler
