// SPDX-License-Identifier: Apache-2.0
//
// What the page's panels say of a statement.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::cli {

// "copy": moves a tile between memories. "store": leaves for global memory. "product". "arithmetic". "wait": for copies, products or threads.
// "control": loops, branches, names. A loop over the threads is what its body does.
std::string_view KindOf(const ir::Module& module, const ir::Stmt& stmt);

// The store of a loop over the threads that has just one; else null.
const ir::Store* OnlyStore(const ir::Stmt& stmt);

struct Touch {
  ir::BufferId buffer;
  bool reads = false, writes = false;
};
// Each buffer that a statement, or what a loop over the threads does, reads or writes; once. Of other loops and branches: their headers.
std::vector<Touch> TouchesOf(const ir::Module& module, const ir::Stmt& stmt);

// The statement on one line, without its body; of a loop over the threads what it does, too.
std::string Line(const ir::Module& module, const ir::Stmt& stmt);

bool IsParallel(const ir::Stmt& stmt);

}  // namespace kiln::cli
