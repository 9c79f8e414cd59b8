// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/reduce.h"

#include "ir/op.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <set>

namespace kiln::compiler {

int64_t ReduceSteps::Partials() const {
  int64_t partials = 1;
  for (const ir::Digit& digit : exchange) partials *= digit.size;
  return partials;
}

ReduceSteps StepsOf(const ir::Layout& src, int dim, int64_t warp_size) {
  ReduceSteps steps;
  for (const ir::Digit& digit : src.dim(dim)) {
    if (digit.place != ir::Place::kThread || digit.size == 1) continue;
    // lane ^ mask stays in the warp and changes this digit alone where both the stride and the lanes that meet are powers of two.
    const bool aligned = std::has_single_bit(uint64_t(digit.stride));
    const int64_t inside = aligned ? std::gcd(std::max<int64_t>(1, warp_size / digit.stride), digit.size) : 1;
    for (int64_t step = 1; step < inside; step *= 2) steps.masks.push_back(int(step * digit.stride));
    if (inside < digit.size) steps.exchange.push_back({digit.size / inside, ir::Place::kThread, digit.stride * inside});
  }
  return steps;
}

size_t ExchangeTogether(std::span<const ir::Stmt> block) {
  std::set<ir::BufferId> written;
  size_t count = 0;
  for (const ir::Stmt& stmt : block) {
    const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
    if (reduce == nullptr || !reduce->scratch || written.contains(reduce->src.buffer)) break;
    if (reduce->cluster != std::get<ir::Reduce>(block[0].op).cluster || !written.insert(reduce->dst.buffer).second) break;
    ++count;
  }
  return count;
}

}  // namespace kiln::compiler
