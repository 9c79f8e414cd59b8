// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/rings.h"

#include <set>

#include "compiler/analysis/access.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::RingAction;

namespace {

// A product of groups that the matrix unit computes, reading its tiles itself; nullptr for every other statement.
const ir::Gemm* ByUnit(const ir::Stmt& stmt, const target::Target& target) {
  const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
  return gemm != nullptr && RowOf(*gemm, target).IsByGroup() && !gemm->plan->by_warps ? gemm : nullptr;
}

}  // namespace

// Finds how each ring's readers release a stage: every thread if threads read some tile of it themselves, as they do metadata, else one of each warp.
void Rings::FindUses() {
  std::map<ir::BufferId, ir::BufferId> rings;  // by tile
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    if (copy == nullptr || !copy->plan || !copy->plan->ring) return;
    rings[copy->dst.buffer] = copy->plan->ring->barriers;
    Use& use = uses_.try_emplace(copy->plan->ring->barriers, Use{copy->plan->ring->position, false, false, false, stmt.loc.line}).first->second;
    use.multicast |= copy->plan->multicast;
    multicast_ |= use.multicast;
  });
  const auto read_by_threads = [&](ir::BufferId tile) {
    const auto it = rings.find(tile);
    if (it == rings.end()) return;
    Use& use = uses_.at(it->second);
    use.by_thread = use.fenced = true;
  };
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    if (compiler::FillsRing(stmt)) return;
    if (const ir::Gemm* gemm = ByUnit(stmt, target())) {
      if (gemm->metadata) read_by_threads(gemm->metadata->buffer);
      return;
    }
    for (const compiler::Access& access : compiler::AccessesOf(module(), stmt)) read_by_threads(access.buffer);
  });
  FindReleases(kernel().body, rings);
}

// One lane releases for its warp if a wgmma, which all lanes start together, stands between the wait for a tile and its release. In other
// products each lane reads the tile for itself, so each releases. So does each where a condition may skip the product, since other
// lanes may still be waiting.
void Rings::FindReleases(const ir::Block& block, const std::map<ir::BufferId, ir::BufferId>& rings) {
  std::set<ir::BufferId> met;
  const auto meet = [&](const auto& self, const ir::Block& body) -> void {
    for (const ir::Stmt& stmt : body) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && pool().ConstInt(loop->extents[0]).value_or(0) > 0) self(self, loop->body);
      const ir::Gemm* gemm = ByUnit(stmt, target());
      if (gemm == nullptr) continue;
      for (ir::BufferId operand : {gemm->a.buffer, gemm->b.buffer})
        if (const auto it = rings.find(operand); it != rings.end()) met.insert(it->second);
    }
  };
  meet(meet, block);
  for (const ir::Stmt& stmt : block) {
    const auto* step = std::get_if<ir::RingStep>(&stmt.op);
    if (step != nullptr && step->action == RingAction::kRelease && !met.contains(step->ring.barriers)) uses_.at(step->ring.barriers).by_thread = true;
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) FindReleases(loop->body, rings);
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) FindReleases(loop->body, rings);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) FindReleases(branch->then_body, rings), FindReleases(branch->else_body, rings);
  }
}

void Rings::Init() {
  const int64_t warps = kernel().threads / target().warp_size;
  When(b().CreateICmpEQ(thread(), I32(0)), [&] {
    for (const auto& [barriers, use] : uses_) {
      const int64_t stages = module().ShapeOf(barriers)[0] / 2;
      device().SetLocation(use.statement);
      for (int64_t s = 0; s < stages; ++s) {
        device().PhaseInit(Barrier(barriers, I32(s)), 1);
        const uint32_t readers = use.by_thread ? kernel().threads : uint32_t(warps);
        device().PhaseInit(Barrier(barriers, I32(stages + s)), use.multicast ? readers * kPair : readers);
      }
    }
    device().PhaseInitFence();
  });
  if (multicast_) {
    device().ClusterBarrier();
  } else {
    device().Barrier();
  }
  for (const auto& [barriers, use] : uses_) SetPosition(use.position, I32(0), I32(0));
}

Value* Rings::Barrier(ir::BufferId barriers, Value* index) const {
  Value* pointer = b().CreateGEP(b().getInt64Ty(), places_.Shared(), index);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(*module()[barriers].shared_offset));
}

std::pair<Value*, Value*> Rings::Position(ir::BufferId position) const {
  Value* place = places_.Of(position);
  Value* stage = b().CreateLoad(b().getInt32Ty(), place);
  return {stage, b().CreateLoad(b().getInt32Ty(), b().CreateConstGEP1_32(b().getInt32Ty(), place, 1))};
}

// Blocks of the cluster take turns in loading. Fillings of a ring count from 0.
Value* Rings::IsMyTurn(const ir::Ring& ring) const {
  const auto [stage, parity] = Position(ring.position);
  const int64_t stages = module().ShapeOf(ring.barriers)[0] / 2;
  Value* count = stages % 2 == 0 ? stage : b().CreateAdd(stage, parity);
  return b().CreateICmpEQ(b().CreateAnd(b().CreateXor(count, device().ClusterRank()), I32(1)), I32(0));
}

void Rings::SetPosition(ir::BufferId position, Value* stage, Value* parity) const {
  Value* place = places_.Of(position);
  b().CreateStore(stage, place);
  b().CreateStore(parity, b().CreateConstGEP1_32(b().getInt32Ty(), place, 1));
  if (Value* written = places_.Written(position)) b().CreateMemSet(written, b().getInt8(1), 2, llvm::MaybeAlign());
}

void Rings::Lower(const ir::RingStep& step) {
  // Only the producers acquire; both roles advance.
  const bool filling = threads().slice != nullptr;
  if (!filling && step.action == RingAction::kAcquire) return;
  const int64_t stages = module().ShapeOf(step.ring.barriers)[0] / 2;
  const auto [stage, parity] = Position(step.ring.position);
  const auto filled = [&] { return Barrier(step.ring.barriers, stage); };
  const auto emptied = [&] {
    Value* of = stage;
    if (step.behind != 0) {
      Value* wrapped = b().CreateICmpSLT(stage, I32(step.behind));
      of = b().CreateAdd(stage, b().CreateSelect(wrapped, I32(stages - step.behind), I32(-step.behind)));
    }
    return Barrier(step.ring.barriers, b().CreateAdd(of, I32(stages)));
  };
  switch (step.action) {
    case RingAction::kAcquire:
      // Every stage is empty at first: a wait for the phase before the first passes at once.
      device().PhaseWait(emptied(), b().CreateXor(parity, I32(1)));
      device().PhaseExpect(filled(), I32(step.bytes));
      return;
    case RingAction::kWait: return device().PhaseWait(filled(), parity);
    case RingAction::kRelease: {
      const Use& use = uses_.at(step.ring.barriers);
      Value* lane = b().CreateURem(thread(), I32(target().warp_size));
      Value* when = use.by_thread ? nullptr : b().CreateICmpEQ(lane, I32(0));
      // PTX ISA, "Causality order": a release alone does not keep a tensor copy from writing before these loads have read.
      if (use.fenced) device().FenceAsyncProxy();
      device().PhaseArrive(emptied(), when);
      // The other block fills this stage too.
      if (use.multicast) device().PhaseArriveAt(emptied(), b().CreateXor(device().ClusterRank(), I32(1)), when);
      return;
    }
    case RingAction::kAdvance: {
      Value* next = b().CreateAdd(stage, I32(1));
      Value* wraps = b().CreateICmpEQ(next, I32(stages));
      SetPosition(step.ring.position, b().CreateSelect(wraps, I32(0), next), b().CreateXor(parity, b().CreateZExt(wraps, b().getInt32Ty())));
      return;
    }
  }
}

}  // namespace kiln::llvm_ir
