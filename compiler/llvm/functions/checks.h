// SPDX-License-Identifier: Apache-2.0
//
// What a text of LLVM's IR may hold if a kernel is to call its function. All of it becomes part of the kernel: there is nothing to link with, and
// no place for what lives longer than a call.
#pragma once

#include <expected>
#include <string>

#include "compiler/llvm/functions/fault.h"
#include "compiler/llvm/llvm_headers.h"
#include "compiler/target/target.h"

namespace kiln::llvm_ir {

// Of a module of which only what `function` reaches is left.
std::expected<void, Fault> CheckReached(const llvm::Function& function, const target::Target& target);

// What the emulator's lowering has for it: threads by number, blocks, barriers.
bool IsEmulated(llvm::Intrinsic::ID intrinsic);

}  // namespace kiln::llvm_ir
