// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/overlap.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::RingAction;
using ir::Space;
using ir::Stmt;

constexpr int64_t kMostWords = kMostRegisters - 28;  // what a computing thread may have, less what addresses take

bool IsStep(const Stmt& stmt, RingAction action) {
  const auto* step = std::get_if<ir::RingStep>(&stmt.op);
  return step != nullptr && step->action == action;
}

bool FillsStage(const Stmt& stmt) {
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return copy != nullptr && copy->plan && copy->plan->ring;
}

class Overlapper {
 public:
  Overlapper(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    uses_ = CountAllAccesses(module_, kernel_.body);
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      if (FillsStage(stmt)) stages_.insert(std::get<ir::Copy>(stmt.op).dst.buffer);
    });
    ir::Walk(kernel_.body, [&](Stmt& stmt) {
      if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind == ir::LoopKind::kSerial) Try(*loop);
    });
  }

 private:
  void Try(ir::For& loop) {
    if (!Fits(loop.body)) return;
    const auto gemm_of = [](Stmt& stmt) { return std::get_if<ir::Gemm>(&stmt.op); };
    const BufferId sums[] = {Sum(loop.body), FreshCopy(module_, Sum(loop.body), "_next")};
    kernel_.decisions.push_back({"overlap", sums[0], "two sums in turn", "one is used while the next product is computed"});
    std::vector<Block> leads(1), rests(1);  // rests[u]: the statements between products u − 1 and u
    Stmt release;
    for (Stmt& stmt : loop.body) {
      if (IsStep(stmt, RingAction::kRelease)) {
        release = std::move(stmt);
      } else if (gemm_of(stmt) != nullptr) {
        auto& gemm = *gemm_of(stmt);
        gemm.plan->in_flight = true;
        gemm.c.buffer = sums[(leads.size() - 1) % 2];
        leads.back().push_back(std::move(stmt));
        rests.emplace_back();
      } else if (FillsStage(stmt) || std::holds_alternative<ir::RingStep>(stmt.op)) {
        const bool ends = IsStep(stmt, RingAction::kAdvance);
        leads.back().push_back(std::move(stmt));
        if (ends) leads.emplace_back();
      } else {
        rests.back().push_back(std::move(stmt));
      }
    }
    leads.pop_back();
    Block body = std::move(rests[0]);
    std::ranges::move(leads[0], std::back_inserter(body));
    for (size_t u = 1; u <= leads.size(); ++u) {
      const bool more = u < leads.size();
      if (more) std::ranges::move(leads[u], std::back_inserter(body));
      body.push_back({ir::AsyncWait{more ? 1 : 0, false, sums[(u - 1) % 2]}, release.loc});
      std::get<ir::RingStep>(release.op).behind = more ? 2 : 1;
      body.push_back(release);
      ReplaceBuffer(module_, rests[u], sums[0], sums[(u - 1) % 2]);
      std::ranges::move(rests[u], std::back_inserter(body));
    }
    loop.body = std::move(body);
  }

  static BufferId Sum(Block& body) {
    const auto first = std::ranges::find_if(body, [](const Stmt& stmt) { return std::holds_alternative<ir::Gemm>(stmt.op); });
    return std::get<ir::Gemm>(first->op).c.buffer;
  }

  // Whether the body is as this pass needs it: its products are alike and by groups of warps, they read only stages of a ring, each stands
  // between its ring's steps, and nothing touches their sum except in this body after the first product.
  bool Fits(const Block& body) const {
    const ir::Gemm* first = nullptr;
    const ir::Ring* ring = nullptr;
    size_t products = 0;
    std::set<BufferId> before;  // what is touched before the first product
    std::map<RingAction, size_t> steps;
    for (const Stmt& stmt : body) {
      if (const auto* step = std::get_if<ir::RingStep>(&stmt.op)) {
        if (ring != nullptr && ring->barriers != step->ring.barriers) return false;
        ring = &step->ring;
        ++steps[step->action];
      } else if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) {
        if (!IsAlike(*gemm, first)) return false;
        first = gemm;
        ++products;
      } else if (const auto* loop = std::get_if<ir::For>(&stmt.op); !FillsStage(stmt) && (loop == nullptr || loop->kind != ir::LoopKind::kParallel)) {
        return false;
      }
      for (const Access& access : AccessesOf(module_, stmt)) {
        if (first == nullptr) {
          before.insert(access.buffer);
          continue;
        }
        if (!std::holds_alternative<ir::Gemm>(stmt.op) && !FillsStage(stmt) && module_[access.buffer].space == Space::kShared) return false;
      }
    }
    if (products < 2 || before.contains(first->c.buffer)) return false;
    if (CountAllAccesses(module_, body)[first->c.buffer].all() != uses_.at(first->c.buffer).all()) return false;
    for (RingAction action : {RingAction::kAcquire, RingAction::kWait, RingAction::kRelease, RingAction::kAdvance})
      if (steps[action] != products) return false;
    return Words(first->c.buffer) <= kMostWords;
  }

  bool IsAlike(const ir::Gemm& gemm, const ir::Gemm* first) const {
    const target::MmaInstruction& mma = RowOf(gemm, *context_.target);
    if (!mma.in_flight || !gemm.clear_accum) return false;
    const GemmShape shape = ShapeOf(gemm);
    if (shape.m != mma.m * gemm.plan->warps_m || shape.n != mma.n * gemm.plan->warps_n) return false;  // one instruction, one group
    if (!stages_.contains(gemm.a.buffer) || !stages_.contains(gemm.b.buffer)) return false;
    if (gemm.metadata && !stages_.contains(gemm.metadata->buffer)) return false;
    return first == nullptr || (first->c.buffer == gemm.c.buffer && first->plan->instruction == gemm.plan->instruction);
  }

  // Registers of all fragments, with the sum counted twice.
  int64_t Words(BufferId sum) const {
    const auto words = [&](BufferId id) { return module_[id].layout->Registers() * ir::Bits(module_[id].dtype) / 32; };
    int64_t all = words(sum);
    for (const auto& [id, count] : uses_)
      if (module_[id].space == Space::kFragment && module_[id].layout) all += std::max<int64_t>(1, words(id));
    return all;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  AccessCounts uses_;
  std::set<BufferId> stages_;  // tiles that rings fill
};

}  // namespace

void Overlap(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  // With several groups, one group's products already run while another uses its sums, and stages become free earlier.
  if (kernel.producers == 0 || kernel.threads > kGroupThreads) return;
  const size_t buffers = module.buffers.size();
  Overlapper(module, kernel, context).Run();
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
