// SPDX-License-Identifier: Apache-2.0
//
// Where the program says how large a buffer is: what an error about its size points at.
#pragma once

#include "ir/module.h"
#include "ir/print.h"
#include "ir/visit.h"

namespace kiln::compiler {

// An error at the statement that allocates the buffer; at none where a pass made it.
inline void SizeError(const ir::Module& module, const ir::Kernel& kernel, ir::BufferId buffer, std::string message, std::string hint,
                      ir::Diagnostics& diagnostics) {
  ir::SourceLoc loc;
  std::string statement;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
    if (alloc != nullptr && alloc->buffer == buffer && stmt.loc.line > 0) loc = stmt.loc, statement = ir::PrintStmt(module, stmt);
  });
  diagnostics.Error(std::move(message), std::move(hint), loc, std::move(statement));
}

}  // namespace kiln::compiler
