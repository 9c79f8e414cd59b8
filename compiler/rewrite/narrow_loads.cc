// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/narrow_loads.h"

#include <algorithm>

#include "compiler/rules/tensor.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Space;

class Widener {
 public:
  Widener(ir::Module& module, ir::For& loop, const Facts& facts, const AccessCounts& uses, const Context& context)
      : module_(module), loop_(loop), facts_(facts), uses_(uses), context_(context) {}

  bool IsLoad(const ir::Copy& copy) const {
    return module_[copy.src.buffer].space == Space::kGlobal && module_[copy.dst.buffer].space == Space::kShared;
  }

  bool Fits(const ir::Copy& copy) {
    const ir::Buffer &src = module_[copy.src.buffer], &dst = module_[copy.dst.buffer];
    const int64_t row = copy.dst.extents.back();
    if (src.dtype != dst.dtype || copy.signals || copy.dst.extents != module_.ShapeOf(copy.dst.buffer) || copy.src.extents.back() != row)
      return false;
    if (ir::Bits(dst.dtype) % 8 != 0 || kNarrowRow % (row * ir::Bytes(dst.dtype)) != 0) return false;
    // Of a wider row, the tile's own elements are some neighbours, and the products behind the copy can tell which.
    const ExprId offset = copy.src.offsets.back();
    if (facts_.DivisorOf(offset) % row != 0 || !ir::LoadsOf(module_.exprs, offset).empty() || !OnlyProductsRead(copy)) return false;
    const ir::Copy wide = Widened(copy);
    return NarrowTensorFits(module_, facts_, wide.src, wide.dst.extents, context_.pointer_alignment());
  }

  void Widen(ir::Copy& copy) {
    const ExprId before = copy.src.offsets.back();
    const BufferId tile = copy.dst.buffer;
    const int64_t row = copy.dst.extents.back();
    copy = Widened(copy);
    if (copy.dst.extents.back() == row) return;
    const ExprId from = module_.exprs.Make(ExprOp::kFloorMod, {before, module_.exprs.Int(copy.dst.extents.back(), module_.exprs.Type(before))});
    module_[tile].shape.back() = module_.exprs.Int(copy.dst.extents.back());
    ir::Walk(loop_.body, [&](ir::Stmt& stmt) {
      auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr) return;
      ir::ForEachRegion(*gemm, [&](ir::Region& region, ir::Use) {
        if (region.buffer != tile) return;
        ExprId& offset = region.offsets.back();
        offset = module_.exprs.Add(offset, module_.exprs.Cast(module_.exprs.Type(offset), from));
      });
    });
  }

 private:
  // From the multiple of a box's row on.
  ir::Copy Widened(ir::Copy copy) {
    const int64_t row = kNarrowRow / ir::Bytes(module_[copy.dst.buffer].dtype);
    if (copy.dst.extents.back() == row) return copy;
    ExprId& offset = copy.src.offsets.back();
    const ExprId each = module_.exprs.Int(row, module_.exprs.Type(offset));
    offset = module_.exprs.Mul(module_.exprs.Make(ExprOp::kFloorDiv, {offset, each}), each);
    copy.src.extents.back() = copy.dst.extents.back() = row;
    return copy;
  }

  bool OnlyProductsRead(const ir::Copy& copy) const {
    int64_t reads = 0;
    bool filled = false;
    for (const ir::Stmt& stmt : loop_.body) {
      filled |= std::get_if<ir::Copy>(&stmt.op) == &copy;
      if (filled && std::holds_alternative<ir::Gemm>(stmt.op)) reads += CountAccesses(module_, stmt, copy.dst.buffer);
    }
    const AccessCount& count = uses_.at(copy.dst.buffer);
    return reads > 0 && count.reads == reads && count.writes == 1;
  }

  ir::Module& module_;
  ir::For& loop_;
  const Facts& facts_;
  const AccessCounts& uses_;
  const Context& context_;
};

}  // namespace

std::vector<ir::Copy*> WidenLoads(ir::Module& module, ir::For& loop, const Facts& facts, const AccessCounts& uses, const Context& context,
                                  const std::function<bool(const ir::Copy&)>& is_load) {
  Widener widener(module, loop, facts, uses, context);
  std::vector<ir::Copy*> narrow;
  bool others = false;
  for (ir::Stmt& stmt : loop.body) {
    auto* copy = std::get_if<ir::Copy>(&stmt.op);
    if (copy == nullptr || !widener.IsLoad(*copy)) continue;
    if (is_load(*copy)) {
      others = true;
    } else if (widener.Fits(*copy)) {
      narrow.push_back(copy);
    } else {
      return {};
    }
  }
  if (!others) return {};
  for (ir::Copy* copy : narrow) widener.Widen(*copy);
  return narrow;
}

}  // namespace kiln::compiler
