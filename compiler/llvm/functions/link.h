// SPDX-License-Identifier: Apache-2.0
//
// Text of LLVM's IR, linked into the module of the kernel that calls it.
#pragma once

#include <expected>
#include <span>
#include <string>

#include "compiler/llvm/functions/fault.h"
#include "compiler/llvm/llvm_headers.h"
#include "compiler/target/target.h"
#include "ir/module.h"

namespace kiln::llvm_ir {

// The function that the text defines, in `out`, with all that it reaches under names that begin with `name` and a '.'. All of it is inlined where
// it is called. `arguments`: the types of what a call gives; a pointer to global or shared memory also suits a parameter that is a generic
// pointer, and a bool one of 8 bits.
std::expected<llvm::Function*, Fault> LinkText(const ir::Function& function, std::span<llvm::Type* const> arguments, const target::Target& target,
                                               const std::string& name, llvm::Module& out);

// Inlines what LinkText linked.
void InlineLinked(llvm::Module& module, bool emulated);

// What a line of the text holds, as messages show it; counted from 1.
std::string LineOf(std::string_view text, uint32_t line);

}  // namespace kiln::llvm_ir
