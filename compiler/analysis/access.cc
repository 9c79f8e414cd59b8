// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/access.h"

#include "ir/visit.h"

#include <algorithm>
#include <set>
#include <span>
#include <tuple>

#include "compiler/analysis/definitions.h"
#include "compiler/analysis/grid_barriers.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;

// Copies of this kind are under way until something waits for them.
bool IsAsync(const ir::Op& op) {
  if (const auto* store = std::get_if<ir::Store>(&op)) return store->async;
  const auto* copy = std::get_if<ir::Copy>(&op);
  return copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kAsync;
}

// Lists what a statement reads, then what it writes. The body counts for a parallel loop, but not for other compound statements.
class Collector : public ir::FieldVisitor {
 public:
  explicit Collector(const ir::Module& module) : module_(module) {}
  std::vector<Access> Take() { return std::move(accesses_); }

  void Visit(const ir::Stmt& stmt) {
    const bool async = std::exchange(async_, IsAsync(stmt.op));
    std::vector<Access> writes = std::exchange(writes_, {});
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const bool parallel = std::exchange(in_parallel_, in_parallel_ || (loop != nullptr && IsOneStatement(*loop)));
    ir::Fields(stmt.op, *this);
    in_parallel_ = parallel;
    accesses_.insert(accesses_.end(), writes_.begin(), writes_.end());
    writes_ = std::move(writes);
    async_ = async;
  }

  void Evaluates(ExprId id, std::string_view) {
    const size_t first = accesses_.size();
    Loads(id);
    // Of an asynchronous store, the element is still to be read; its indices and its mask have been.
    const ir::ExprNode& node = module_.exprs[id];
    const ExprId moved = async_ && ir::Chooses(node.op) ? node.args[1] : id;
    for (size_t i = first; i < accesses_.size(); ++i) accesses_[i].async = async_ && accesses_[i].load == moved;
  }
  void Region(const ir::Region& region, std::string_view, ir::Use use) {
    for (ExprId offset : region.offsets) Loads(offset);
    Add({region.buffer, false, async_, region.offsets, true, region.extents, {}}, use);
  }
  void Element(ir::BufferId buffer, const std::vector<ExprId>& indices, ir::Use use) {
    for (ExprId index : indices) Loads(index);
    Add({buffer, false, async_, indices, false, {}, {}}, use);
  }
  void Whole(ir::BufferId buffer, std::string_view, ir::Use use) {
    std::vector<int64_t> extents = module_[buffer].space == ir::Space::kGlobal ? std::vector<int64_t>() : module_.ShapeOf(buffer);
    Add({buffer, false, false, {}, true, std::move(extents), {}}, use);
  }
  void Body(const ir::Block& block, std::string_view) {
    if (!in_parallel_) return;
    for (const ir::Stmt& stmt : block) Visit(stmt);
  }

  void Loads(ExprId id) { CollectLoads(module_.exprs, id, accesses_); }

 private:
  // A read and a write in one step count as a write only.
  void Add(Access access, ir::Use use) {
    if (use == ir::Use::kRead || use == ir::Use::kUpdate) accesses_.push_back(access);
    access.write = true;
    if (use != ir::Use::kRead) writes_.push_back(std::move(access));
  }

  const ir::Module& module_;
  std::vector<Access> accesses_, writes_;  // writes_: of the statement under way
  bool in_parallel_ = false, async_ = false;
};

// An access to one tensor of those that may alias may touch any element of the others.
void AddAliases(const ir::Module& module, std::vector<Access>& accesses) {
  std::set<std::tuple<ir::BufferId, bool, bool>> seen;
  for (size_t i = 0, count = accesses.size(); i < count; ++i) {
    if (!module[accesses[i].buffer].may_alias || !seen.emplace(accesses[i].buffer, accesses[i].write, accesses[i].async).second) continue;
    for (uint32_t id = 0; id < module.buffers.size(); ++id) {
      const ir::BufferId other{id};
      if (!module[other].may_alias || other == accesses[i].buffer) continue;
      accesses.push_back({other, accesses[i].write, accesses[i].async, {}, true, {}, {}});
      accesses.back().of_alias = true;
    }
  }
}

}  // namespace

void CollectLoads(const ir::ExprPool& pool, ExprId id, std::vector<Access>& accesses) {
  for (const ir::Read& read : ir::ReadsOf(pool, id)) {
    const ir::ExprNode& node = pool[read.load];
    accesses.push_back({ir::BufferId(node.ref), false, false, {node.Args().begin(), node.Args().end()}, false, {}, read.load, read.mask});
  }
}

std::optional<ir::BufferId> ScratchOf(const ir::Stmt& stmt) {
  if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) return reduce->cluster ? std::nullopt : reduce->scratch;
  if (const auto* sum = std::get_if<ir::PairSum>(&stmt.op)) return sum->scratch;
  return std::nullopt;
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
  return GivesOld(loop) || std::ranges::any_of(read, [&](ir::BufferId id) { return written.contains(id); });
}

bool HasGaps(const ir::Module& module, ir::BufferId id) {
  constexpr double kMostBytes = double(int64_t{1} << 48);  // what addresses of a GPU's memory reach
  const ir::Buffer& buffer = module[id];
  if (buffer.space != ir::Space::kGlobal) return false;
  double bytes = ir::Bits(buffer.dtype) / 8.0;
  for (ir::ExprId extent : buffer.shape) bytes *= double(module.exprs.ConstInt(extent).value_or(1));
  return bytes > kMostBytes;
}

namespace {

bool AnyAtomic(const ir::Stmt& stmt, auto is) {
  bool any = false;
  ir::WalkWithin(stmt, [&](const ir::Stmt& inner) {
    const auto* atomic = std::get_if<ir::Atomic>(&inner.op);
    any |= atomic != nullptr && is(*atomic);
  });
  return any;
}

}  // namespace

bool GivesOld(const ir::Stmt& stmt) {
  return AnyAtomic(stmt, [](const ir::Atomic& atomic) { return atomic.old.has_value(); });
}
bool Acquires(const ir::Stmt& stmt) {
  return AnyAtomic(stmt, [](const ir::Atomic& atomic) { return atomic.Acquires(); });
}
bool Releases(const ir::Stmt& stmt) {
  return AnyAtomic(stmt, [](const ir::Atomic& atomic) { return atomic.Releases(); });
}
bool MeetsOtherBlocks(const ir::Kernel& kernel) {
  return std::ranges::any_of(kernel.body, [](const ir::Stmt& stmt) { return GivesOld(stmt) || Acquires(stmt) || Releases(stmt); }) ||
         OrdersBlocks(kernel);
}

}  // namespace kiln::compiler
