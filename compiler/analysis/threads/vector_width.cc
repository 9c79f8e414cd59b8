// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/vector_width.h"

#include <algorithm>
#include <numeric>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/register_map.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;

// Divisors of the strides of all dimensions but the last that an index may step over.
int64_t RowDivisor(const ir::Module& module, const Facts& facts, const ir::Buffer& buffer, std::span<const ExprId> indices) {
  int64_t divisor = 0;
  for (size_t d = 0; d + 1 < indices.size(); ++d) {
    if (module.exprs.IsConst(indices[d], 0)) continue;
    if (buffer.space == ir::Space::kShared) {
      for (const ir::Digit& digit : buffer.layout->dim(int(d)))
        if (digit.size > 1) divisor = std::gcd(divisor, digit.stride);
      continue;
    }
    if (!buffer.strides.empty()) {
      divisor = std::gcd(divisor, facts.DivisorOf(buffer.strides[d]));
      continue;
    }
    int64_t stride = 1;
    for (size_t inner = d + 1; inner < buffer.shape.size(); ++inner) {
      stride *= std::max<int64_t>(1, std::min<int64_t>(facts.DivisorOf(buffer.shape[inner]), 1 << 16));
      stride = std::min<int64_t>(stride & -stride, 1 << 16);
    }
    divisor = std::gcd(divisor, stride);
  }
  return divisor;
}

bool LastIsContiguous(const ir::Module& module, const ir::Buffer& buffer) {
  if (buffer.space == ir::Space::kShared) {
    const auto& last = buffer.layout->dim(buffer.layout->rank() - 1);
    return last.empty() || last[0].stride == 1;
  }
  return buffer.strides.empty() || module.exprs.IsConst(buffer.strides.back(), 1);
}

}  // namespace

int64_t VectorWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, ir::BufferId id, std::span<const ExprId> indices, int64_t most,
                    int64_t alignment) {
  return VectorWidthIn(module, facts, loop, loop.vars.size() - 1, id, indices, most, alignment);
}

int64_t VectorWidthIn(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ir::BufferId id,
                      std::span<const ExprId> indices, int64_t most, int64_t alignment) {
  const ir::Buffer& buffer = module[id];
  if (ir::Bits(buffer.dtype) < 8 || indices.empty()) return 1;
  const auto is_last = [&](ExprId term) {
    const ir::ExprNode& node = module.exprs[term];
    return node.op == ir::ExprOp::kVar && node.ref == ir::Index(loop.vars[variable]);
  };
  const Linear last = LinearOf(module.exprs, indices.back());
  int64_t step = 0, divisor = std::abs(last.constant);
  // The variable must appear nowhere else: neither in an outer index nor inside of a term.
  for (size_t d = 0; d < indices.size(); ++d) {
    for (const auto& [id, coefficient] : LinearOf(module.exprs, indices[d]).terms) {
      const ExprId term{id};
      if (!is_last(term)) {
        if (Contains(module.exprs, term, is_last)) return 1;
        if (d + 1 == indices.size()) divisor = std::gcd(divisor, facts.DivisorOf(term) * coefficient);
      } else if (d + 1 < indices.size()) {
        return 1;
      } else {
        step = coefficient;
      }
    }
  }
  if (step == 0) return 0;
  if (step != 1 || !LastIsContiguous(module, buffer)) return 1;
  const int64_t bytes = ir::Bytes(buffer.dtype);
  int64_t width = std::gcd(most, 16 / bytes);  // whole vectors fill `most`
  if (buffer.space == ir::Space::kGlobal) width = std::min(width, std::max<int64_t>(1, alignment / bytes));
  width = std::gcd(width, divisor);
  if (buffer.space == ir::Space::kShared && !buffer.layout->dims().back().empty()) {
    width = std::gcd(width, buffer.layout->dims().back()[0].size);
  }
  width = std::gcd(width, RowDivisor(module, facts, buffer, indices));
  if (buffer.space == ir::Space::kGlobal && !facts.Inside(indices.back(), 1, buffer.shape.back())) {
    width = std::gcd(width, facts.DivisorOf(buffer.shape.back()));
  }
  return std::max<int64_t>(1, width & -width);
}

int64_t LoopVectorWidth(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt, int64_t alignment) {
  const auto& loop = std::get<ir::For>(stmt.op);
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  int64_t best = 1;
  for (const Access& access : AccessesOf(module, stmt)) {
    const ir::Space space = module[access.buffer].space;
    if (space != ir::Space::kGlobal && space != ir::Space::kShared) continue;
    const int64_t most = std::gcd(int64_t{16}, extents.back());
    best = std::max(best, VectorWidth(module, facts, loop, access.buffer, access.indices, most, alignment));
  }
  return best;
}

bool ProvablyInside(const ir::Module& module, const Facts& facts, ir::BufferId id, std::span<const ExprId> indices) {
  for (size_t d = 0; d < indices.size(); ++d)
    if (!facts.Inside(indices[d], 1, module[id].shape[d])) return false;
  return true;
}

}  // namespace kiln::compiler
