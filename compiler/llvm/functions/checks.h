// SPDX-License-Identifier: Apache-2.0
//
// What a text of LLVM's IR may hold if a kernel is to call its function. All of it becomes part of the kernel: there is nothing to link with, and
// no place for what lives longer than a call.
#pragma once

#include <expected>
#include <optional>
#include <string>

#include "compiler/llvm/functions/fault.h"
#include "compiler/llvm/llvm_headers.h"
#include "compiler/target/target.h"
#include "ir/expr/expr.h"

namespace kiln::llvm_ir {

// Of a module of which only what `function` reaches is left.
std::expected<void, Fault> CheckReached(const llvm::Function& function, const target::Target& target);

// What the lowering writes in the place of an intrinsic's call. On every target: mathematics for which there is no instruction. On the emulator also
// threads by number, blocks, barriers and approximations.
std::optional<ir::ExprOp> MathOf(const llvm::Function& intrinsic, bool emulated);
bool IsEmulated(llvm::Intrinsic::ID intrinsic);

}  // namespace kiln::llvm_ir
