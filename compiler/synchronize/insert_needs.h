// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <set>

#include "compiler/synchronize/pending.h"
#include "ir/module.h"

namespace kiln::compiler {

struct Needs {
  const std::map<const ir::Stmt*, Need>& before;    // what goes in front of a statement
  const std::set<const ir::Stmt*>& after_copies;    // arrivals that follow the thread's own asynchronous copies
  const std::set<const ir::Stmt*>& after_accesses;  // those of them that follow other accesses of its own, too
  bool by_memory;                                   // only barriers with kGlobal order global memory; else all do
};
// In the block and those within it.
void InsertNeeds(ir::Kernel& kernel, ir::Block& block, const Needs& needs);

}  // namespace kiln::compiler
