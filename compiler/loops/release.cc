// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/release.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/producer_slice.h"
#include "compiler/analysis/threads/divergence.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Stmt;

class Releaser {
 public:
  Releaser(const ir::Module& module, ir::Kernel& kernel) : module_(module), kernel_(kernel), divergence_(module, kernel) {}

  void Run() {
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      if (const auto* copy = std::get_if<ir::Copy>(&stmt.op); copy != nullptr && copy->plan && copy->plan->ring)
        tiles_[copy->plan->ring->barriers].insert(copy->dst.buffer);
      if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op); gemm != nullptr && gemm->plan && gemm->plan->in_flight)
        operands_[gemm->c.buffer].insert({gemm->a.buffer, gemm->b.buffer});
    });
    if (!tiles_.empty()) Visit(kernel_.body);
  }

 private:
  // The block's statements one by one: a release that moves goes to a place before the next statement.
  void Visit(Block& block) {
    Block done;
    for (Stmt& stmt : block) {
      ir::ForEachBody(stmt.op, [&](Block& body) { Visit(body); });
      const auto* step = std::get_if<ir::RingStep>(&stmt.op);
      if (step != nullptr && step->action == ir::RingAction::kRelease && step->behind == 0) {
        if (Place(done, stmt)) Report(step->ring, stmt.loc);
      } else {
        done.push_back(std::move(stmt));
      }
    }
    block = std::move(done);
  }

  void Report(const ir::Ring& ring, ir::SourceLoc loc) {
    kernel_.decisions.push_back({"release", *tiles_.at(ring.barriers).begin(), "handed back before the statements behind its last reader",
                                 "it is filled again beside them", loc});
  }

  // Puts the release behind the last statement that keeps it, if what takes long comes behind that. Whether it does.
  bool Place(Block& block, const Stmt& release) {
    const auto kept = Kept(block, release);
    auto* branch = kept == block.rend() ? nullptr : std::get_if<ir::If>(&kept->op);
    if (!Moves(block, release)) {
      block.push_back(release);
      return false;
    }
    if (branch != nullptr && MayEnter(*branch)) {
      Place(branch->then_body, release);
      Place(branch->else_body, release);
    } else {
      block.insert(kept.base(), release);
    }
    return true;
  }

  bool Moves(Block& block, const Stmt& release) const {
    const auto kept = Kept(block, release);
    if (std::any_of(kept.base(), block.end(), TakesLong)) return true;
    auto* branch = kept == block.rend() ? nullptr : std::get_if<ir::If>(&kept->op);
    return branch != nullptr && MayEnter(*branch) && (Moves(branch->then_body, release) || Moves(branch->else_body, release));
  }

  // The last statement of the block that keeps the release behind it.
  std::reverse_iterator<Block::iterator> Kept(Block& block, const Stmt& release) const {
    const ir::Ring& ring = std::get<ir::RingStep>(release.op).ring;
    return std::ranges::find_if(block.rbegin(), block.rend(), [&](const Stmt& stmt) { return Keeps(stmt, ring); });
  }

  // A product, a loop around statements, or a wait for another tile. Nothing shorter is worth another order.
  static bool TakesLong(const Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const auto* step = std::get_if<ir::RingStep>(&stmt.op);
    return std::holds_alternative<ir::Gemm>(stmt.op) || std::holds_alternative<ir::While>(stmt.op) ||
           (loop != nullptr && loop->kind != ir::LoopKind::kParallel) || (step != nullptr && step->action == ir::RingAction::kWait);
  }

  // Whether the statement reads a tile of the ring, waits until a product has, uses its barriers or may not be reached by all that came so far.
  bool Keeps(const Stmt& stmt, const ir::Ring& ring) const {
    const std::set<BufferId>& tiles = tiles_.at(ring.barriers);
    const auto is_tile = [&](BufferId id) { return tiles.contains(id); };
    bool keeps = false;
    ir::WalkWithin(stmt, [&](const Stmt& inner) {
      const auto* step = std::get_if<ir::RingStep>(&inner.op);
      keeps |= step != nullptr && step->ring.barriers == ring.barriers;
      keeps |= std::holds_alternative<ir::Break>(inner.op) || std::holds_alternative<ir::Continue>(inner.op);
      for (const Access& access : AccessesOf(module_, inner)) keeps |= is_tile(access.buffer);
      const auto* wait = std::get_if<ir::AsyncWait>(&inner.op);
      if (wait == nullptr || !wait->product) return;
      const auto operands = operands_.find(*wait->product);
      keeps |= operands != operands_.end() && std::ranges::any_of(operands->second, is_tile);
    });
    return keeps;
  }

  // Whether all threads take one branch together, those that fill rings among them.
  bool MayEnter(const ir::If& branch) const {
    if (branch.then_threads || branch.else_threads || divergence_.Differs(branch.cond)) return false;
    bool fills = false;
    for (const Block* body : {&branch.then_body, &branch.else_body}) ir::Walk(*body, [&](const Stmt& stmt) { fills |= FillsRing(stmt); });
    return fills;
  }

  const ir::Module& module_;
  ir::Kernel& kernel_;
  const Divergence divergence_;
  std::map<BufferId, std::set<BufferId>> tiles_;     // by the ring's barriers
  std::map<BufferId, std::set<BufferId>> operands_;  // of products in flight, by their sum
};

}  // namespace

void Release(ir::Module& module, ir::Kernel& kernel, const Context&) {
  if (kernel.producers != 0) Releaser(module, kernel).Run();
}

}  // namespace kiln::compiler
