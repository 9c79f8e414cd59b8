// SPDX-License-Identifier: Apache-2.0
//
// What is known of integer expressions at one point of a program: ranges and divisors. Facts come from constant loop extents, grid
// sizes, enclosing conditions and Assume.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "compiler/analysis/persistent_map.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct Range {
  int64_t min, max;  // both reachable ends, saturating; kUnbounded where nothing is known
  bool IsPoint() const { return min == max; }
};
inline constexpr int64_t kUnbounded = int64_t{1} << 60;

class Facts {
 public:
  explicit Facts(const ir::Module& module) : module_(&module) {}

  // Facts that hold for the whole kernel: block indices below the grid, thread index below the block size.
  void EnterKernel(const ir::Kernel& kernel);
  void EnterLoop(const ir::For& loop);
  void Bind(const ir::Let& let);
  // `cond` holds from here on.
  void Assume(ir::ExprId cond);

  Range RangeOf(ir::ExprId id) const;
  // The largest known divisor; 0 for a constant 0.
  int64_t DivisorOf(ir::ExprId id) const;
  // True if 0 ≤ index and index + extent ≤ size whatever the variables. What a condition compared counts for an extent of 1.
  bool Inside(ir::ExprId index, int64_t extent, ir::ExprId size) const;
  // Whether the index is a variable of a loop or of the grid that counts from 0 to just below the size. No part of Inside: without the checks that it
  // would save, ptxas spills in kernels that use all registers.
  bool CountsTo(ir::ExprId index, ir::ExprId size) const;

 private:
  struct VarFact {
    Range range;
    int64_t divisor;
    std::optional<ir::ExprId> end = std::nullopt;  // the variable is less than this
  };
  // `var` counts from 0 to `extent`.
  void Index(ir::VarId var, ir::ExprId extent);
  Range Compute(ir::ExprId id) const;
  // `below` < `above` from here on.
  void Order(ir::ExprId below, ir::ExprId above);
  int64_t ComputeDivisor(ir::ExprId id) const;

  // Answers so far, for expressions that share subexpressions; forgotten with every new fact and not copied.
  struct Memo {
    std::unordered_map<uint32_t, Range> ranges;
    std::unordered_map<uint32_t, int64_t> divisors;
    Memo() = default;
    Memo(const Memo&) {}
    Memo& operator=(const Memo&) { return Clear(), *this; }
    void Clear() { ranges.clear(), divisors.clear(); }
  };
  mutable Memo memo_;

  const ir::Module* module_;
  PersistentMap<VarFact> vars_;
  PersistentMap<Range> ranges_;  // by expression: what conditions said
  PersistentMap<int64_t> divisors_;
  PersistentMap<std::vector<ir::ExprId>> above_;  // by expression: what it is less than, as conditions said
};

// A sum of constant multiples of terms, a term being a variable or an expression that is not linear.
struct Linear {
  int64_t constant = 0;
  std::map<uint32_t, int64_t> terms;  // expression id → coefficient, never 0

  int64_t Coefficient(ir::ExprId term) const;
  void Add(const Linear& other, int64_t factor);
};
// Integer casts that widen are looked through: indices do not overflow.
Linear LinearOf(const ir::ExprPool& pool, ir::ExprId id);

// The sum with y in the place of each y mod c: what divides the modulus and this sum divides the sum itself, as 8 does x − x mod 8. 0: they are
// equal.
struct Congruent {
  Linear sum;
  int64_t modulus = 0;
};
Congruent WithoutRemainders(const ir::ExprPool& pool, const Linear& sum);

}  // namespace kiln::compiler
