// SPDX-License-Identifier: Apache-2.0
#include "compiler/rows/split_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Space;
using ir::Stmt;
using ir::VarId;

constexpr int64_t kUnit = 8;      // elements that stay together, for wide accesses
constexpr int64_t kResident = 3;  // blocks that keep rows in shared memory: while some wait for theirs, others compute and write

class Splitter {
 public:
  Splitter(ir::Module& module, ir::Kernel& kernel, const target::Target& target) : module_(module), kernel_(kernel), target_(target) {}

  void Run() {
    FindRow();
    if (blocks_ == 1) return;
    Check(kernel_.body);
    if (!fits_ || !reduced_ || ReadsWhatItWrites()) return;
    Number();
    Split(kernel_.body);
    for (const auto& [buffer, dim] : parts_) module_[buffer].shape[dim] = module_.exprs.Int(part_);
    kernel_.body.insert(kernel_.body.begin(), numbers_.begin(), numbers_.end());
  }

 private:
  // --- what the row is ---

  // Finds the row: the longest dimension of a fragment, where those tiles are too large that have it. Every tile's dimension of the same extent
  // belongs to it.
  void FindRow() {
    std::set<BufferId> tiles;
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt)) {
        const Space space = module_[access.buffer].space;
        if (space == Space::kFragment || space == Space::kShared) tiles.insert(access.buffer);
      }
    });
    for (BufferId id : tiles) {
      if (module_[id].space != Space::kFragment) continue;
      for (int64_t extent : module_.ShapeOf(id)) row_ = std::max(row_, extent);
    }
    // The largest fragment that a block computes, together with those that it keeps meanwhile, takes half of a multiprocessor's registers; the rest
    // is for what is computed from it. A part of the largest takes a quarter.
    const int64_t registers = int64_t(target_.registers_per_multiprocessor) * 4;
    const auto too_many = [&](const Fragments& f) {
      return blocks_ == 1 ? f.largest + f.kept > registers / 2
                          : f.largest / blocks_ > registers / 4 || (f.largest + f.kept) / blocks_ > registers / 2;
    };
    const std::vector<Fragments> demands = Demands(tiles);
    const int64_t shared = SharedBytes(tiles);
    const auto too_much = [&] { return shared / blocks_ > int64_t(target_.max_shared_bytes) / kResident; };
    const auto may_halve = [&] { return blocks_ < int64_t(target_.MaxClusterBlocks()) && row_ % (2 * blocks_ * kUnit) == 0; };
    by_registers_ = std::ranges::any_of(demands, too_many);
    while (may_halve() && (too_much() || std::ranges::any_of(demands, too_many))) blocks_ *= 2;
    if (blocks_ == 1) return;
    part_ = row_ / blocks_;
    for (BufferId id : tiles) {
      const std::vector<int64_t> shape = module_.ShapeOf(id);
      const auto at = std::ranges::find(shape, row_);
      if (at == shape.end()) continue;
      fits_ &= std::ranges::count(shape, row_) == 1;
      parts_[id] = size_t(at - shape.begin());
    }
  }

  // Of the row's tiles in shared memory.
  int64_t SharedBytes(const std::set<BufferId>& tiles) const {
    int64_t bytes = 0;
    for (BufferId id : tiles) {
      const std::vector<int64_t> shape = module_.ShapeOf(id);
      if (module_[id].space == Space::kShared && std::ranges::find(shape, row_) != shape.end()) bytes += BytesOf(id);
    }
    return bytes;
  }

  int64_t BytesOf(BufferId id) const {
    const std::vector<int64_t> shape = module_.ShapeOf(id);
    return std::accumulate(shape.begin(), shape.end(), int64_t{ir::Bits(module_[id].dtype)}, std::multiplies<>()) / 8;
  }

  // Bytes of fragments of the row: of the largest, and of those that hold a value from one iteration of a loop to the next.
  struct Fragments {
    int64_t largest = 0, kept = 0;
  };

  // A statement's accesses by its number; of loops, from which number to which.
  struct Order {
    struct Use {
      size_t at;
      bool read;
    };
    std::map<BufferId, std::vector<Use>> uses;
    std::vector<std::pair<size_t, size_t>> loops;
    size_t next = 0;
  };

  void Follow(const Block& block, Order& order) const {
    for (const Stmt& stmt : block) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        Follow(branch->then_body, order), Follow(branch->else_body, order);
      } else if (loop != nullptr) {
        const size_t begin = order.next;
        Follow(loop->body, order);
        if (loop->kind != ir::LoopKind::kParallel) order.loops.emplace_back(begin, order.next);
      } else {
        std::map<BufferId, bool> reads;
        for (const Access& access : AccessesOf(module_, stmt)) reads[access.buffer] |= !access.write;
        for (const auto& [buffer, read] : reads) order.uses[buffer].push_back({order.next, read});
        ++order.next;
      }
    }
  }

  // Of the kernel without its loops, and of each loop that is not parallel.
  std::vector<Fragments> Demands(const std::set<BufferId>& tiles) const {
    Order order;
    Follow(kernel_.body, order);
    order.loops.emplace_back(0, 0);
    std::vector<Fragments> demands;
    for (const auto& [begin, end] : order.loops) {
      Fragments& demand = demands.emplace_back();
      for (BufferId id : tiles) {
        const std::vector<int64_t> shape = module_.ShapeOf(id);
        if (module_[id].space != Space::kFragment || std::ranges::find(shape, row_) == shape.end()) continue;
        if (IsKept(order.uses[id], begin, end)) {
          demand.kept += BytesOf(id);
        } else {
          demand.largest = std::max(demand.largest, BytesOf(id));
        }
      }
    }
    return demands;
  }

  // Whether registers hold a value all through a loop: one that the loop finds there and reads, or one for whoever comes after it.
  static bool IsKept(const std::vector<Order::Use>& uses, size_t begin, size_t end) {
    const auto inside = std::ranges::find_if(uses, [&](const Order::Use& use) { return use.at >= begin; });
    if (inside == uses.end() || begin == end) return false;
    if (inside->at < end) return inside->read;
    return inside != uses.begin() && inside->read;
  }

  // --- whether every statement can be split along it ---

  void Check(const Block& block) {
    for (const Stmt& stmt : block) {
      if (const auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (loop->kind == ir::LoopKind::kParallel) {
          CheckLoop(stmt, *loop);
        } else {
          fits_ &= !TouchesParts(loop->extents[0]);
          Check(loop->body);
        }
      } else if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        fits_ &= !branch->IsNarrowed() && !TouchesParts(branch->cond);
        Check(branch->then_body), Check(branch->else_body);
      } else if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) {
        CheckReduce(*reduce);
      } else if (ir::IsOneOf<ir::Copy, ir::AnyElementwise>(stmt.op)) {
        CheckTiles(stmt.op);
      } else {
        fits_ &= ir::IsOneOf<ir::Alloc, ir::Let, ir::Assume, ir::Store>(stmt.op) && !TouchesParts(stmt);
      }
    }
  }

  // One variable of the loop must go along the row, and index each tile that has a part of it. A block runs only its part of the loop, so
  // whatever the loop writes must be a part of the row or lie in global memory.
  void CheckLoop(const Stmt& stmt, const ir::For& loop) {
    const std::optional<VarId> along = Along(loop);
    if (!along) fits_ &= !TouchesParts(stmt);
    if (!along) return;
    fits_ &= std::ranges::count(ExtentsOf(module_, loop), row_) == 1;
    for (const Access& access : AccessesOf(module_, stmt)) {
      const auto part = parts_.find(access.buffer);
      if (part != parts_.end()) fits_ &= access.indices[part->second] == module_.VarRef(*along) && Once(access, *along);
      if (part == parts_.end() && module_[access.buffer].space != Space::kGlobal) fits_ &= !access.write && !Uses(access, *along);
    }
  }

  bool Once(const Access& access, VarId along) const {
    return std::ranges::count_if(access.indices, [&](ExprId index) { return Uses(index, along); }) == 1;
  }

  void CheckReduce(const ir::Reduce& reduce) {
    const auto src = parts_.find(reduce.src.buffer), dst = parts_.find(reduce.dst.buffer);
    if (src == parts_.end()) {
      fits_ &= dst == parts_.end();
      return;
    }
    fits_ &= IsWhole(reduce.src) && (dst == parts_.end() || IsWhole(reduce.dst));
    const bool joins = size_t(reduce.dim) == src->second;
    fits_ &= !joins || ir::Bits(module_[reduce.dst.buffer].dtype) >= 32;  // the smallest that one store to another block takes
    fits_ &= joins == (dst == parts_.end());
    reduced_ |= joins;
  }

  // A copy, or what is done element by element, must be between parts, or between a part and global memory.
  void CheckTiles(const ir::Op& op) {
    bool any = false;
    ir::ForEachExpr(op, [&](ExprId id) { fits_ &= !TouchesParts(id); });
    ir::ForEachRegion(op, [&](const ir::Region& region, ir::Use) { any |= parts_.contains(region.buffer); });
    if (!any) return;
    ir::ForEachRegion(op, [&](const ir::Region& region, ir::Use) {
      fits_ &= parts_.contains(region.buffer) ? IsWhole(region) : module_[region.buffer].space == Space::kGlobal;
      fits_ &= std::ranges::count(region.extents, row_) == 1;
    });
  }

  bool IsWhole(const ir::Region& region) const { return region.extents == module_.ShapeOf(region.buffer); }

  // Another block might read what this one stores.
  bool ReadsWhatItWrites() const {
    std::set<BufferId> read, written;
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt))
        if (module_[access.buffer].space == Space::kGlobal) (access.write ? written : read).insert(access.buffer);
    });
    return std::ranges::any_of(read, [&](BufferId id) { return written.contains(id); });
  }

  bool TouchesParts(const Stmt& stmt) const {
    return std::ranges::any_of(AccessesOf(module_, stmt), [&](const Access& access) { return parts_.contains(access.buffer); });
  }
  bool TouchesParts(ExprId id) const {
    std::vector<Access> loads;
    CollectLoads(module_.exprs, id, loads);
    return std::ranges::any_of(loads, [&](const Access& load) { return parts_.contains(load.buffer); });
  }
  bool Uses(const Access& access, VarId var) const {
    return std::ranges::any_of(access.indices, [&](ExprId index) { return Uses(index, var); });
  }
  bool Uses(ExprId id, VarId var) const { return ContainsVar(module_.exprs, id, std::set{var}); }
  std::optional<VarId> Along(const ir::For& loop) const {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    const auto at = std::ranges::find(extents, row_);
    return at == extents.end() ? std::nullopt : std::optional(loop.vars[size_t(at - extents.begin())]);
  }

  // --- the parts ---

  // The number of the program's block becomes the cluster's number. The cluster's blocks are neighbours along the first axis.
  void Number() {
    const VarId old = kernel_.block_vars[0];
    const ir::DType type = module_[old].dtype;
    const auto add = [&](ir::VarKind kind, const char* name) { return FreshVar(module_, kind, type, name); };
    const VarId block = add(ir::VarKind::kBlock, "block"), cluster = add(ir::VarKind::kLet, "cluster"), rank = add(ir::VarKind::kLet, "rank");
    ir::ExprPool& pool = module_.exprs;
    const ExprId blocks = pool.Int(blocks_, type), number = module_.VarRef(block), own = module_.VarRef(cluster);
    numbers_.push_back({ir::Let{cluster, pool.Make(ExprOp::kFloorDiv, {number, blocks})}, {}});
    numbers_.push_back({ir::Let{rank, pool.Make(ExprOp::kFloorMod, {number, blocks})}, {}});
    numbers_.push_back({ir::Assume{pool.Make(ExprOp::kLt, {own, pool.Cast(type, kernel_.grid[0])})}, {}});
    Substitute(module_, kernel_.body, old, own);
    kernel_.grid[0] = pool.Mul(kernel_.grid[0], pool.Int(blocks_, pool.Type(kernel_.grid[0])));
    kernel_.block_vars[0] = block;
    kernel_.cluster.assign(kernel_.grid.size(), 1);
    kernel_.cluster[0] = uint32_t(blocks_);
    kernel_.decisions.push_back({"split_rows", std::nullopt, fmt::format("{} blocks of a cluster keep a part of the row each", blocks_),
                                 fmt::format("{} elements are too many for one block's {}", row_, by_registers_ ? "registers" : "shared memory")});
    rank_ = module_.VarRef(rank);
  }

  void Split(Block& block) {
    for (Stmt& stmt : block) {
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
        Split(branch->then_body), Split(branch->else_body);
      } else if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) {
        Split(loop->body);
      } else if (loop != nullptr && Along(*loop)) {
        SplitLoop(*loop);
      } else if (TouchesParts(stmt)) {
        SplitTile(stmt);
      } else if (StoresToMemory(stmt)) {
        const ExprId first = module_.exprs.Make(ExprOp::kEq, {rank_, module_.exprs.Int(0, module_.exprs.Type(rank_))});
        const ir::SourceLoc loc = stmt.loc;
        Block then;
        then.push_back(std::move(stmt));
        stmt = {ir::If{first, std::move(then), {}}, loc};
      }
    }
  }

  bool StoresToMemory(const Stmt& stmt) const {
    const auto stores = [&](const Access& access) { return access.write && module_[access.buffer].space == Space::kGlobal; };
    return std::ranges::any_of(AccessesOf(module_, stmt), stores);
  }

  ExprId Start(ir::DType type) { return module_.exprs.Mul(module_.exprs.Cast(type, rank_), module_.exprs.Int(part_, type)); }

  // The variable now counts within the part: indices of tiles stay as they are, everything else adds the part's start.
  void SplitLoop(ir::For& loop) {
    const VarId along = *Along(loop);
    const ExprId inside = module_.VarRef(along), there = module_.exprs.Add(Start(module_[along].dtype), inside);
    *std::ranges::find_if(loop.extents, [&](ExprId extent) { return module_.exprs.IsConst(extent, row_); }) = module_.exprs.Int(part_);
    const auto rewrite = [&](ExprId& id) {
      id = module_.exprs.Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
        const ir::ExprNode node = module_.exprs[leaf];
        if (node.op == ExprOp::kVar) return VarId(node.ref) == along ? std::optional(there) : std::nullopt;
        const auto part = parts_.find(BufferId(node.ref));
        if (part == parts_.end()) return std::nullopt;
        std::vector<ExprId> indices(node.Args().begin(), node.Args().end());
        indices[part->second] = inside;
        return module_.exprs.Load(part->first, node.dtype, indices);
      });
    };
    ir::Walk(loop.body, [&](Stmt& stmt) {
      ir::ForEachExpr(stmt.op, rewrite);
      ir::ForEachPlace(stmt.op, [&](BufferId& buffer, std::vector<ExprId>& indices, std::vector<int64_t>*) {
        if (const auto part = parts_.find(buffer); part != parts_.end()) indices[part->second] = inside;
      });
    });
  }

  void SplitTile(Stmt& stmt) {
    ir::ForEachRegion(stmt.op, [&](ir::Region& region, ir::Use) {
      const auto at = std::ranges::find(region.extents, row_);
      if (at == region.extents.end()) return;
      *at = part_;
      if (parts_.contains(region.buffer)) return;
      ExprId& offset = region.offsets[size_t(at - region.extents.begin())];
      offset = module_.exprs.Add(offset, Start(module_.exprs.Type(offset)));
    });
    if (auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) reduce->cluster = size_t(reduce->dim) == parts_.at(reduce->src.buffer);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const target::Target& target_;
  int64_t row_ = 0, part_ = 0, blocks_ = 1;
  std::map<BufferId, size_t> parts_;  // tiles, and which dimension is the row's
  bool fits_ = true, reduced_ = false, by_registers_ = false;
  Block numbers_;
  ExprId rank_{};
};

}  // namespace

void SplitRows(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const bool placed = !kernel.cluster.empty() || kernel.raster_panel > 0;
  if (!placed && context.target->Has(target::Feature::kCluster)) Splitter(module, kernel, *context.target).Run();
}

}  // namespace kiln::compiler
