// SPDX-License-Identifier: Apache-2.0
//
// What a store of a parallel loop puts into neighbouring registers: arithmetic on two neighbouring 16-bit values at once, and conversion of
// small integers to such floats by bit operations.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "compiler/llvm/lower/loop/elements.h"
#include "compiler/llvm/lower/loop/settled_values.h"
#include "compiler/llvm/lower/loop/vectors.h"

namespace kiln::llvm_ir {

class Neighbours : Part {
 public:
  Neighbours(KernelContext& context, Iterations& iterations, Addresses& addresses, Vectors& vectors, Elements& elements)
      : Part(context),
        loop_(iterations.loop()),
        addresses_(addresses),
        vectors_(vectors),
        elements_(elements),
        settled_(module(), facts(), iterations.loop()) {}

  // The store's value for registers first … first + count − 1.
  Values Eval(const ir::Store& store, int64_t first, int64_t count);

 private:
  bool IsShared(ir::ExprId comparison, int64_t count) const;
  std::span<const ir::ExprId> SharedIn(const ir::Store& store, int64_t count);
  Values Load(const ir::LoadPlan& plan, const ir::Read& read, const Loads& loads, int64_t first, int64_t count);
  Values Select(const Values& masks, const Values& loaded, const Values& other) const;
  Values EvalPacked(ir::ExprId value, int64_t packed, int64_t first, int64_t count, const Loads& loads);
  Values ConvertTogether(ir::ExprId cast, int64_t first, int64_t count, const Loads& loads);
  // Two values as a vector.
  Value* EvalPair(ir::ExprId id, int64_t first, const Loads& loads);
  Value* MakePair(ir::ExprId id, int64_t first, const Loads& loads);
  Value* SmallIntegers(ir::ExprId cast, int64_t bias, int64_t first, const Loads& loads);
  // Two integers as the halves of a word.
  Value* PackIntegers(ir::ExprId id, int64_t first, const Loads& loads);
  Value* MakeWord(ir::ExprId id, int64_t first, const Loads& loads);
  Value* MakeHalves(const ir::ExprNode& shift, int64_t first, const Loads& loads);
  Value* MakeShiftedWord(const ir::ExprNode& node, int64_t first, const Loads& loads);

  const compiler::ThreadLoop& loop_;
  Addresses& addresses_;
  Vectors& vectors_;
  Elements& elements_;
  const SettledValues settled_;
  std::map<const ir::Store*, std::vector<ir::ExprId>> shared_;  // each store stands under conditions of its own
  std::unordered_map<uint32_t, Value*> pairs_;                  // subexpressions of the pair under way, each computed once
};

}  // namespace kiln::llvm_ir
