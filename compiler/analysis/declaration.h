// SPDX-License-Identifier: Apache-2.0
//
// The statement in which the program gives a buffer's size. Errors about the size point there.
#pragma once

#include "ir/module.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {

// Reports an error at the statement that allocates the buffer, or without a place if a pass made the buffer.
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
