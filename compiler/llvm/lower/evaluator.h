// SPDX-License-Identifier: Apache-2.0
//
// Values of scalar expressions, as ir/expr/expr.h defines them. How a load reads is not the evaluator's matter but that of an ElementAccess: memory
// finds an element through indices, which are expressions themselves.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>

#include "compiler/llvm/lower/part.h"

namespace kiln::llvm_ir {

// How the statements and expressions under way access single elements: as the thread (element_access.h), or as an iteration of a parallel loop
// (loop/parallel_loop.h).
class ElementAccess {
 public:
  virtual ~ElementAccess() = default;
  // The value of a load expression. `arm` (i1; nullptr: always): the element is read only where it holds, if it may lie outside of its tile.
  // `mask` (the same): the element is read only where it holds.
  virtual Value* Load(ir::ExprId load, Value* arm, Value* mask) = 0;
  // The value of a load or masked expression that was loaded as part of a vector, or of a comparison that neighbours share; nullptr: it is neither.
  virtual Value* Loaded(ir::ExprId) const { return nullptr; }
  // A statement that is an ir::Store, or an ir::Atomic on global or shared memory.
  virtual void Store(const ir::Stmt& stmt) = 0;
  virtual void Update(const ir::Stmt& stmt) = 0;
};

class Evaluator : Part {
 public:
  explicit Evaluator(KernelContext& context) : Part(context) {}

  Value* Eval(ir::ExprId id);
  Value* EvalIndex(ir::ExprId id);  // as i64
  // Whether the expression loads what may lie outside of its tile, or where no memory is: only where the program asks for the value.
  bool MayNotLoad(ir::ExprId id) const;
  // What `evaluate` evaluates is asked for only where the condition holds.
  void EvalWhere(Value* condition, const std::function<void()>& evaluate);

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

  ElementAccess& access() { return *access_; }

  // Elements are accessed through `access` while this exists.
  class AccessScope {
   public:
    AccessScope(Evaluator& evaluator, ElementAccess& access) : evaluator_(evaluator), outer_(std::exchange(evaluator.access_, &access)) {}
    ~AccessScope() { evaluator_.access_ = outer_; }
    AccessScope(const AccessScope&) = delete;
    AccessScope& operator=(const AccessScope&) = delete;

   private:
    Evaluator& evaluator_;
    ElementAccess* const outer_;
  };

 private:
  Value* EvalNode(ir::ExprId id, const ir::ExprNode& node);
  Value* EvalGroup(const ir::ExprNode& node);
  Value* EvalOperation(const ir::ExprNode& node);
  Value* EvalBinary(const ir::ExprNode& node, ir::DType dtype, Value* left, Value* right);
  Value* EvalSelect(const ir::ExprNode& node);  // and "and", "or"
  Value* EvalMasked(ir::ExprId id, const ir::ExprNode& node);
  std::pair<Value*, Value*> Divide(const ir::ExprNode& node, ir::DType dtype, Value* left, Value* right);
  Value* FloorDivide(const ir::ExprNode& node, ir::DType dtype, Value* left, Value* right);  // and the remainder
  Value* Reinterpret(Value* v, ir::DType from, ir::DType to) const;

  ElementAccess* access_ = nullptr;
  std::map<uint32_t, Value*> vars_;  // by variable
  // Values of subexpressions of the expression under way, each computed once.
  std::unordered_map<uint32_t, Value*> evaluated_;
  bool evaluating_ = false;
  Value* arm_ = nullptr;  // condition of the current select arm, if loads in the arm depend on it
};

}  // namespace kiln::llvm_ir
