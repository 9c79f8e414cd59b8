// SPDX-License-Identifier: Apache-2.0
//
// Which threads of a block enter a branch. Any part of the condition that depends only on the thread's number is computed for each thread.
#pragma once

#include <optional>
#include <vector>

#include "compiler/analysis/divergence.h"
#include "ir/expr_size.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class ThreadSets {
 public:
  ThreadSets(const ir::Module& module, const Divergence& divergence) : module_(module), divergence_(divergence), sizes_(module.exprs) {}

  // The threads `among`, who come together, for which `cond` is `value`. Either all threads of the result see that value or none does. nullopt: it may be any
  // of them. Empty: no thread does.
  std::optional<ir::ThreadRange> Where(ir::ExprId cond, bool value, const ir::ThreadRange& among) const;

 private:
  using Set = std::vector<bool>;  // by thread
  struct Part {
    ir::ExprId cond;
    bool value;
  };

  // What all must hold, so that `cond` is `value`.
  std::vector<Part> PartsOf(ir::ExprId cond, bool value) const;
  static ir::ThreadRange Span(const Set& set, const ir::ThreadRange& among);
  bool Narrow(const Part& part, const ir::ThreadRange& some, const ir::ThreadRange& among, Set& set) const;

  const ir::Module& module_;
  const Divergence& divergence_;
  mutable ir::ExprSizes sizes_;
};

}  // namespace kiln::compiler
