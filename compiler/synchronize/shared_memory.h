// SPDX-License-Identifier: Apache-2.0
//
// Places the shared buffers of each kernel: lifetimes, offsets, alignment. Buffers that are never live together share bytes.
#pragma once

#include "compiler/options.h"
#include "ir/module.h"

namespace kiln::compiler {

// Fails with a table of who uses what where a kernel needs more than the target has.
ir::Result SharedMemory(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics);

// Bytes a shared buffer takes, all versions.
int64_t SharedBytes(const ir::Buffer& buffer);

}  // namespace kiln::compiler
