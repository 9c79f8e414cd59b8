// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <set>

#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// Which stores of a kernel to tensors whose elements are halves of bytes change bytes that another block changes the other half of.
class BlockBytes {
 public:
  BlockBytes(const ir::Module& module, const ir::Kernel& kernel);

  // Whether blocks may differ in the halves that one store gives to bytes of one row. Blocks share none where its rows tell them apart.
  bool ShareBytes(const ir::Store& store, const Facts& facts) const;

 private:
  // The grid's variables that are the same in all blocks that come to one value of an index. Those of smaller factors and all other terms move it
  // by less than a step of these.
  std::set<uint32_t> ToldBy(ir::ExprId index, const Facts& facts) const;
  // Whether other values of `vars` raise or lower an expression by multiples of `step` alone.
  bool AddMultiples(ir::ExprId id, const std::set<uint32_t>& vars, int64_t step, const Facts& facts) const;
  bool Mentions(ir::ExprId id, const std::set<uint32_t>& vars) const;

  const ir::Module& module_;
  std::set<uint32_t> of_block_;       // variables of the kernel that differ between blocks
  std::map<uint32_t, int64_t> grid_;  // those of the grid, and how many values they have
};

}  // namespace kiln::compiler
