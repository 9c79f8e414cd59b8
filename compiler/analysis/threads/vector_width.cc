// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/vector_width.h"

#include <algorithm>
#include <numeric>
#include <set>

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

namespace {

// How many neighbours along one variable share an expression's value. Whatever adds to the variable is a multiple of the width, so the
// arithmetic wraps between two neighbourhoods and not within one.
class Neighbourhood {
 public:
  Neighbourhood(const ir::Module& module, const Facts& facts, ir::VarId var, int64_t most)
      : pool_(module.exprs), facts_(facts), var_(var), most_(most) {}

  int64_t Of(ExprId id) const {
    if (!Moves(id)) return most_;
    const ir::ExprNode& node = pool_[id];
    if (node.op >= ir::ExprOp::kLt && node.op <= ir::ExprOp::kGe) return OfComparison(node);
    if (node.op == ir::ExprOp::kFloorDiv) return OfQuotient(node);
    int64_t width = node.arg_count == 0 ? 1 : most_;
    for (ExprId arg : node.Args()) width = std::min(width, Of(arg));
    return width;
  }

 private:
  bool Moves(ExprId id) const { return ContainsVar(pool_, id, std::set{var_}); }

  // v < bound and v ≥ bound change at the bound; v ≤ bound and v > bound behind it.
  int64_t OfComparison(const ir::ExprNode& node) const {
    const bool left = Moves(node.args[0]), behind = node.op == ir::ExprOp::kLe || node.op == ir::ExprOp::kGt;
    if (left == Moves(node.args[1]) || !ir::IsInteger(pool_.Type(node.args[0]))) return 1;
    Linear bound = LinearOf(pool_, node.args[left ? 1 : 0]);
    if (left == behind) bound.constant = int64_t(uint64_t(bound.constant) + 1);
    return std::gcd(Aligned(LinearOf(pool_, node.args[left ? 0 : 1])), Divisor(bound));
  }

  int64_t OfQuotient(const ir::ExprNode& node) const {
    const int64_t by = pool_.ConstInt(node.args[1]).value_or(0);
    return by > 0 ? std::gcd(by & -by, Aligned(LinearOf(pool_, node.args[0]))) : 1;
  }

  // The largest power of two that divides what the sum adds to the variable; 1 where the variable moves by another step.
  int64_t Aligned(Linear linear) const {
    const auto own = std::ranges::find_if(linear.terms, [&](const auto& term) {
      const ir::ExprNode& node = pool_[ExprId(term.first)];
      return node.op == ir::ExprOp::kVar && ir::VarId(node.ref) == var_;
    });
    if (own == linear.terms.end() || own->second != 1) return 1;
    linear.terms.erase(own);
    const bool alone = std::ranges::none_of(linear.terms, [&](const auto& term) { return Moves(ExprId(term.first)); });
    return alone ? Divisor(linear) : 1;
  }

  int64_t Divisor(const Linear& linear) const {
    uint64_t bits = uint64_t(most_) | uint64_t(linear.constant);  // whose lowest divides all of them; a product that wraps keeps it
    for (const auto& [term, coefficient] : linear.terms) bits |= uint64_t(facts_.DivisorOf(ExprId(term))) * uint64_t(coefficient);
    return int64_t(bits & -bits);
  }

  const ir::ExprPool& pool_;
  const Facts& facts_;
  const ir::VarId var_;
  const int64_t most_;  // a power of two
};

}  // namespace

int64_t MaskWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, ExprId mask, int64_t most) {
  return Neighbourhood(module, facts, loop.vars[variable], most & -most).Of(mask);
}

int64_t AccessWidth(const ir::Module& module, const Facts& facts, const ir::For& loop, size_t variable, const Access& access, int64_t most,
                    int64_t alignment) {
  if (!access.mask) return VectorWidthIn(module, facts, loop, variable, access.buffer, access.indices, most, alignment);
  Facts inner = facts;
  inner.Assume(*access.mask);
  const int64_t width = VectorWidthIn(module, inner, loop, variable, access.buffer, access.indices, most, alignment);
  return std::gcd(width, MaskWidth(module, facts, loop, variable, *access.mask, std::max<int64_t>(width, 1)));
}

int64_t LoopVectorWidth(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt, int64_t alignment) {
  const auto& loop = std::get<ir::For>(stmt.op);
  const std::vector<int64_t> extents = ExtentsOf(module, loop);
  int64_t best = 1;
  for (const Access& access : AccessesOf(module, stmt)) {
    const ir::Space space = module[access.buffer].space;
    if (space != ir::Space::kGlobal && space != ir::Space::kShared) continue;
    const int64_t most = std::gcd(int64_t{16}, extents.back());
    best = std::max(best, AccessWidth(module, facts, loop, loop.vars.size() - 1, access, most, alignment));
  }
  return best;
}

bool ProvablyInside(const ir::Module& module, const Facts& facts, ir::BufferId id, std::span<const ExprId> indices) {
  for (size_t d = 0; d < indices.size(); ++d)
    if (!facts.Inside(indices[d], 1, module[id].shape[d])) return false;
  return true;
}

}  // namespace kiln::compiler
