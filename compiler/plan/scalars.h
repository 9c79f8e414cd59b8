// SPDX-License-Identifier: Apache-2.0
//
// The values of integer expressions where variables have values.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/module.h"

namespace kiln::compiler {

class Scalars {
 public:
  explicit Scalars(const ir::Module& module) : module_(&module), vars_(module.vars.size()) {}

  void Set(ir::VarId var, int64_t value);
  // The thread's number, wherever the program asks for it.
  void SetThread(int64_t number);
  // nullopt: it depends on memory, or on a variable without a value.
  std::optional<int64_t> Of(ir::ExprId id) const;
  int64_t Or(ir::ExprId id, int64_t otherwise) const { return Of(id).value_or(otherwise); }

 private:
  std::optional<int64_t> Compute(const ir::ExprNode& node) const;

  struct Known {
    uint64_t when = 0;
    std::optional<int64_t> value;
  };
  const ir::Module* module_;
  std::vector<std::optional<int64_t>> vars_;
  uint64_t now_ = 1;  // changes with each Set
  mutable std::vector<Known> known_;
};

}  // namespace kiln::compiler
