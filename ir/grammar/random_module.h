// SPDX-License-Identifier: Apache-2.0
//
// Random well-typed modules for property tests and nothing else.
#pragma once

#include <random>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::ir {

class RandomModule {
 public:
  explicit RandomModule(uint32_t seed) : random_(seed) {}
  // With `decisions`, also what passes decide.
  Module Make(bool decisions);

 private:
  int Below(int n) { return int(random_() % uint32_t(n)); }
  bool Coin() { return Below(2) == 0; }
  template <typename T>
  T Pick(const std::vector<T>& values) {
    return values[size_t(Below(int(values.size())))];
  }

  std::string Name();
  DType NumberType();
  double FloatValue();
  ExprId Expr(DType type, int depth);
  ExprId Leaf(DType type);
  ExprId FloatExpr(DType type, int depth);
  ExprId IntExpr(DType type, int depth);
  ExprId BoolExpr(int depth);
  std::vector<ExprId> Indices(BufferId buffer);
  BufferId AddTile(Space space, DType type, std::vector<int64_t> shape);
  Ring AddRing();
  BufferId AddBarriers();  // of the program
  Region Whole(BufferId buffer);
  Layout SomeLayout(const std::vector<int64_t>& shape);
  void Header();
  Kernel MakeKernel();
  Block MakeBlock(int depth);
  Op MakeOp(int depth);
  Op MakeBranch(int depth);
  Op MakeLoop(int depth);
  Op MakeTileOp();
  class ElementwiseFields;
  template <typename T>
  Op MakeElementwise();
  StorePlan SomePlan(const Store& store, size_t vars);
  Op MakeParallel();
  Op MakeAtomic();
  Op MakeGemm();
  Op MakeCall();

  std::mt19937 random_;
  bool decisions_ = false;
  // At a block of the cluster, of which there is one.
  std::optional<ExprId> Rank() { return clustered_ && Coin() ? std::optional(module_.exprs.Int(0)) : std::nullopt; }

  bool clustered_ = false;
  ThreadRange threads_;       // that may come to the statement
  uint32_t all_threads_ = 0;  // of the kernel
  Module module_;
  std::vector<VarId> ints_, floats_;  // in scope: i32, f32
  std::vector<BufferId> buffers_;     // in scope
  Block* block_ = nullptr;            // being filled; allocs go before what uses them
};

}  // namespace kiln::ir
