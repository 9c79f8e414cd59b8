// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/context.h"

#include <fmt/format.h>

#include <utility>

#include "compiler/emulator/device_emulator.h"

namespace kiln::llvm_ir {

KernelContext::KernelContext(const ir::Module& module, const ir::Kernel& kernel, const compiler::Context& request, llvm::Module& out,
                             ir::Diagnostics& diagnostics, int64_t code_before)
    : module_(module),
      kernel_(kernel),
      request_(request),
      out_(out),
      diagnostics_(diagnostics),
      builder_(out.getContext()),
      code_before_(code_before),
      facts_(module),
      divergence_(module, kernel) {
  device_ = target().emulated                           ? emulator::MakeEmulatorDevice(target(), builder_)
            : target().family == target::Family::kNvptx ? MakeNvptxDevice(target(), builder_)
                                                        : MakeAmdgpuDevice(target(), builder_);
  llvm::FastMathFlags flags;
  flags.setAllowContract();
  if (request.options.fast_math()) {
    flags.setAllowReciprocal();
    flags.setApproxFunc();
  }
  builder_.setFastMathFlags(flags);
}

void KernelContext::EnterFunction(llvm::Function* function) {
  function_ = function;
  builder_.SetInsertPoint(llvm::BasicBlock::Create(out_.getContext(), "entry", function));
  llvm::BasicBlock* body = llvm::BasicBlock::Create(out_.getContext(), "body", function);
  builder_.CreateBr(body);
  builder_.SetInsertPoint(body);
  block_thread_ = device_->ThreadIndex();
  threads_ = {.range = {0, kernel_.threads}, .thread = block_thread_};
}

Threads KernelContext::SetThreads(const Threads& threads) { return std::exchange(threads_, threads); }

// A statement that a pass inserted has no line of its own and keeps that of the statement around.
void KernelContext::EnterStmt(const ir::Stmt& stmt) {
  if (stmt.loc.line == 0) return;
  loc_ = stmt.loc;
  device_->SetLocation(stmt.loc.line);
}

bool KernelContext::IsTooLong() {
  if (Code() <= request_.max_code()) return false;
  if (!std::exchange(too_long_, true)) TooMuchCode(request_, diagnostics_, loc_);
  return true;
}

void TooMuchCode(const compiler::Context& request, ir::Diagnostics& diagnostics, ir::SourceLoc loc) {
  diagnostics.Error(fmt::format("the program becomes more than {} LLVM instructions (a branch counts as {}), the limit of max_code",
                                request.max_code(), compiler::kCodeOfBlock),
                    "use smaller tiles, more threads, and loops in place of statements or unrolled loops; with a larger max_code (kiln compile "
                    "--max-code, kiln.max_code of pass_configs) LLVM may take longer than kilnd lets a compile take",
                    loc);
}

}  // namespace kiln::llvm_ir
