// SPDX-License-Identifier: Apache-2.0
//
// What an element's index says about the thread that touches the element, and about the iteration. An index is a sum of digits, for
// instance 4·thread + i. If each digit weighs more than the largest sum of all lighter digits, the index determines every digit.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

struct Digit {
  ir::ExprId term;
  int64_t weight, reach;          // reach: from the least value of the term to the greatest
  std::optional<ir::VarId> loop;  // the loop whose variable the term is; none: the term depends on the thread's number alone
};

class Digits {
 public:
  Digits(const ir::Module& module, const ir::Kernel& kernel);

  // The digits of an index, the lightest first; terms equal in all threads and iterations are left out. nullopt: the index has other terms.
  std::optional<std::vector<Digit>> Of(ir::ExprId index) const;
  // Whether the index determines all of its digits.
  static bool AreTold(std::span<const Digit> digits);
  // Whether each element of this index belongs to one thread of the range in all iterations. Two accesses of these threads with the same such
  // index are by the same thread.
  bool TellThread(const std::vector<ir::ExprId>& indices, const ir::ThreadRange& threads) const;

  // Whether each element of this index belongs to one iteration of the loop over `loop`, in all of these threads.
  bool TellIteration(const std::vector<ir::ExprId>& indices, ir::VarId loop, const ir::ThreadRange& threads) const;

 private:
  std::optional<std::vector<Digit>> ToldIn(ir::ExprId index, const ir::ThreadRange& threads) const;
  bool AreApart(const std::vector<ir::ExprId>& indices, const ir::ThreadRange& threads) const;
  std::optional<int64_t> Reach(ir::ExprId term, const ir::ThreadRange& threads) const;
  std::optional<Digit> OfTerm(ir::ExprId term, int64_t weight) const;
  bool IsOfBlock(ir::ExprId id, bool loads = false) const;
  bool IsOfThread(ir::ExprId id) const;
  std::optional<int64_t> At(ir::ExprId id, int64_t thread) const;

  const ir::Module& module_;
  Facts facts_;               // of all loops: none shares its variable with another
  std::set<ir::VarId> lets_;  // that all threads have once, and have the same
  mutable std::map<std::tuple<uint32_t, uint32_t, std::vector<ir::ExprId>>, bool> tell_thread_;
};

}  // namespace kiln::compiler
