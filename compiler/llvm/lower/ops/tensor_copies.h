// SPDX-License-Identifier: Apache-2.0
//
// Copies of tiles between tensors and shared memory by the tensor unit, through tensor maps, which are parameters of the kernel.
#pragma once

#include <cstdint>
#include <vector>

#include "compiler/llvm/lower/ops/rings.h"
#include "compiler/llvm/lower/ops/signals.h"
#include "compiler/rules/tensor.h"

namespace kiln::llvm_ir {

class TensorCopies : Part {
 public:
  TensorCopies(KernelContext& context, Evaluator& evaluator, Memory& memory, const Rings& rings, Signals& signals)
      : Part(context),
        evaluator_(evaluator),
        memory_(memory),
        places_(memory.places()),
        rings_(rings),
        signals_(signals),
        maps_(compiler::TensorMapsOf(context.module())) {}

  size_t MapCount() const { return maps_.size(); }
  void BindMap(Value* argument) { arguments_.push_back(argument); }  // once for each map, in their order
  void Prefetch();                                                   // of all maps
  void Lower(const ir::Copy& copy);

 private:
  Values BoxAt(const ir::Region& global, const compiler::TensorTile& tile, int64_t row, int64_t column);

  Evaluator& evaluator_;
  Memory& memory_;
  Places& places_;
  const Rings& rings_;
  Signals& signals_;
  const std::vector<compiler::TensorMap> maps_;
  Values arguments_;  // by map
};

}  // namespace kiln::llvm_ir
