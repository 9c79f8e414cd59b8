// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/pipeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <unordered_map>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/leaves.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/loops/gathers.h"
#include "compiler/loops/row_layouts.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/lifetimes.h"
#include "compiler/rewrite/packing.h"
#include "compiler/rewrite/versions.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::Space;
using ir::Stmt;

// Visits a statement and those within it; a parallel loop is one statement.
void WalkApart(const Stmt& stmt, const std::function<void(const Stmt&)>& visit) {
  visit(stmt);
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop != nullptr && IsOneStatement(*loop)) return;
  ir::ForEachBody(stmt.op, [&](const Block& block) {
    for (const Stmt& inner : block) WalkApart(inner, visit);
  });
}

// What accesses a buffer.
struct Uses {
  int64_t all = 0, writes = 0;
  size_t first = 0;  // of the block's statements
};
using UsesOf = std::unordered_map<BufferId, Uses>;

UsesOf UsesIn(const ir::Module& module, const Block& block) {
  UsesOf uses;
  for (size_t i = 0; i < block.size(); ++i) {
    const auto add = [&](const Stmt& stmt) {
      for (const Access& access : AccessesOf(module, stmt)) {
        Uses& of = uses.try_emplace(access.buffer, Uses{.first = i}).first->second;
        ++of.all, of.writes += access.write;
      }
    };
    WalkApart(block[i], add);
  }
  return uses;
}

Uses At(const UsesOf& uses, BufferId buffer) {
  const auto found = uses.find(buffer);
  return found == uses.end() ? Uses{} : found->second;
}

// Whether the body assumes something that need not hold in each iteration of the loop: statements may leave the iteration, or the loop,
// before.
bool MayLeaveBeforeAssume(const Block& body) {
  return LeavesLoop(body) && std::ranges::any_of(body, [](const Stmt& stmt) { return std::holds_alternative<ir::Assume>(stmt.op); });
}

// One pipelined loop, taken apart.
class LoopPipeliner {
 public:
  // `everywhere`: what accesses the kernel's buffers, this loop included. `threads`: those that come to the loop.
  LoopPipeliner(ir::Module& module, ir::Kernel& kernel, const Context& context, const UsesOf& everywhere, Lifetimes& lives,
                const ir::ThreadRange& threads, ir::For loop, ir::SourceLoc loc)
      : module_(module),
        kernel_(kernel),
        context_(context),
        everywhere_(everywhere),
        lives_(lives),
        threads_(threads),
        loop_(std::move(loop)),
        loc_(loc) {}

  // What replaces the loop.
  Block Run() {
    loop_.kind = ir::LoopKind::kSerial;
    SplitCopies();
    FitStages();
    loop_.num_stages = 0;
    if (copies_.empty() || stages_ < 2) {
      Block block;
      RestoreCopies();
      block.push_back({std::move(loop_), loc_});
      return block;
    }
    CountKinds();
    Block result;
    FixExtent(result);
    TakeAllocs(loop_.body, result);
    Prologue(result);
    loop_.body = Body();
    for (const Rows& rows : rows_)
      kernel_.decisions.push_back({"pipeline", rows.rows, "loaded ahead of the gathers", "they find their rows in it", rows.load.loc});
    for (const Copy& copy : copies_) {
      if (Versions(copy) > 1) AddVersions(module_, copy.into, Versions(copy));
      lives_.buffers[copy.into] = Around();
      const std::string_view how = copy.async ? "by cp.async" : "through registers", s = Versions(copy) == 1 ? "" : "s";
      kernel_.decisions.push_back(
          {"pipeline", copy.into, fmt::format("{} version{}, filled {}", Versions(copy), s, how), "copies of later iterations run during this one"});
    }
    if (has_async_) {
      kernel_.decisions.push_back({"pipeline", std::nullopt, fmt::format("waits for all but {} of the async copy groups", stages_ - 2), "", loc_});
    }
    result.push_back({std::move(loop_), loc_});
    return result;
  }

 private:
  // A fragment that an iteration loads, and finds the rows of its gathers in. `ahead` has it for the gathers of a later iteration.
  struct Rows {
    Stmt load;
    BufferId rows, ahead;
  };

  struct Copy {
    Stmt stmt;        // a Copy, or an asynchronous gather
    BufferId into;    // the tile
    size_t position;  // in the body
    bool async;
    BufferId staged{};  // fragment that holds the next tile of a copy through registers

    const ir::Copy& op() const { return std::get<ir::Copy>(stmt.op); }
  };

  int64_t Versions(const Copy& copy) const { return copy.async ? stages_ : versions_; }

  // The loop ends where it said at its begin: iterations that compare with its end must not see what it may change in memory.
  void FixExtent(Block& before) {
    ExprId& extent = loop_.extents[0];
    std::vector<Access> loads;
    CollectLoads(module_.exprs, extent, loads);
    if (loads.empty()) return;
    const ir::VarId end = FreshVar(module_, ir::VarKind::kLet, module_.exprs.Type(extent), "end");
    before.push_back({ir::Let{end, extent}, loc_});
    extent = module_.VarRef(end);
  }

  // --- which copies may run ahead ---

  void SplitCopies() {
    const UsesOf inside = UsesIn(module_, loop_.body);
    acquires_ = std::ranges::any_of(loop_.body, Acquires);
    for (const Stmt& stmt : loop_.body)
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) lets_.emplace(let->var, Inlined(let->value));
    const bool ends_early = HoldsExit<ir::Continue>(loop_.body);
    // The width of an async copy may rest on what the body assumes. It would run ahead to iterations that never get so far.
    const bool may_be_async = !MayLeaveBeforeAssume(loop_.body);
    std::vector<bool> movable;
    for (size_t i = 0; may_be_async && i < loop_.body.size(); ++i) AddRows(loop_.body[i], i, inside);
    for (size_t i = 0; i < loop_.body.size(); ++i) {
      auto* copy = std::get_if<ir::Copy>(&loop_.body[i].op);
      // A copy through registers stores its next tile after the body, which a body that ends early never reaches.
      movable.push_back(copy != nullptr ? (IsAsync(*copy) ? may_be_async : !ends_early) && Movable(*copy, i, inside)
                                        : may_be_async && MovableGather(loop_.body[i], i, inside));
    }
    Block rest;
    for (size_t i = 0; i < loop_.body.size(); ++i) {
      Stmt& stmt = loop_.body[i];
      if (movable[i]) {
        const auto* copy = std::get_if<ir::Copy>(&stmt.op);
        const BufferId into = copy != nullptr ? copy->dst.buffer : AsyncGather(stmt)->buffer;
        const bool async = copy == nullptr || IsAsync(*copy);
        copies_.push_back({std::move(stmt), into, rest.size(), async});
      } else {
        rest.push_back(std::move(stmt));
      }
    }
    loop_.body = std::move(rest);
    std::erase_if(rows_,
                  [&](const Rows& rows) { return std::ranges::none_of(copies_, [&](const Copy& copy) { return Reads(copy.stmt, rows.rows); }); });
  }

  bool Reads(const Stmt& stmt, BufferId buffer) const {
    return std::ranges::any_of(AccessesOf(module_, stmt), [&](const Access& access) { return access.buffer == buffer; });
  }

  // Adds a fragment that the statement alone writes, all of it, from what the loop does not change: any iteration can load another's.
  void AddRows(const Stmt& stmt, size_t position, const UsesOf& inside) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return;
    const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
    if (store == nullptr || module_[store->buffer].space != Space::kFragment || !module_[store->buffer].layout) return;
    const BufferId rows = store->buffer;
    const Uses of_rows = At(inside, rows);
    if (of_rows.writes != 1 || At(everywhere_, rows).writes != 1 || of_rows.first < position) return;
    if (!CoversElements(module_, *loop, rows) || !IsOwnElement(module_, *loop, store->indices)) return;
    Rows found{stmt, rows, {}};
    auto& value = std::get<ir::Store>(std::get<ir::For>(found.load.op).body[0].op).value;
    if (Replayable(value, inside, /*from_tiles=*/false)) rows_.push_back(std::move(found));
  }

  // A copy can move if nothing else writes its tile, nothing reads the tile earlier in the body or outside of the loop, nothing in the loop
  // writes its source or acquires what other blocks wrote there, and the loop variable alone determines where it reads.
  bool Movable(ir::Copy& copy, size_t position, const UsesOf& inside) {
    if (module_[copy.dst.buffer].space != Space::kShared || module_[copy.src.buffer].space != Space::kGlobal) return false;
    if (copy.dst.extents != module_.ShapeOf(copy.dst.buffer) || !IsAlone(copy.dst.buffer, copy.src.buffer, position, inside)) return false;
    std::vector<ExprId> offsets = copy.src.offsets;
    if (!std::ranges::all_of(offsets, [&](ExprId& offset) { return Replayable(offset, inside, /*from_tiles=*/false); })) return false;
    copy.src.offsets = std::move(offsets);
    return true;
  }

  // The same of a gather of the whole tile. It may find its rows in a tile or a fragment that the loop does not change, or in one of `rows_`.
  bool MovableGather(Stmt& stmt, size_t position, const UsesOf& inside) {
    const ir::Store* gather = AsyncGather(stmt);
    if (gather == nullptr) return false;
    auto& loop = std::get<ir::For>(stmt.op);
    auto& store = std::get<ir::Store>(loop.body[0].op);
    if (!CoversElements(module_, loop, store.buffer) || !IsOwnElement(module_, loop, store.indices)) return false;
    const ir::ExprNode& value = module_.exprs[store.value];
    const BufferId from{module_.exprs[ir::Chooses(value.op) ? value.args[1] : store.value].ref};
    ExprId inlined = store.value;
    if (!IsAlone(store.buffer, from, position, inside) || !Replayable(inlined, inside, /*from_tiles=*/true)) return false;
    store.value = inlined;
    return true;
  }

  bool IsAlone(BufferId dst, BufferId src, size_t position, const UsesOf& inside) {
    const Uses of_dst = At(inside, dst);
    if (of_dst.first < position || of_dst.writes != 1 || of_dst.all != At(everywhere_, dst).all) return false;
    return At(inside, src).writes == 0 && MayReadAhead(src);
  }

  // With the loop's own lets in their places.
  ExprId Inlined(ExprId id) {
    return module_.exprs.Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
      const ir::ExprNode& node = module_.exprs[leaf];
      const auto let = node.op == ir::ExprOp::kVar ? lets_.find(ir::VarId(node.ref)) : lets_.end();
      return let == lets_.end() ? std::nullopt : std::optional(let->second);
    });
  }

  // Rewrites `id` with the loop's own lets inlined; false if the result still changes within the loop. Then it may not stand in `id`'s place, as the
  // lets were evaluated before. `from_tiles`: it may load from shared memory and from fragments.
  bool Replayable(ExprId& id, const UsesOf& inside, bool from_tiles) {
    id = Inlined(id);
    std::vector<Access> loads;
    CollectLoads(module_.exprs, id, loads);
    for (const Access& load : loads) {
      const Space space = module_[load.buffer].space;
      if (space != Space::kGlobal && !(from_tiles && (space == Space::kShared || space == Space::kFragment))) return false;
      if (from_tiles && std::ranges::find(rows_, load.buffer, &Rows::rows) != rows_.end()) continue;
      if (At(inside, load.buffer).writes > 0 || !MayReadAhead(load.buffer)) return false;
    }
    return true;
  }

  // Whether the buffer may be read for iterations that may not come: its elements are there all the same, and the loop waits for no other block that
  // writes them.
  bool MayReadAhead(BufferId id) const {
    if (module_[id].space != Space::kGlobal) return true;
    if (HasGaps(module_, id) && LeavesLoop(loop_.body)) return false;
    return !acquires_ || At(everywhere_, id).writes == 0;
  }

  // When what runs ahead of the loop's iterations lives: the copies before the loop count in the loops around it.
  Lifetime Around() const { return lives_.outermost.at(loop_.vars[0]); }

  // Fewer stages where shared memory would not hold them all.
  void FitStages() {
    stages_ = std::max<int64_t>(1, loop_.num_stages);
    const auto fits = [&](int64_t stages) {
      std::map<BufferId, Held> held;
      for (const Copy& copy : copies_) held[copy.into] = {stages, Around()};
      return SharedBytesOf(module_, lives_, held) <= int64_t(context_.target->max_shared_bytes);
    };
    const int64_t asked = stages_;
    while (stages_ > 1 && !fits(stages_)) --stages_;
    // The next tile passes through registers, and can stay there until nobody reads the one in shared memory, where barriers let its loads
    // stay under way.
    const bool stays = context_.target->Has(target::Feature::kFencesByMemory) && std::ranges::none_of(copies_, &Copy::async);
    if (asked > 1 && stages_ == 1 && stays && fits(1)) stages_ = 2, versions_ = 1;
  }

  void RestoreCopies() {
    for (size_t i = copies_.size(); i-- > 0;) loop_.body.insert(loop_.body.begin() + ptrdiff_t(copies_[i].position), copies_[i].stmt);
  }

  void CountKinds() {
    for (Copy& copy : copies_) {
      has_async_ |= copy.async;
      if (!copy.async) MakeStaged(copy);
    }
    for (Rows& rows : rows_) {
      rows.ahead = FreshLike(module_, rows.rows, Space::kFragment, "_ahead");
      module_[rows.ahead].layout = module_[rows.rows].layout;
      ReplaceBuffer(module_, std::get<ir::For>(rows.load.op).body, rows.rows, rows.ahead);
      std::vector<ir::For*> gathers;
      for (Copy& copy : copies_) {
        if (!Reads(copy.stmt, rows.rows)) continue;
        gathers.push_back(&std::get<ir::For>(copy.stmt.op));
        ReplaceBuffer(module_, gathers.back()->body, rows.rows, rows.ahead);
      }
      GatherByLines(module_, rows.ahead, std::get<ir::For>(rows.load.op), gathers);
    }
  }

  void MakeStaged(Copy& copy) {
    std::vector<int64_t> extents;
    for (int64_t extent : copy.op().dst.extents)
      if (extent != 1) extents.push_back(extent);
    if (extents.empty()) extents.push_back(1);
    copy.staged = FreshOfShape(module_, copy.into, Space::kFragment, extents, "_next");
    module_[copy.staged].layout = ir::Layout::Distributed(extents, threads_.Count(), copy.op().plan->vector).Normalized();
  }

  // --- pieces of the new program ---

  ExprId LoopVar() { return module_.VarRef(loop_.vars[0]); }
  ExprId Int(int64_t value) { return module_.exprs.Int(value, module_.exprs.Type(loop_.extents[0])); }
  ExprId InRange(ExprId iteration) { return module_.exprs.Make(ir::ExprOp::kLt, {iteration, loop_.extents[0]}); }
  ExprId Modulo(ExprId iteration, int64_t versions) {
    return module_.exprs.Cast(ir::DType::kI32, module_.exprs.Make(ir::ExprOp::kFloorMod, {iteration, Int(versions)}));
  }
  // Appends `block`, run only where `cond` holds.
  void Guard(ExprId cond, Block block, Block& result) {
    if (module_.exprs.IsConst(cond, 0)) return;
    if (module_.exprs.IsConst(cond, 1)) {
      std::ranges::move(block, std::back_inserter(result));
    } else {
      result.push_back({ir::If{cond, std::move(block), {}}, loc_});
    }
  }

  // The version of an iteration, in a block of statements.
  void Use(const Copy& copy, Block& block, ExprId iteration) {
    if (Versions(copy) > 1) UseVersion(module_, block, copy.into, Modulo(iteration, Versions(copy)));
  }

  // The copy of `iteration`'s tile into its version.
  Stmt CopyFor(const Copy& copy, ExprId iteration) {
    Block block{copy.stmt};
    Substitute(module_, block, loop_.vars[0], iteration);
    Use(copy, block, iteration);
    return std::move(block[0]);
  }

  // What the gathers of `iteration` find their rows in, before they do.
  Block LoadRows(ExprId iteration) {
    Block block;
    for (const Rows& rows : rows_) {
      Block load{rows.load};
      Substitute(module_, load, loop_.vars[0], iteration);
      std::ranges::move(load, std::back_inserter(block));
    }
    return block;
  }

  ir::Region StagedRegion(const Copy& copy) {
    ir::Region region{copy.staged, {}, module_.ShapeOf(copy.staged)};
    region.offsets.assign(region.extents.size(), module_.exprs.Int(0));
    return region;
  }
  Stmt LoadStaged(const Copy& copy, ExprId iteration) {
    ir::For loop = CopyLoop(module_, {copy.op().src, StagedRegion(copy)});
    loop.layout = module_[copy.staged].layout;
    Block block{{std::move(loop), copy.stmt.loc}};
    Substitute(module_, block, loop_.vars[0], iteration);
    return std::move(block[0]);
  }
  Stmt StoreStaged(const Copy& copy, ExprId iteration) {
    ir::For loop = CopyLoop(module_, {StagedRegion(copy), copy.op().dst});
    loop.layout = module_[copy.staged].layout;
    Block block{{std::move(loop), copy.stmt.loc}};
    Use(copy, block, iteration);
    return std::move(block[0]);
  }

  void Prologue(Block& result) {
    for (int64_t p = 0; has_async_ && p < stages_ - 1; ++p) {
      Block block = LoadRows(Int(p));
      for (const Copy& copy : copies_)
        if (copy.async) block.push_back(CopyFor(copy, Int(p)));
      Guard(InRange(Int(p)), std::move(block), result);
      result.push_back({ir::AsyncCommit{}, loc_});
    }
    if (!rows_.empty()) Guard(InRange(Int(stages_ - 1)), LoadRows(Int(stages_ - 1)), result);
    Block staged;
    for (const Copy& copy : copies_)
      if (!copy.async) staged.push_back(CopyFor(copy, Int(0)));
    if (!staged.empty()) Guard(InRange(Int(0)), std::move(staged), result);
  }

  Block Body() {
    const ExprId k = LoopVar();
    Block body;
    if (has_async_) {
      body.push_back({ir::AsyncWait{int32_t(stages_ - 2)}, loc_});
      const ExprId ahead = module_.exprs.Add(k, Int(stages_ - 1));
      Block issue;
      for (const Copy& copy : copies_)
        if (copy.async) issue.push_back(CopyFor(copy, ahead));
      Guard(InRange(ahead), std::move(issue), body);
      body.push_back({ir::AsyncCommit{}, loc_});
      const ExprId rows = module_.exprs.Add(k, Int(stages_));
      if (!rows_.empty()) Guard(InRange(rows), LoadRows(rows), body);
    }
    const ExprId next = module_.exprs.Add(k, Int(1));
    Block load, store;
    for (const Copy& copy : copies_) {
      if (copy.async) continue;
      load.push_back(LoadStaged(copy, next));
      store.push_back(StoreStaged(copy, next));
    }
    if (!load.empty()) Guard(InRange(next), std::move(load), body);
    for (const Copy& copy : copies_) Use(copy, loop_.body, k);
    std::ranges::move(loop_.body, std::back_inserter(body));
    if (!store.empty()) Guard(InRange(next), std::move(store), body);
    return body;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const UsesOf& everywhere_;
  Lifetimes& lives_;  // of the kernel's shared buffers
  const ir::ThreadRange threads_;
  ir::For loop_;
  ir::SourceLoc loc_;
  std::vector<Copy> copies_;
  std::vector<Rows> rows_;
  std::unordered_map<ir::VarId, ExprId> lets_;  // of the body, by what they are when the iteration begins
  bool acquires_ = false;                       // the body acquires what other blocks have written
  int64_t stages_ = 1;
  int64_t versions_ = 2;  // of a tile that passes through registers
  bool has_async_ = false;
};

class Pass {
 public:
  Pass(ir::Module& module, ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics)
      : module_(module),
        kernel_(kernel),
        context_(context),
        diagnostics_(diagnostics),
        everywhere_(UsesIn(module, kernel.body)),
        lives_(LifetimesOf(module, kernel)),
        threads_(AllThreads(kernel)),
        has_signals_(HasSignals(kernel)) {}

  void Visit(Block& block) {
    Block result;
    for (size_t i = 0; i < block.size(); ++i) {
      Stmt& stmt = block[i];
      if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Visit(repeat->body);
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) VisitBranches(*branch);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kPipelined && (has_signals_ || OrdersBlocks(loop->body))) InOrder(*loop, stmt.loc);
      if (loop != nullptr && loop->kind == ir::LoopKind::kPipelined) {
        for (Stmt& out : LoopPipeliner(module_, kernel_, context_, everywhere_, lives_, threads_, *loop, stmt.loc).Run()) {
          auto* serial = std::get_if<ir::For>(&out.op);
          if (serial != nullptr && serial->kind == ir::LoopKind::kSerial) Visit(serial->body);
          result.push_back(std::move(out));
        }
        continue;
      }
      if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) Visit(loop->body);
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

 private:
  void InOrder(ir::For& loop, const ir::SourceLoc& loc) {
    if (loop.num_stages > 1) {
      diagnostics_.Warning(
          fmt::format("this loop's {} stages are left out: {}", loop.num_stages,
                      has_signals_ ? "the kernel's own barriers say what overlaps"
                                   : "its blocks wait for each other in each iteration, or a function of another language may let them"),
          "leave out num_stages; to overlap copies, let them arrive at a barrier that later iterations wait for", loc);
    }
    loop.kind = ir::LoopKind::kSerial, loop.num_stages = 0;
  }

  void VisitBranches(ir::If& branch) {
    const ir::ThreadRange outer = threads_;
    threads_ = branch.then_threads.value_or(outer);
    Visit(branch.then_body);
    threads_ = branch.else_threads.value_or(outer);
    Visit(branch.else_body);
    threads_ = outer;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  ir::Diagnostics& diagnostics_;
  const UsesOf everywhere_;
  Lifetimes lives_;
  ir::ThreadRange threads_;  // the threads that come to the statement
  const bool has_signals_;   // the program's own barriers order what its loops do, as a barrier of the grid orders what the loop around it does
};

}  // namespace

ir::Result Pipeline(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  for (ir::Kernel& kernel : module.kernels) {
    const size_t buffers = module.buffers.size();
    Pass(module, kernel, context, diagnostics).Visit(kernel.body);
    Declare(module, kernel, buffers);
    CloseGroups(kernel.body);
  }
  return {};
}

}  // namespace kiln::compiler
