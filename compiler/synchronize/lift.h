// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/synchronize/pending.h"
#include "compiler/synchronize/visited.h"
#include "ir/module.h"

namespace kiln::compiler {

// If a statement in a loop has a need that only statements before the loop cause, the need moves to before the loop, where it costs once.
class Lift {
 public:
  using Needs = std::map<const ir::Stmt*, Need>;
  using Causes = std::map<const ir::Stmt*, std::set<const ir::Stmt*>>;

  // `causes`: for each need, the statements it keeps its own apart from. `holds`: whether the needs as they stand are enough; it may visit the
  // whole kernel.
  Lift(Needs& needs, Causes& causes, Visited& visited, std::function<bool()> holds)
      : needs_(needs), causes_(causes), visited_(visited), holds_(std::move(holds)) {}

  void Run(const ir::Block& block);
  // Drops what moved to before a loop and is covered by what stands elsewhere, as in front of an earlier loop.
  void DropCovered();
  // Drops those of the statements' needs that the others cover, all at once if that can be, else by halves.
  void Drop(std::span<const ir::Stmt* const> stmts);

 private:
  struct Move {
    const ir::Stmt *from, *to;
  };

  void Find(const ir::Stmt& loop, const ir::Block& body, std::vector<Move>& moves) const;
  void Try(std::span<const Move> moves);
  bool TryTogether(std::span<const Move> moves);
  bool DropTogether(std::span<const ir::Stmt* const> stmts);

  Needs& needs_;
  Causes& causes_;
  Visited& visited_;
  const std::function<bool()> holds_;
  std::vector<const ir::Stmt*> moved_;  // loops before which needs moved
};

}  // namespace kiln::compiler
