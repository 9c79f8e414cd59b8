// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/hand_over.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/signals.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Space;
using ir::Stmt;

// How often statements read and write each fragment.
struct Uses {
  int64_t reads = 0, writes = 0;
  int64_t All() const { return reads + writes; }
};
using UsesOf = std::map<BufferId, Uses>;

class Handing {
 public:
  Handing(ir::Module& module, ir::Kernel& kernel, ir::Diagnostics& diagnostics)
      : module_(module), kernel_(kernel), diagnostics_(diagnostics), has_signals_(HasSignals(kernel)) {}

  void Run() {
    const size_t buffers = module_.buffers.size();
    Visit(kernel_.body);
    Declare(module_, kernel_, buffers);
  }

 private:
  // Visits the outermost branches first: an inner branch may in turn share a fragment that the outer one got.
  void Visit(Block& block) {
    for (size_t i = 0; i < block.size(); ++i) {
      Block before, after;
      if (auto* branch = std::get_if<ir::If>(&block[i].op); branch != nullptr && branch->IsNarrowed()) Share(block[i], *branch, before, after);
      const size_t first = before.size();
      block.insert(block.begin() + ptrdiff_t(i) + 1, std::make_move_iterator(after.begin()), std::make_move_iterator(after.end()));
      block.insert(block.begin() + ptrdiff_t(i), std::make_move_iterator(before.begin()), std::make_move_iterator(before.end()));
      i += first;
      if (auto* branch = std::get_if<ir::If>(&block[i].op)) Visit(branch->then_body), Visit(branch->else_body);
      if (auto* repeat = std::get_if<ir::While>(&block[i].op)) Visit(repeat->body);
      if (auto* loop = std::get_if<ir::For>(&block[i].op); loop != nullptr && loop->kind != ir::LoopKind::kParallel) Visit(loop->body);
    }
  }

  UsesOf Count(const Block& block) const {
    UsesOf uses;
    ir::Walk(block, [&](const Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) return;  // its statements come by themselves
      for (const Access& access : AccessesOf(module_, stmt)) {
        if (module_[access.buffer].space != Space::kFragment) continue;
        ++(access.write ? uses[access.buffer].writes : uses[access.buffer].reads);
      }
    });
    return uses;
  }

  // Uses in all branches to which just these threads come: a fragment that has no others is theirs, and keeps its values from branch to branch.
  UsesOf CountOf(const Block& block, const ir::ThreadRange& threads) const {
    UsesOf uses;
    const auto add = [&](const UsesOf& more) {
      for (const auto& [fragment, use] : more) uses[fragment].reads += use.reads, uses[fragment].writes += use.writes;
    };
    for (const Stmt& stmt : block) {
      const auto* branch = std::get_if<ir::If>(&stmt.op);
      if (branch == nullptr) {
        ir::ForEachBody(stmt.op, [&](const Block& body) { add(CountOf(body, threads)); });
        continue;
      }
      const auto visit = [&](const Block& body, const std::optional<ir::ThreadRange>& range) {
        add(range && range->IsSame(threads) ? Count(body) : CountOf(body, threads));
      };
      visit(branch->then_body, branch->then_threads);
      visit(branch->else_body, branch->else_threads);
    }
    return uses;
  }

  // The tiles that a block touches at constant places.
  std::vector<Access> FixedTiles(const Block& block) const {
    std::vector<Access> tiles;
    ir::Walk(block, [&](const Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) return;  // touches single elements
      for (Access& access : AccessesOf(module_, stmt)) {
        const auto fixed = [&](ir::ExprId offset) { return module_.exprs.ConstInt(offset).has_value(); };
        const Space space = module_[access.buffer].space;
        if (!access.tile || (space != Space::kShared && space != Space::kGlobal) || !std::ranges::all_of(access.indices, fixed)) continue;
        if (access.indices.size() == access.extents.size()) tiles.push_back(std::move(access));
      }
    });
    return tiles;
  }

  bool Overlap(const Access& a, const Access& b) const {
    if (a.buffer != b.buffer || (!a.write && !b.write)) return false;
    for (size_t d = 0; d < a.indices.size(); ++d) {
      const int64_t first = *module_.exprs.ConstInt(a.indices[d]), second = *module_.exprs.ConstInt(b.indices[d]);
      if (first + a.extents[d] <= second || second + b.extents[d] <= first) return false;
    }
    return true;
  }

  // Reports certain races between the two branches; the emulator shows the others. Barriers of the program may keep the branches apart.
  void CheckApart(const Stmt& stmt, const ir::If& branch) {
    if (has_signals_ || !branch.then_threads || !branch.else_threads) return;
    const std::vector<Access> then = FixedTiles(branch.then_body), otherwise = FixedTiles(branch.else_body);
    for (const Access& a : then) {
      const auto b = std::ranges::find_if(otherwise, [&](const Access& other) { return Overlap(a, other); });
      if (b != otherwise.end()) return Refuse(stmt, branch, a.buffer);
    }
  }

  void Refuse(const Stmt& stmt, const ir::If& branch, BufferId buffer) {
    diagnostics_.Error(fmt::format("both branches of if {}, whose threads run at the same time, use '{}', and one writes it",
                                   ir::PrintExpr(module_, branch.cond), module_[buffer].name),
                       "give each branch a buffer of its own, or make two ifs of the two branches, one after the other", stmt.loc,
                       ir::PrintStmt(module_, stmt));
  }

  void Share(const Stmt& stmt, ir::If& branch, Block& before, Block& after) {
    CheckApart(stmt, branch);
    const UsesOf all = Count(kernel_.body);
    std::map<BufferId, BufferId> shared;
    const UsesOf then = Count(branch.then_body), otherwise = Count(branch.else_body);
    for (const auto& [fragment, uses] : then) {
      const auto other = otherwise.find(fragment);
      if (other == otherwise.end() || (uses.writes == 0 && other->second.writes == 0)) continue;
      return Refuse(stmt, branch, fragment);
    }
    for (const bool of_then : {true, false}) {
      Block& body = of_then ? branch.then_body : branch.else_body;
      const std::optional<ir::ThreadRange>& threads = of_then ? branch.then_threads : branch.else_threads;
      if (!threads) continue;  // its statements are of single threads (compiler/mapping/layouts/stage.h)
      const UsesOf theirs = CountOf(kernel_.body, *threads);
      for (const auto& [fragment, use] : of_then ? then : otherwise) {
        const auto own = theirs.find(fragment);
        if (use.All() == all.at(fragment).All() || (own != theirs.end() && own->second.All() == all.at(fragment).All())) continue;
        const auto [it, added] = shared.try_emplace(fragment);
        if (added) {
          it->second = FreshLike(module_, fragment, Space::kShared, "_handed");
          before.push_back(Move(fragment, it->second, stmt.loc));
        }
        Give(body, fragment, it->second, use, stmt.loc);
        if (use.writes > 0) after.push_back(Move(it->second, fragment, stmt.loc));
      }
    }
    for (const auto& [fragment, tile] : shared) {
      kernel_.decisions.push_back({"hand_over", fragment, "passes through shared memory to and from a branch that some threads come to",
                                   "other threads use it elsewhere", stmt.loc});
    }
  }

  // Gives the branch a fragment of its own threads.
  void Give(Block& body, BufferId fragment, BufferId shared, const Uses& use, ir::SourceLoc loc) {
    const BufferId own = FreshLike(module_, fragment, Space::kFragment, "_own");
    ReplaceBuffer(module_, body, fragment, own);
    body.insert(body.begin(), Move(shared, own, loc));
    if (use.writes > 0) body.push_back(Move(own, shared, loc));
  }

  Stmt Move(BufferId from, BufferId to, ir::SourceLoc loc) { return {ir::Copy{Whole(from), Whole(to)}, loc}; }

  ir::Region Whole(BufferId buffer) {
    ir::Region region{buffer, {}, module_.ShapeOf(buffer)};
    region.offsets.assign(region.extents.size(), module_.exprs.Int(0));
    return region;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  ir::Diagnostics& diagnostics_;
  const bool has_signals_;
};

bool HasNarrowed(const Block& block) {
  bool has = false;
  ir::Walk(block, [&](const Stmt& stmt) {
    const auto* branch = std::get_if<ir::If>(&stmt.op);
    has |= branch != nullptr && branch->IsNarrowed();
  });
  return has;
}

}  // namespace

ir::Result HandOver(ir::Module& module, const Context&, ir::Diagnostics& diagnostics) {
  const size_t errors = diagnostics.errors();
  for (ir::Kernel& kernel : module.kernels)
    if (HasNarrowed(kernel.body)) Handing(module, kernel, diagnostics).Run();
  if (diagnostics.errors() > errors) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
