// SPDX-License-Identifier: Apache-2.0
//
// Options that LLVM's backends read from its command line, for whoever makes machine code: for GPUs, or for the emulator's host.
#pragma once

namespace kiln::llvm_ir {

// Before each module: lld takes options of LLVM back. They are the process's, so one thread may compile at a time.
void SetBackendOptions();

}  // namespace kiln::llvm_ir
