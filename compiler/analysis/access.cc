// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/access.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>
#include <unordered_set>

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::Overloaded;

class Collector {
 public:
  explicit Collector(const ir::Module& module) : module_(module) {}
  std::vector<Access> Take() { return std::move(accesses_); }

  void Visit(const ir::Stmt& stmt) {
    std::visit(Overloaded{
                   [&](const ir::For& op) {
                     for (ExprId extent : op.extents) Loads(extent);
                     if (op.kind == ir::LoopKind::kParallel) Body(op.body);
                   },
                   [&](const ir::If& op) {
                     Loads(op.cond);
                     if (in_parallel_) Body(op.then_body), Body(op.else_body);
                   },
                   [&](const ir::While& op) {
                     Loads(op.cond);
                     if (in_parallel_) Body(op.body);
                   },
                   [&](const ir::Let& op) { Loads(op.value); },
                   [&](const ir::Assume& op) { Loads(op.cond); },
                   [&](const ir::Store& op) { Element(op.buffer, op.indices, op.value); },
                   [&](const ir::Atomic& op) { Element(op.buffer, op.indices, op.value); },
                   [&](const ir::Copy& op) {
                     const bool async = op.plan && op.plan->instruction == ir::CopyInstruction::kAsync;
                     Tile(op.src, false, async);
                     Tile(op.dst, true, async);
                   },
                   [&](const ir::Gemm& op) {
                     Tile(op.a, false);
                     Tile(op.b, false);
                     if (!op.clear_accum) Tile(op.c, false);
                     Tile(op.c, true);
                   },
                   [&](const ir::Fill& op) {
                     Loads(op.value);
                     Tile(op.dst, true);
                   },
                   [&](const ir::Reduce& op) {
                     Tile(op.src, false);
                     if (!op.clear) Tile(op.dst, false);
                     Tile(op.dst, true);
                   },
                   [&](const ir::PairSum& op) {
                     accesses_.push_back({op.sum, false, false, {}, true, module_.ShapeOf(op.sum), {}});
                     const ir::BufferId total = op.half.value_or(op.sum);
                     accesses_.push_back({total, true, false, {}, true, module_.ShapeOf(total), {}});
                   },
                   // Where the blocks meet is their own business.
                   [&](const ir::StreamSum& op) {
                     for (ExprId id : {op.block, op.owns, op.parts}) Loads(id);
                     for (bool write : {false, true}) accesses_.push_back({op.sum, write, false, {}, true, module_.ShapeOf(op.sum), {}});
                   },
                   [](const auto&) {},
               },
               stmt.op);
  }

 private:
  void Loads(ExprId id) { CollectLoads(module_.exprs, id, accesses_); }
  void Body(const ir::Block& block) {
    const bool outer = std::exchange(in_parallel_, true);
    for (const ir::Stmt& stmt : block) {
      Visit(stmt);
      if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop && loop->kind != ir::LoopKind::kParallel) Body(loop->body);
    }
    in_parallel_ = outer;
  }
  void Element(ir::BufferId buffer, const std::vector<ExprId>& indices, ExprId value) {
    for (ExprId index : indices) Loads(index);
    Loads(value);
    accesses_.push_back({buffer, true, false, indices, false, {}, {}});
  }
  void Tile(const ir::Region& region, bool write, bool async = false) {
    for (ExprId offset : region.offsets) Loads(offset);
    accesses_.push_back({region.buffer, write, async, region.offsets, true, region.extents, {}});
  }

  const ir::Module& module_;
  std::vector<Access> accesses_;
  bool in_parallel_ = false;
};

// What one of them is done to may be any of the others, all of it.
void AddAliases(const ir::Module& module, std::vector<Access>& accesses) {
  std::set<std::tuple<ir::BufferId, bool, bool>> seen;
  for (size_t i = 0, count = accesses.size(); i < count; ++i) {
    if (!module[accesses[i].buffer].may_alias || !seen.emplace(accesses[i].buffer, accesses[i].write, accesses[i].async).second) continue;
    for (uint32_t id = 0; id < module.buffers.size(); ++id) {
      const ir::BufferId other{id};
      if (module[other].may_alias && other != accesses[i].buffer) accesses.push_back({other, accesses[i].write, accesses[i].async, {}, true, {}, {}});
    }
  }
}

void CollectOnce(const ir::ExprPool& pool, ExprId id, std::vector<Access>& accesses, std::unordered_set<uint32_t>& seen) {
  if (!seen.insert(ir::Index(id)).second) return;
  const ir::ExprNode& node = pool[id];
  for (ExprId arg : node.Args()) CollectOnce(pool, arg, accesses, seen);
  if (node.op == ir::ExprOp::kLoad) {
    accesses.push_back({ir::BufferId(node.ref), false, false, {node.Args().begin(), node.Args().end()}, false, {}, id});
  }
}

}  // namespace

void CollectLoads(const ir::ExprPool& pool, ExprId id, std::vector<Access>& accesses) {
  std::unordered_set<uint32_t> seen;
  CollectOnce(pool, id, accesses, seen);
}

std::vector<Access> AccessesOf(const ir::Module& module, const ir::Stmt& stmt) {
  Collector collector(module);
  collector.Visit(stmt);
  std::vector<Access> accesses = collector.Take();
  AddAliases(module, accesses);
  return accesses;
}

int64_t CountAccesses(const ir::Module& module, const ir::Stmt& stmt, ir::BufferId buffer) {
  int64_t count = 0;
  const std::span<const ir::Stmt> only(&stmt, 1);
  ir::Walk(only, [&](const ir::Stmt& inner) { count += std::ranges::count(AccessesOf(module, inner), buffer, &Access::buffer); });
  return count;
}

bool WritesGlobal(const ir::Module& module, const ir::Stmt& stmt) {
  bool writes = false;
  const std::span<const ir::Stmt> only(&stmt, 1);
  ir::Walk(only, [&](const ir::Stmt& inner) {
    for (const Access& access : AccessesOf(module, inner)) writes |= access.write && module[access.buffer].space == ir::Space::kGlobal;
  });
  return writes;
}

bool ReadsItsWrites(const ir::Module& module, const ir::Stmt& loop) {
  std::set<ir::BufferId> read, written;
  for (const Access& access : AccessesOf(module, loop)) {
    const ir::Space space = module[access.buffer].space;
    if (space == ir::Space::kShared || space == ir::Space::kGlobal) (access.write ? written : read).insert(access.buffer);
  }
  return std::ranges::any_of(read, [&](ir::BufferId id) { return written.contains(id); });
}

}  // namespace kiln::compiler
