// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/dense.h"

#include <utility>

#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"

namespace kiln::compiler {
namespace {

using ir::DType;
using ir::ExprId;
using ir::ExprOp;

class Expansion {
 public:
  Expansion(ir::Module& module, const ir::Gemm& gemm)
      : module_(module), exprs_(module.exprs), gemm_(gemm), dtype_(module[gemm.a.buffer].dtype), sparsity_(dtype_) {}

  // The element at (row, k): that one of its group's kept elements which was there, or 0.
  ExprId At(ExprId row, ExprId k) {
    const ExprId group = Div(k, sparsity_.group), place = Mod(k, sparsity_.group), bits = BitsOf(row, k);
    ExprId value = ir::IsFloat(dtype_) ? exprs_.Float(0, dtype_) : exprs_.Int(0, dtype_);
    for (int i = sparsity_.Kept(); i-- > 0;) {
      const ExprId kept = exprs_.Add(exprs_.Mul(group, exprs_.Int(sparsity_.Kept())), exprs_.Int(i));
      value = exprs_.Select(exprs_.Make(ExprOp::kEq, {Place(bits, i), place}), Load(gemm_.a, row, kept, gemm_.transpose_a), value);
    }
    return value;
  }

 private:
  ExprId Div(ExprId a, int64_t by) { return exprs_.Make(ExprOp::kFloorDiv, {a, exprs_.Int(by)}); }
  ExprId Mod(ExprId a, int64_t by) { return exprs_.Make(ExprOp::kFloorMod, {a, exprs_.Int(by)}); }
  ExprId Word(int64_t value) { return exprs_.Int(value, DType::kU32); }

  // The metadata from the four bits for the group of k on.
  ExprId BitsOf(ExprId row, ExprId k) {
    const int64_t each = sparsity_.Each(module_[gemm_.metadata->buffer].dtype);
    const ExprId word = exprs_.Cast(DType::kU32, Load(*gemm_.metadata, row, Div(k, each), gemm_.transpose_metadata));
    const ExprId group = Div(Mod(k, each), sparsity_.group);
    return exprs_.Make(ExprOp::kShr, {word, exprs_.Cast(DType::kU32, exprs_.Mul(group, exprs_.Int(ir::Sparsity::kBits)))});
  }

  // Of the group's kept element `i`. Of two 32-bit elements, the first half's place says which is kept.
  ExprId Place(ExprId bits, int i) {
    const ExprId two = exprs_.Make(ExprOp::kBitAnd, {exprs_.Make(ExprOp::kShr, {bits, Word(2 * i)}), Word(3)});
    return exprs_.Cast(DType::kI32, sparsity_.Kept() == 1 ? exprs_.Make(ExprOp::kShr, {two, Word(1)}) : two);
  }

  ExprId Load(const ir::Region& region, ExprId row, ExprId column, bool transposed) {
    std::vector<ExprId> indices = region.offsets;
    const size_t rank = indices.size();
    const auto add = [&](size_t d, ExprId more) { indices[d] = exprs_.Add(indices[d], exprs_.Cast(exprs_.Type(indices[d]), more)); };
    add(rank - (transposed ? 1 : 2), row), add(rank - (transposed ? 2 : 1), column);
    return exprs_.Load(region.buffer, module_[region.buffer].dtype, indices);
  }

  ir::Module& module_;
  ir::ExprPool& exprs_;
  const ir::Gemm& gemm_;
  const DType dtype_;
  const ir::Sparsity sparsity_;
};

}  // namespace

ir::For MakeDense(ir::Module& module, ir::Gemm& gemm) {
  const size_t rank = gemm.a.extents.size();
  std::vector<int64_t> shape = {gemm.a.extents[rank - 2], gemm.a.extents[rank - 1]};
  shape[gemm.transpose_a ? 0 : 1] *= 2;
  const ir::BufferId tile = FreshOfShape(module, gemm.a.buffer, ir::Space::kShared, shape, "_dense");
  ElementLoop element = MakeElementLoop(module, shape, "d");
  std::vector<ExprId>& at = element.indices;
  const ExprId value = Expansion(module, gemm).At(at[gemm.transpose_a ? 1 : 0], at[gemm.transpose_a ? 0 : 1]);
  element.loop.body.push_back({ir::Store{tile, at, value}, {}});
  gemm.a = {tile, {module.exprs.Int(0), module.exprs.Int(0)}, shape};
  gemm.metadata.reset();
  gemm.transpose_metadata = false;
  return std::move(element.loop);
}

}  // namespace kiln::compiler
