// SPDX-License-Identifier: Apache-2.0
//
// How the statements of a loop may be divided into parts that run one behind the other.
#pragma once

#include <optional>
#include <set>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// What a statement does with buffers, those within it included.
struct Touches {
  std::set<ir::BufferId> reads, writes;
  std::set<ir::BufferId> whole;  // written wholly before the statement reads anything of it

  bool Has(ir::BufferId id) const { return reads.contains(id) || writes.contains(id); }
};
Touches TouchesOf(const ir::Module& module, const ir::Stmt& stmt);

// Which group each statement belongs to. Statements of one group must stay together: one needs what the other left in the iteration before, or both
// write one buffer. Group a comes before group b in `before[a]` if b reads what a writes.
class Groups {
 public:
  explicit Groups(const std::vector<Touches>& statements);

  size_t count() const { return before_.size(); }
  size_t Of(size_t statement) const { return of_[statement]; }
  // Whether the groups of the set (as bits) may come last: no other group reads what one of them writes.
  bool MayBeLast(uint32_t set) const;

 private:
  std::vector<size_t> of_;
  std::vector<std::set<size_t>> before_;
};

// Buffers of which an iteration reads what the one before left.
std::set<ir::BufferId> Carried(const std::vector<Touches>& statements);

}  // namespace kiln::compiler
