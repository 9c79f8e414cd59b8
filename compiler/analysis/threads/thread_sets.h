// SPDX-License-Identifier: Apache-2.0
//
// Which threads of a block enter a branch, and where they agree on a value. Any part of an expression that depends only on the thread's number
// is computed for each thread.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/threads/divergence.h"
#include "ir/expr/expr_size.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class ThreadSets {
 public:
  ThreadSets(const ir::Module& module, const Divergence& divergence) : module_(module), divergence_(divergence), sizes_(module.exprs) {}

  // Of the threads `among`, who come together, the range that sees `value` for `cond`: either all of its threads do at a time, or none does.
  // Empty: no thread ever sees it. nullopt: threads that are no range may see it, or it is not known which do.
  std::optional<ir::ThreadRange> Where(ir::ExprId cond, bool value, const ir::ThreadRange& among) const;

  // Whether the threads `among`, who come together, all see one value of the expression. False: it is not known that they do.
  bool Agree(ir::ExprId id, const ir::ThreadRange& among) const;
  // The same of all elements of a local.
  bool Agree(ir::BufferId local, const ir::ThreadRange& among) const;

  // The integer that an expression is in a thread. nullopt: not the thread alone decides it, or it is too long.
  std::optional<int64_t> At(ir::ExprId id, uint32_t thread) const;

 private:
  using Set = std::vector<bool>;  // by thread
  struct Part {
    ir::ExprId cond;
    bool value;
    std::vector<std::optional<bool>> seen = {};  // by thread, once it was asked: whether it sees that value. nullopt: it is not known
  };

  // What all must hold, so that `cond` is `value`.
  std::vector<Part> PartsOf(ir::ExprId cond, bool value) const;
  static ir::ThreadRange Span(const Set& set, const ir::ThreadRange& among);
  bool Narrow(Part& part, const ir::ThreadRange& some, const ir::ThreadRange& among, Set& set) const;

  const ir::Module& module_;
  const Divergence& divergence_;
  mutable ir::ExprSizes sizes_;
};

}  // namespace kiln::compiler
