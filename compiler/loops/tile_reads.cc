// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/tile_reads.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <string>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "compiler/rules/tensor.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::Space;

constexpr int64_t kVector = 16;  // bytes

class Reader {
 public:
  Reader(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt)) {
        used_.insert(access.buffer);
        if (access.write) written_.insert(access.buffer);
      }
    });
    Facts facts(module_);
    facts.EnterKernel(kernel_);
    ir::Block result;
    for (ir::Stmt& stmt : kernel_.body) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) facts.Bind(*let);
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) facts.Assume(assume->cond);
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
        behind_products_ |= CountStages(*loop);
        if (behind_products_ && loop->kind == ir::LoopKind::kParallel) Replace(stmt, *loop, facts, result);
      }
      result.push_back(std::move(stmt));
    }
    kernel_.body = std::move(result);
  }

 private:
  // Whether the loop is pipelined and holds products by groups of warps. Counts the bytes that further stages of its tiles take.
  bool CountStages(const ir::For& loop) {
    if (loop.kind != ir::LoopKind::kPipelined || loop.num_stages < 2) return false;
    bool grouped = false;
    for (const ir::Stmt& stmt : loop.body) {
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      grouped |= gemm != nullptr && RowOf(*gemm, *context_.target).IsByGroup();
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy == nullptr || module_[copy->dst.buffer].space != Space::kShared) continue;
      more_bytes_ += BytesOf(copy->dst.buffer) * (std::min<int64_t>(context_.target->costs.enough_stages, loop.num_stages) - 1);
    }
    return grouped;
  }

  // Puts a copy of each tile that the loop reads before the loop.
  void Replace(ir::Stmt& stmt, ir::For& loop, const Facts& facts, ir::Block& result) {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    std::set<ExprId> replaced;
    for (const Access& access : AccessesOf(module_, stmt)) {
      // A tensor copy reads all of its tile, so nothing may be masked in it.
      if (access.write || access.mask || written_.contains(access.buffer) || module_[access.buffer].space != Space::kGlobal) continue;
      if (replaced.contains(access.load)) continue;
      const std::optional<ir::Region> tile = TileOf(loop, extents, access);
      if (!tile || !TensorFits(module_, facts, *tile, extents, context_.pointer_alignment()) || !HasRoom(*tile)) continue;
      const BufferId staged = AddTile(*tile, extents);
      kernel_.decisions.push_back(
          {"tile_reads", access.buffer, "read from a shared tile that a tensor copy fills", "the copy runs during the last products"});
      ir::CopyPlan plan;
      plan.instruction = ir::CopyInstruction::kTensor;
      plan.vector = int32_t(kVector / ir::Bytes(module_[staged].dtype));
      const ir::Region whole{staged, {module_.exprs.Int(0), module_.exprs.Int(0)}, extents};
      result.push_back({ir::Copy{*tile, whole, 0, plan}, stmt.loc});
      const ExprId element = module_.exprs.Load(staged, module_[staged].dtype, {{module_.VarRef(loop.vars[0]), module_.VarRef(loop.vars[1])}});
      UseInstead(loop.body, access.load, element);
      replaced.insert(access.load);
    }
  }

  // The region that a loop over (row, column) reads through an access at [… row, column].
  std::optional<ir::Region> TileOf(const ir::For& loop, const std::vector<int64_t>& extents, const Access& access) {
    if (loop.vars.size() != 2 || access.indices.size() < 2) return std::nullopt;
    const std::set<ir::VarId> bound = BoundIn(loop);
    ir::Region region{access.buffer, {}, {}};
    size_t next = 0;
    for (ExprId index : access.indices) {
      const Linear linear = LinearOf(module_.exprs, index);
      const ExprId mover = module_.VarRef(loop.vars[next < 2 ? next : 0]);
      const bool moves = next < 2 && linear.Coefficient(mover) == 1;
      for (const auto& [term, coefficient] : linear.terms)
        if (!(moves && ExprId(term) == mover) && ContainsVar(module_.exprs, ExprId(term), bound)) return std::nullopt;
      if (moves) index = module_.exprs.Substitute(index, loop.vars[next], module_.exprs.Int(0, module_[loop.vars[next]].dtype));
      region.offsets.push_back(index);
      region.extents.push_back(moves ? extents[next++] : 1);
    }
    return next == 2 ? std::optional(std::move(region)) : std::nullopt;
  }

  int64_t BytesOf(BufferId id) const {
    const std::vector<int64_t> shape = module_.ShapeOf(id);
    return std::accumulate(shape.begin(), shape.end(), int64_t{ir::Bits(module_[id].dtype)}, std::multiplies<>()) / 8;
  }

  // Whether shared memory holds the tile beside the kernel's tiles and one through which results are stored, of 128 bytes of each row.
  bool HasRoom(const ir::Region& tile) const {
    const int64_t rows = tile.extents[tile.extents.size() - 2];
    int64_t bytes = more_bytes_ + kKernelBarrierRoom + rows * 128;
    bytes += rows * tile.extents.back() * ir::Bytes(module_[tile.buffer].dtype);
    for (BufferId id : used_)
      if (module_[id].space == Space::kShared) bytes += BytesOf(id);
    return bytes <= int64_t(context_.target->max_shared_bytes);
  }

  BufferId AddTile(const ir::Region& tile, const std::vector<int64_t>& extents) {
    const BufferId id = FreshOfShape(module_, tile.buffer, Space::kShared, extents, "_in");
    used_.insert(id);
    return id;
  }

  void UseInstead(ir::Block& block, ExprId from, ExprId to) {
    const auto rewrite = [&](ExprId& id) {
      id = module_.exprs.Rewrite(id, [&](ExprId leaf) { return leaf == from ? std::optional(to) : std::nullopt; });
    };
    ir::Walk(block, [&](ir::Stmt& stmt) { ir::ForEachExpr(stmt.op, rewrite); });
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  std::set<BufferId> used_, written_;
  int64_t more_bytes_ = 0;  // of tiles' further stages
  bool behind_products_ = false;
};

}  // namespace

void TileReads(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (!UsesTensorCopies(context) || context.options.disable_warp_specialization()) return;
  const size_t buffers = module.buffers.size();
  Reader(module, kernel, context).Run();
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
