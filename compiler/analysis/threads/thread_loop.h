// SPDX-License-Identifier: Apache-2.0
//
// A parallel loop that has a layout, as one thread sees it. Which elements an access touches is a sum: a part that all of the thread's
// registers share, and a constant for each register.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Some digits of a loop's variable: (v mod modulus) / divisor. Modulus 0: all digits from the divisor on.
struct LoopDigits {
  int variable = -1;
  int64_t divisor = 1, modulus = 0;
  bool IsWhole() const { return divisor == 1 && modulus == 0; }
  int64_t Of(int64_t value) const { return (modulus == 0 ? value : value % modulus) / divisor; }
};

// The indices of an access, each a constant plus multiples of terms.
struct SplitAccess {
  struct Term {
    ir::ExprId value;
    int64_t coefficient;
    LoopDigits digits;  // variable −1: the term has one value in all iterations
  };
  struct Index {
    int64_t constant = 0;
    std::vector<Term> terms;
  };
  std::vector<Index> indices;
};

class ThreadLoop {
 public:
  // `facts` hold at the loop's body; they and the statement must outlive this.
  ThreadLoop(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt);

  const ir::For* loop;
  ir::Layout layout;
  std::vector<int64_t> extents;
  std::vector<ir::Indices> parts;  // register → what it adds to each variable
  std::vector<bool> padded;        // variable may run beyond its extent
  bool only_stores;                // perhaps under conditions, so that several registers can be done at once
  int64_t run;                     // registers first · run … + run − 1 are done at once; they are neighbours in the last variable
  std::set<ir::BufferId> stored;   // buffers that it writes

  int64_t Registers() const { return int64_t(parts.size()); }
  bool IsEmpty() const;   // has no iteration
  bool IsPadded() const;  // along some variable
  // −1: not a variable of the loop.
  int VariableOf(ir::ExprId id) const;
  // The expression as digits of a variable of the loop. Quotients and remainders count if no digit of the loop's layout crosses their divisor.
  LoopDigits DigitsOf(ir::ExprId id) const;
  // nullopt: the registers share no part of the address.
  std::optional<SplitAccess> Split(ir::BufferId buffer, std::span<const ir::ExprId> indices) const;

  // Of shared memory, in bytes, before the swizzle: what the register adds to the address, with all constants; the largest known divisor
  // of what all registers share (0: they share nothing); and the step from one value of a variable to the next, nullopt where the address
  // uses only some of the variable's digits.
  int64_t SharedOffset(ir::BufferId buffer, const SplitAccess& access, int64_t reg) const;
  int64_t SharedDivisor(ir::BufferId buffer, const SplitAccess& access) const;
  std::optional<int64_t> SharedStep(ir::BufferId buffer, const SplitAccess& access, size_t variable) const;

 private:
  bool IsSettled(ir::ExprId id) const;  // has one value in all iterations
  bool BlocksAreWhole(ir::BufferId shared, int dim, const Linear& index) const;
  int64_t DivisorOf(const SplitAccess::Term& term) const;
  int64_t ThreadDivisor(const LoopDigits& digits) const;

  const ir::Module* module_;
  const Facts* facts_;
  std::set<ir::VarId> bound_inside_;
};

// Where a register's element lies in a vector of neighbours in memory that are no neighbours in the loop's last variable.
struct VectorPlace {
  int64_t first = 0;  // register that holds the vector's first element
  int64_t place = 0;
};
// Of each register: along a variable whose first digit is the registers'.
std::vector<VectorPlace> PlacesAcross(const ThreadLoop& loop, size_t variable, int64_t width);
// Of each register: in aligned vectors of shared memory. nullopt where the thread does not need each element of each vector.
std::optional<std::vector<VectorPlace>> PlacesGathered(const ThreadLoop& loop, const ir::Module& module, ir::BufferId shared,
                                                       const SplitAccess& access, int64_t width);

// Shared memory, in bytes: what an index in a dimension adds to the address.
int64_t SharedTerm(const ir::Buffer& shared, int dim, int64_t index);
// Whether an index in a dimension has several digits, and so no single stride.
bool IsBlocked(const ir::Buffer& shared, int dim);
// Of the first digit, in elements.
int64_t SharedStride(const ir::Buffer& shared, int dim);

}  // namespace kiln::compiler
