// SPDX-License-Identifier: Apache-2.0
//
// What all parts of the lowering of one kernel share: the kernel, the LLVM function that it becomes, and what is known at the statement
// under way.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/producer_slice.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/llvm/device/device.h"
#include "compiler/llvm/lower/counting_builder.h"
#include "compiler/options.h"
#include "ir/diagnostic.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::llvm_ir {

using Value = llvm::Value;
using Values = std::vector<llvm::Value*>;

// The threads that come to a statement.
struct Threads {
  ir::ThreadRange range;
  Value* thread = nullptr;                         // i32, the thread's number among these
  Value* warp_group = nullptr;                     // i32, uniform; set for all threads that compute, in a kernel with producers
  const compiler::ProducerSlice* slice = nullptr;  // what they run, where they are the producers
};

class KernelContext {
 public:
  // `code_before`: instructions of the kernels before this one.
  KernelContext(const ir::Module& module, const ir::Kernel& kernel, const compiler::Context& request, llvm::Module& out, ir::Diagnostics& diagnostics,
                int64_t code_before);

  const ir::Module& module() const { return module_; }
  const ir::Kernel& kernel() const { return kernel_; }
  const compiler::Context& request() const { return request_; }
  const target::Target& target() const { return *request_.target; }
  ir::Diagnostics& diagnostics() { return diagnostics_; }
  const compiler::Divergence& divergence() const { return divergence_; }

  llvm::Module& out() { return out_; }
  llvm::IRBuilderBase& builder() { return builder_; }
  Device& device() { return *device_; }
  llvm::Function* function() const { return function_; }
  // Code goes into `function` from here on: into a block that follows the one of allocas.
  void EnterFunction(llvm::Function* function);

  // What holds at the statement.
  compiler::Facts& facts() { return facts_; }

  const Threads& threads() const { return threads_; }
  Value* block_thread() const { return block_thread_; }  // i32, the thread's number in the block
  // The statements that follow are of these threads. Returns those of the statements before.
  Threads SetThreads(const Threads& threads);

  void EnterStmt(const ir::Stmt& stmt);
  ir::SourceLoc loc() const { return loc_; }

  // Instructions up to here.
  int64_t Code() const { return code_before_ + builder_.getInserter().code(); }
  // Whether there is more code than there may be; the first time, diagnostics say so.
  bool IsTooLong();
  bool too_long() const { return too_long_; }  // IsTooLong has said so

 private:
  const ir::Module& module_;
  const ir::Kernel& kernel_;
  const compiler::Context& request_;
  llvm::Module& out_;
  ir::Diagnostics& diagnostics_;
  CountingBuilder builder_;
  const int64_t code_before_;
  std::unique_ptr<Device> device_;
  compiler::Facts facts_;
  const compiler::Divergence divergence_;
  llvm::Function* function_ = nullptr;
  Value* block_thread_ = nullptr;
  Threads threads_;
  ir::SourceLoc loc_;
  bool too_long_ = false;
};

// Forgets, when it ends, what was assumed while it existed.
class FactsScope {
 public:
  explicit FactsScope(KernelContext& context) : context_(context), outer_(context.facts()) {}
  ~FactsScope() { context_.facts() = outer_; }
  FactsScope(const FactsScope&) = delete;
  FactsScope& operator=(const FactsScope&) = delete;

 private:
  KernelContext& context_;
  const compiler::Facts outer_;
};

// Says that the program becomes more code than max_code. `loc`: where it did; none where the functions that are inlined made the difference.
void TooMuchCode(const compiler::Context& request, ir::Diagnostics& diagnostics, ir::SourceLoc loc);

}  // namespace kiln::llvm_ir
