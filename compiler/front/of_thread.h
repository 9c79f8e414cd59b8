// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/thread_sets.h"
#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::compiler {

// Which thread runs an iteration of a parallel loop is the compiler's choice. Warns once of a loop, to which `threads` come together, that
// stores where its variables say what depends on the thread that runs the iteration, or stores it in iterations that depend on the thread,
// or in a place of which the thread and the iteration say a part each. It says nothing of what is added up in a thread's place, of locals, or
// of what an iteration has put in a local.
void WarnOfThread(const ir::Module& module, const ir::For& loop, const ThreadSets& sets, const ir::ThreadRange& threads,
                  ir::Diagnostics& diagnostics);

// Each of `threads`, or only some of them (`some`), may store a value of its own in its copy of an element. Warns if threads read what others
// have written to the fragment.
void WarnOfCopies(const ir::Module& module, const ir::Stmt& stmt, const Divergence& divergence, const ThreadSets& sets,
                  const ir::ThreadRange& threads, bool some, ir::Diagnostics& diagnostics);

// The threads of a condition's two branches run at the same time. Warns if those of one branch write elements of shared memory that those of the
// other certainly access, where the numbers of the threads decide all of that. `threads` come to the branch.
void WarnOfBranches(const ir::Module& module, const ir::If& branch, const ThreadSets& sets, const ir::ThreadRange& threads,
                    ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
