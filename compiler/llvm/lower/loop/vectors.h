// SPDX-License-Identifier: Apache-2.0
//
// Accesses of a parallel loop that take several elements at once, as compiler/accesses decided.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "compiler/llvm/lower/loop/addresses.h"

namespace kiln::llvm_ir {

class Vectors : Part {
 public:
  Vectors(KernelContext& context, Memory& memory, Iterations& iterations, const Addresses& addresses)
      : Part(context), memory_(memory), iterations_(iterations), loop_(iterations.loop()), addresses_(addresses) {}

  // The elements of registers first … first + count − 1. `masks`: of each of them, where it is read; empty: everywhere.
  // `otherwise`: what an element that is not read gives, as memory holds it; nullptr: the buffer's pad value.
  Values Load(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count, std::span<Value* const> masks = {},
              Value* otherwise = nullptr);
  void Store(const ir::StorePlan& plan, const ElementAddress& address, int64_t first, std::span<Value* const> values);
  // Each vector at once where its first and its last element are inside and to be stored (`met`: i1 of a register; nullptr: always); else one by one.
  void StoreParted(const ir::StorePlan& plan, const ElementAddress& address, int64_t first, std::span<Value* const> values,
                   const std::function<Value*(int64_t)>& met);
  // On the emulator: stops the thread where a store of `width` neighbours, the first of which belongs to register `reg`, leaves its tile.
  void CheckStore(const ElementAddress& address, int64_t reg, int64_t width, Value* exists);

 private:
  // Vectors whose elements are no neighbours in the last variable: where each register's element lies, and what is loaded so far, by the
  // vector's first register.
  struct Scattered {
    std::vector<compiler::VectorPlace> places;
    std::map<int64_t, Values> loaded;
  };
  Values LoadScattered(const ir::LoadPlan& plan, const ElementAddress& address, int64_t first, int64_t count);
  // `vectors`: of which the vector at the register is one; nullptr: it takes neighbours in the last variable.
  Values LoadNeighbours(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg, const Scattered* vectors, Value* mask,
                        Value* otherwise);
  // The same where a row may end between them.
  Values LoadClipped(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg);
  // The same where they begin anywhere in memory.
  Values LoadAround(const ir::LoadPlan& plan, const ElementAddress& address, int64_t reg);
  void StoreAt(const ir::StorePlan& plan, const ElementAddress& address, int64_t reg, Value* value);
  void CheckNeighbours(const ElementAddress& address, int64_t reg, int64_t width, const Scattered* vectors, Value* exists, bool write);
  Value* Join(std::span<Value* const> values) const;

  Memory& memory_;
  Iterations& iterations_;
  const compiler::ThreadLoop& loop_;
  const Addresses& addresses_;
  std::map<std::tuple<const ElementAddress*, ir::LoadForm, int32_t>, Scattered> scattered_;
};

}  // namespace kiln::llvm_ir
