// SPDX-License-Identifier: Apache-2.0
//
// Calls of functions in other languages. Each text is linked once for a kernel and the types that calls give; on the emulator once for a statement,
// whose number its accesses have.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "compiler/llvm/functions/fault.h"
#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

class Calls : Part {
 public:
  Calls(KernelContext& context, Evaluator& evaluator, Memory& memory) : Part(context), evaluator_(evaluator), memory_(memory) {}

  void Lower(const ir::Call& call);

 private:
  Values Given(const ir::Call& call);
  Value* Address(ir::BufferId buffer, ir::ExprId offset);
  void CallText(const ir::Call& call, const Values& given);
  void CallPtx(const ir::Call& call, const Values& given);
  // The argument of this number as PTX takes it; nullptr: it does not, which diagnostics say.
  Value* ForPtx(const ir::Call& call, size_t number, Value* given, int bits, bool is_float);
  llvm::Function* Linked(const ir::Call& call, const Values& given);
  llvm::Function* Declared(const ir::Function& function, std::span<Value* const> arguments);
  // Writes what the target has in the place of intrinsics that it has not.
  // `prefix`: what the names of the text's functions begin with.
  void Complete(const std::string& prefix);
  bool WriteOut(llvm::CallInst& call);
  Value* Math(ir::ExprOp op, llvm::CallInst& call);
  Value* Emulated(llvm::CallInst& call);
  void Refuse(const ir::Function& function, const Fault& fault);

  Evaluator& evaluator_;
  Memory& memory_;
  std::map<std::tuple<ir::FunctionId, uint32_t, std::vector<llvm::Type*>>, llvm::Function*> linked_;
};

}  // namespace kiln::llvm_ir
