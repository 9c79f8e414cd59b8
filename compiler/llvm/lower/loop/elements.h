// SPDX-License-Identifier: Apache-2.0
//
// Single elements in a parallel loop: what its expressions load, iteration by iteration.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>

#include "compiler/llvm/lower/loop/addresses.h"

namespace kiln::llvm_ir {

// By load or masked expression: its values for the registers under way, loaded as part of vectors. By comparison: what these registers share.
using Loads = std::map<uint32_t, Values>;
Loads Slice(const Loads& loads, int64_t first, int64_t count);

class Elements : Part {
 public:
  Elements(KernelContext& context, Evaluator& evaluator, Memory& memory, Iterations& iterations, Addresses& addresses)
      : Part(context), evaluator_(evaluator), memory_(memory), iterations_(iterations), addresses_(addresses) {}

  // The expression in the iterations of registers first … first + count − 1, one by one.
  Values Eval(ir::ExprId value, int64_t first, int64_t count, const Loads& loads);
  // In the iteration entered last.
  Value* Load(ir::ExprId load, Value* arm, Value* mask);
  Value* Loaded(ir::ExprId id) const;

 private:
  Value* WhereLoaded(ir::BufferId buffer, std::span<const ir::ExprId> indices, Value* arm);

  Evaluator& evaluator_;
  Memory& memory_;
  Iterations& iterations_;
  Addresses& addresses_;
  std::unordered_map<uint32_t, Value*> loaded_;  // by load or masked expression: of the iteration under way, as part of a vector
};

}  // namespace kiln::llvm_ir
