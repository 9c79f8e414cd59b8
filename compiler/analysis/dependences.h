// SPDX-License-Identifier: Apache-2.0
//
// What must stay in order among the statements of a loop's body.
#pragma once

#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class Dependences {
 public:
  Dependences(const ir::Module& module, const ir::Block& body);

  // Whether the order of body[a] and body[b] matters: one of them writes what the other touches. It matters in whichever iterations they are,
  // for a buffer counts as a whole. All statements about a ring's tiles keep their order.
  bool Conflict(size_t a, size_t b) const;
  // Whether body[a] gives a variable a value that body[b] uses, which must then come from the same iteration.
  bool Binds(size_t a, size_t b) const;

 private:
  struct Touches {
    std::vector<ir::BufferId> reads, writes;  // sorted
    std::vector<ir::VarId> binds, uses;       // sorted
  };
  static bool Meet(const auto& a, const auto& b);

  std::vector<Touches> touches_;  // of each statement, those within it included
};

}  // namespace kiln::compiler
