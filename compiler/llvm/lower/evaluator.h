// SPDX-License-Identifier: Apache-2.0
//
// Values of scalar expressions, as ir/expr.h defines them. How a load reads is not the evaluator's matter but that of its LoadSource: memory
// finds an element through indices, which are expressions themselves.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>

#include "compiler/llvm/lower/part.h"

namespace kiln::llvm_ir {

class LoadSource {
 public:
  virtual ~LoadSource() = default;
  // The value of a load expression. `arm` (i1; nullptr: always): the element is read only where it holds, if it may lie outside of its tile.
  // `mask` (the same): the element is read only where it holds.
  virtual Value* Load(ir::ExprId load, Value* arm, Value* mask) = 0;
  // The value of a load or masked expression that was loaded as part of a vector; nullptr: it was not.
  virtual Value* Loaded(ir::ExprId) const { return nullptr; }
};

class Evaluator : Part {
 public:
  explicit Evaluator(KernelContext& context) : Part(context) {}

  Value* Eval(ir::ExprId id);
  Value* EvalIndex(ir::ExprId id);  // as i64

  // The variable with this number in the module has this value from here on.
  void Bind(uint32_t var, Value* value) { vars_[var] = value; }
  void Bind(ir::VarId var, Value* value) { Bind(ir::Index(var), value); }

  // Variables bound while this exists have their former values afterwards.
  class VariableScope {
   public:
    explicit VariableScope(Evaluator& evaluator) : evaluator_(evaluator), outer_(evaluator.vars_) {}
    ~VariableScope() { evaluator_.vars_ = outer_; }
    VariableScope(const VariableScope&) = delete;
    VariableScope& operator=(const VariableScope&) = delete;

   private:
    Evaluator& evaluator_;
    const std::map<uint32_t, Value*> outer_;
  };

  // Loads read from `source` while this exists.
  class SourceScope {
   public:
    SourceScope(Evaluator& evaluator, LoadSource& source) : evaluator_(evaluator), outer_(std::exchange(evaluator.source_, &source)) {}
    ~SourceScope() { evaluator_.source_ = outer_; }
    SourceScope(const SourceScope&) = delete;
    SourceScope& operator=(const SourceScope&) = delete;

   private:
    Evaluator& evaluator_;
    LoadSource* const outer_;
  };

 private:
  Value* EvalNode(ir::ExprId id, const ir::ExprNode& node);
  Value* EvalOperation(const ir::ExprNode& node);
  Value* EvalBinary(const ir::ExprNode& node, ir::DType dtype, Value* left, Value* right);
  Value* EvalSelect(const ir::ExprNode& node);  // and "and", "or"
  Value* EvalMasked(ir::ExprId id, const ir::ExprNode& node);
  bool MayLeaveTile(ir::ExprId id) const;
  std::pair<Value*, Value*> Divide(const ir::ExprNode& node, ir::DType dtype, Value* left, Value* right);
  Value* FloorDivide(const ir::ExprNode& node, ir::DType dtype, Value* left, Value* right);  // and the remainder
  Value* Reinterpret(Value* v, ir::DType from, ir::DType to) const;

  LoadSource* source_ = nullptr;
  std::map<uint32_t, Value*> vars_;  // by variable
  // Values of subexpressions of the expression under way, each computed once.
  std::unordered_map<uint32_t, Value*> evaluated_;
  bool evaluating_ = false;
  Value* arm_ = nullptr;  // condition of the current select arm, if loads in the arm depend on it
};

}  // namespace kiln::llvm_ir
