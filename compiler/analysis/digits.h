// SPDX-License-Identifier: Apache-2.0
//
// What an element's index tells of the thread that touches it and of the iteration in which it does. An index is a sum of digits, as
// 4·thread + i: where each digit weighs more than all lighter ones together can be, the sum tells every one of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/module.h"

namespace kiln::compiler {

struct Digit {
  ir::ExprId term;
  int64_t weight, reach;          // reach: from the least value of the term to the greatest
  std::optional<ir::VarId> loop;  // whose variable the term is; none: it depends on the thread's number alone
};

class Digits {
 public:
  Digits(const ir::Module& module, const ir::Kernel& kernel);

  // The digits of an index, the lightest first; what is the same in all threads and iterations is none. nullopt: there is
  // something else in it.
  std::optional<std::vector<Digit>> Of(ir::ExprId index) const;
  // Whether the sum tells all of them.
  static bool AreTold(std::span<const Digit> digits);
  // Whether elements of this index belong to one thread each, in all iterations. Two accesses of one and the same such index are by the
  // same thread.
  bool TellThread(const std::vector<ir::ExprId>& indices) const;

 private:
  bool AreApart(const std::vector<ir::ExprId>& indices) const;
  std::optional<Digit> OfTerm(ir::ExprId term, int64_t weight) const;
  bool IsOfThread(ir::ExprId id) const;
  std::optional<int64_t> At(ir::ExprId id, int64_t thread) const;

  const ir::Module& module_;
  const int64_t threads_;
  Facts facts_;  // of all loops: none shares its variable with another
  mutable std::map<std::vector<ir::ExprId>, bool> tell_thread_;
};

}  // namespace kiln::compiler
