// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/split_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Stmt;

class Splitter {
 public:
  Splitter(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Visit(Block& block) {
    for (size_t i = 0; i < block.size(); ++i) {
      if (auto* branch = std::get_if<ir::If>(&block[i].op); branch != nullptr && !branch->IsNarrowed()) {
        Visit(branch->then_body), Visit(branch->else_body);
      }
      if (auto* repeat = std::get_if<ir::While>(&block[i].op)) Visit(repeat->body);
      auto* loop = std::get_if<ir::For>(&block[i].op);
      if (loop == nullptr || loop->kind == ir::LoopKind::kParallel) continue;
      Visit(loop->body);
      std::vector<ir::Gemm*> gemms;
      ir::Walk(loop->body, [&](Stmt& stmt) {
        if (auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) gemms.push_back(gemm);
      });
      std::vector<Stmt> joins;
      for (ir::Gemm* gemm : gemms) {
        const int64_t parts = Parts(*gemm);
        // A product counts twice: it reads its sum and writes it.
        const bool alone = parts > 1 && CountAllAccesses(module_, loop->body)[gemm->c.buffer].all() == 2;
        ir::Fill* fill = alone ? FillBefore(block, i, gemm->c.buffer) : nullptr;
        if (fill != nullptr && !gemm->clear_accum) joins.push_back({Split(*gemm, *fill, parts), block[i].loc});
      }
      block.insert(block.begin() + ptrdiff_t(i) + 1, joins.begin(), joins.end());
    }
  }

 private:
  // The number of parts of k: one for each set of warp groups that the tile can feed.
  int64_t Parts(const ir::Gemm& gemm) const {
    const target::MmaInstruction& mma = RowOf(gemm, *context_.target);
    if (!mma.IsByGroup() || gemm.c.extents.size() != 2) return 1;  // the parts come first of three
    const WarpGrid grid = GridOf(gemm, kernel_.threads, *context_.target);
    const int64_t parts = grid.warps / (grid.warps_m * grid.warps_n);
    const GemmShape shape = ShapeOf(gemm);
    // The sums pass through shared memory; half of it stays for the tiles.
    const bool fits = parts * shape.m * shape.n * ir::Bits(mma.c) / 8 <= int64_t(context_.target->max_shared_bytes) / 2;
    return fits && shape.k / mma.k % parts == 0 && WgmmaReadsParts(module_, gemm, shape.k / parts, /*staged=*/true) ? parts : 1;
  }

  // The statement of `block` that sets the whole buffer to zero, the last to touch it before statement `end`.
  ir::Fill* FillBefore(Block& block, size_t end, BufferId buffer) const {
    const Stmt* zeroed = ZeroedBy(module_, std::span(block).first(end), buffer);
    return zeroed == nullptr ? nullptr : std::get_if<ir::Fill>(&block[size_t(zeroed - block.data())].op);
  }

  ir::Reduce Split(ir::Gemm& gemm, ir::Fill& fill, int64_t parts) {
    const ir::Region whole = gemm.c;
    ir::Buffer buffer{ir::Space::kFragment, module_[whole.buffer].dtype, module_[whole.buffer].shape};
    buffer.shape.insert(buffer.shape.begin(), module_.exprs.Int(parts));
    ir::Region split{FreshBuffer(module_, std::move(buffer), module_[whole.buffer].name + "_parts"), whole.offsets, whole.extents};
    split.offsets.insert(split.offsets.begin(), module_.exprs.Int(0));
    split.extents.insert(split.extents.begin(), parts);
    gemm.plan->warps_k = int32_t(parts);
    kernel_.decisions.push_back({"split_k", whole.buffer, fmt::format("groups of warps sum {} parts of k, which a reduction joins", parts),
                                 "the tile feeds fewer groups than the block has"});
    gemm.c = split;
    fill.dst = split;
    return ir::Reduce{.kind = ir::ReduceKind::kSum, .src = split, .dst = whole, .dim = 0};
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
};

}  // namespace

void SplitK(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const size_t buffers = module.buffers.size();
  Splitter(module, kernel, context).Visit(kernel.body);
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
