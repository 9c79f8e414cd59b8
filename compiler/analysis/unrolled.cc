// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/unrolled.h"

#include "ir/op.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::Stmt;

constexpr int64_t kMany = std::numeric_limits<int32_t>::max();

// Counts the statements of each thread's code after loops over registers, and unrolled loops within the limit, are written out. Saturates.
class Counter {
 public:
  Counter(const ir::Module& module, int64_t limit) : module_(module), limit_(limit) {}

  int64_t Count(const Block& block) const {
    int64_t sum = 0;
    for (const Stmt& stmt : block) sum = std::min(kMany, sum + Count(stmt));
    return sum;
  }

  std::optional<int64_t> Iterations(const ir::For& loop) const {
    return loop.extents.size() == 1 ? module_.exprs.ConstInt(loop.extents[0]) : std::nullopt;
  }

  // 0: it stays a loop.
  int64_t Unrolled(const ir::For& loop, int64_t body) const {
    const std::optional<int64_t> count = Iterations(loop);
    if (loop.kind != ir::LoopKind::kUnroll || !count || *count > (body == 1 ? kMaxUnrolledOfOne : kMaxUnrolledIterations)) return 0;
    const int64_t all = *count * body;
    return *count == 1 || all <= limit_ ? std::max<int64_t>(all, 1) : 0;
  }

 private:
  int64_t Count(const Stmt& stmt) const {
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) return CountLoop(*loop);
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) return 1 + Count(loop->body);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) return 1 + Count(branch->then_body) + Count(branch->else_body);
    return 1;
  }

  int64_t CountLoop(const ir::For& loop) const {
    const int64_t body = Count(loop.body);
    if (loop.kind == ir::LoopKind::kParallel) return std::min(kMany, body * (loop.layout ? loop.layout->Registers() : 1));
    const int64_t unrolled = Unrolled(loop, body);
    return unrolled == 0 ? body + 1 : unrolled;
  }

  const ir::Module& module_;
  const int64_t limit_;
};

}  // namespace

bool IsWrittenOut(const ir::Module& module, const ir::For& loop, int64_t limit) {
  const Counter counter(module, limit);
  return counter.Unrolled(loop, counter.Count(loop.body)) > 0;
}

}  // namespace kiln::compiler
