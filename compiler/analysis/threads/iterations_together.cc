// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/iterations_together.h"

#include <algorithm>
#include <bit>

#include "compiler/analysis/definitions.h"
#include "compiler/analysis/leaves.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// By Little's law: the bandwidth of a multiprocessor times the latency of memory, about 30 KiB, over 500 threads.
constexpr int64_t kBytesInFlight = 64;
constexpr int64_t kMostTogether = 8;
constexpr int64_t kMostElements = 512;  // a choice: of all iterations that are written out, what a thread computes

// What a thread does in an iteration.
struct Work {
  int64_t bytes = 0, elements = 0;  // that it loads from global memory; that it computes
  bool other = false;               // it does more than that
};

void Add(const ir::Module& module, const ir::For& elements, Work& work) {
  ir::Walk(elements.body, [&](const ir::Stmt& stmt) {
    const auto* store = std::get_if<ir::Store>(&stmt.op);
    if (store == nullptr) {
      work.other |= !ir::IsOneOf<ir::If, ir::Let>(stmt.op);
      return;
    }
    const ir::Space space = module[store->buffer].space;
    work.other |= store->async || (space != ir::Space::kFragment && space != ir::Space::kLocal);
    const int64_t registers = elements.layout->Registers();
    work.elements += registers;
    for (const ir::Read& read : ir::ReadsOf(module.exprs, store->value)) {
      const ir::Buffer& from = module[ir::BufferId(module.exprs[read.load].ref)];
      if (from.space == ir::Space::kGlobal) work.bytes += registers * ir::Bits(from.dtype) / 8;
    }
  });
}

void Add(const ir::Module& module, const ir::Block& block, Work& work) {
  for (const ir::Stmt& stmt : block) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && IsOneStatement(*loop) && loop->layout) {
      Add(module, *loop, work);
    } else if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Add(module, branch->then_body, work);
      Add(module, branch->else_body, work);
    } else {
      work.other |= !ir::IsOneOf<ir::Let, ir::Alloc, ir::Assume>(stmt.op);
    }
  }
}

}  // namespace

int64_t IterationsTogether(const ir::Module& module, const ir::For& loop) {
  if (loop.kind != ir::LoopKind::kSerial || loop.extents.size() != 1 || LeavesLoop(loop.body)) return 1;
  Work work;
  Add(module, loop.body, work);
  if (work.other || work.bytes == 0) return 1;
  int64_t most = std::min({kMostTogether, kBytesInFlight / work.bytes, kMostElements / std::max<int64_t>(work.elements, 1)});
  most = std::min(most, module.exprs.ConstInt(loop.extents[0]).value_or(most));
  return most < 2 ? 1 : int64_t(std::bit_floor(uint64_t(most)));
}

}  // namespace kiln::compiler
