// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/register_budget.h"

#include <optional>
#include <set>
#include <string>

#include "compiler/analysis/access.h"
#include "compiler/analysis/declaration.h"

namespace kiln::compiler {

void CheckRegisters(const ir::Module& module, const ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics) {
  // Beyond this even spilling helps nobody, and code grows with every register.
  constexpr int64_t kMaxWords = 2048;
  int64_t words = 0, most = 0;
  std::optional<ir::BufferId> largest;
  std::string table;
  std::set<ir::BufferId> used;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module, stmt)) used.insert(access.buffer);
  });
  for (ir::BufferId id : used) {
    const ir::Buffer& buffer = module[id];
    if (buffer.space != ir::Space::kFragment || !buffer.layout) continue;
    const int64_t own = (buffer.layout->Registers() * ir::Bits(buffer.dtype) + 31) / 32;
    words += own;
    if (own > most) most = own, largest = id;
    table += "\n  " + buffer.name + ": " + std::to_string(own);
  }
  if (words <= kMaxWords) return;
  SizeError(module, kernel, *largest,
            "fragments take " + std::to_string(words) + " registers of each thread; a thread of " + std::string(context.target->name) +
                " has " + std::to_string(context.target->registers_per_thread) + ":" + table,
            "use smaller tiles or more threads", diagnostics);
}

}  // namespace kiln::compiler
