// SPDX-License-Identifier: Apache-2.0
//
// Tensor copies, the rings that hand tiles from the threads that fill them to the others, and the two roles themselves: the kernel's
// body is lowered once for each, the filling threads' part of it as compiler/analysis/producer_slice.h cuts it.
#include "compiler/analysis/access.h"
#include "compiler/llvm/kernel_lowering.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

using ir::RingAction;
using ir::Space;

namespace {

constexpr int kPair = 2;  // blocks of a cluster that share loads
// A box's coordinates have 32 bits, to which a place within the tile is added.
constexpr int64_t kLargestTile = 1 << 16;                            // elements along a dimension: more than shared memory holds
constexpr int64_t kFarthest = (INT32_MAX - kLargestTile) / 16 * 16;  // as an innermost coordinate a multiple of 16 bytes

int64_t Floor8(int64_t n) { return n / 8 * 8; }

}  // namespace

// --- roles ---

// Finds how each ring's readers release a stage: every thread if some reader is no wgmma, else one thread of each warp.
void KernelLowering::FindRings() {
  std::map<ir::BufferId, ir::BufferId> rings;  // by tile
  ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    if (copy == nullptr || !copy->plan || !copy->plan->ring) return;
    rings[copy->dst.buffer] = copy->plan->ring->barriers;
    RingUse& use =
        rings_.try_emplace(copy->plan->ring->barriers, RingUse{copy->plan->ring->position, false, false, false, stmt.loc.line}).first->second;
    use.multicast |= copy->plan->multicast;
    multicast_ |= use.multicast;
  });
  ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    const bool by_unit = gemm != nullptr && !(gemm->plan && gemm->plan->by_warps);
    if (by_unit || compiler::FillsRing(stmt)) return;
    for (const compiler::Access& access : compiler::AccessesOf(module_, stmt)) {
      const auto it = rings.find(access.buffer);
      if (it == rings.end()) continue;
      RingUse& use = rings_.at(it->second);
      use.by_thread = use.fenced = true;
    }
  });
  FindReleases(kernel_.body, rings);
}

// One lane releases for its warp if a wgmma, which all lanes start together, stands between the wait for a tile and its release. In a
// product by warps each lane reads the tile for itself, so each releases. So does each where a condition may skip the product, since other
// lanes may still be waiting.
void KernelLowering::FindReleases(const ir::Block& block, const std::map<ir::BufferId, ir::BufferId>& rings) {
  std::set<ir::BufferId> met;
  const auto meet = [&](const auto& self, const ir::Block& body) -> void {
    for (const ir::Stmt& stmt : body) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && pool().ConstInt(loop->extents[0]).value_or(0) > 0) self(self, loop->body);
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr || (gemm->plan && gemm->plan->by_warps)) continue;
      for (ir::BufferId operand : {gemm->a.buffer, gemm->b.buffer})
        if (const auto it = rings.find(operand); it != rings.end()) met.insert(it->second);
    }
  };
  meet(meet, block);
  for (const ir::Stmt& stmt : block) {
    const auto* step = std::get_if<ir::RingStep>(&stmt.op);
    if (step != nullptr && step->action == RingAction::kRelease && !met.contains(step->ring.barriers))
      rings_.at(step->ring.barriers).by_thread = true;
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) FindReleases(loop->body, rings);
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) FindReleases(loop->body, rings);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) FindReleases(branch->then_body, rings), FindReleases(branch->else_body, rings);
  }
}

void KernelLowering::LowerRoles() {
  const std::function<bool(const ir::Stmt&)> fills = compiler::FillsRing;
  const compiler::ProducerSlice slice(module_, kernel_, fills);
  When(b().CreateICmpEQ(thread_, I32(kernel_.threads)), [&] {
    for (Value* map : map_arguments_) device_->TensorPrefetch(map);
  });
  InitRings();
  const compiler::Facts facts = facts_;
  llvm::BasicBlock *fill = NewBlock("fill"), *work = NewBlock("work"), *end = NewBlock("roles.end");
  Value* warp = device_->Uniform(b().CreateUDiv(thread_, I32(context_.target->warp_size)));
  b().CreateCondBr(b().CreateICmpUGE(warp, I32(kernel_.threads / context_.target->warp_size)), fill, work);

  // Registers for each thread as the kernel starts, and as the roles share them afterwards.
  const int64_t groups = kernel_.threads / kGroupThreads, all = groups + kernel_.producers / kGroupThreads;
  // As in CreateKernel: max_registers takes precedence over min_blocks.
  const int64_t given = context_.options.max_registers(), limit = given == 0 ? 256 : Floor8(given);
  const int64_t blocks = given == 0 ? std::max(kernel_.min_blocks, 1u) : 1;
  const int64_t start = std::min(Floor8(int64_t(context_.target->registers_per_multiprocessor) / (all * kGroupThreads * blocks)), limit);
  const int64_t more = std::min(Floor8((start * all - compiler::kFewRegisters) / groups), compiler::kMostRegisters);
  const bool moves = start > compiler::kFewRegisters && start < compiler::kMostRegisters && more > start;

  b().SetInsertPoint(fill);
  if (moves) device_->SetRegisters(int(compiler::kFewRegisters), /*more=*/false);
  slice_ = &slice;
  When(b().CreateICmpEQ(thread_, I32(kernel_.threads)), [&] { LowerBlock(kernel_.body); });
  slice_ = nullptr;
  b().CreateBr(end);

  facts_ = facts;
  b().SetInsertPoint(work);
  if (moves) device_->SetRegisters(int(more), /*more=*/true);
  warp_group_ = device_->Uniform(b().CreateUDiv(thread_, I32(kGroupThreads)));
  LowerBlock(kernel_.body);
  FinishStores();
  b().CreateBr(end);
  b().SetInsertPoint(end);
  // The other block may write to this one's shared memory until then.
  if (multicast_) device_->ClusterBarrier();
}

void KernelLowering::InitRings() {
  const int64_t warps = kernel_.threads / context_.target->warp_size;
  When(b().CreateICmpEQ(thread_, I32(0)), [&] {
    for (const auto& [barriers, use] : rings_) {
      const int64_t stages = module_.ShapeOf(barriers)[0] / 2;
      device_->SetLocation(use.statement);
      for (int64_t s = 0; s < stages; ++s) {
        device_->PhaseInit(RingBarrier(barriers, I32(s)), 1);
        const uint32_t readers = use.by_thread ? kernel_.threads : uint32_t(warps);
        device_->PhaseInit(RingBarrier(barriers, I32(stages + s)), use.multicast ? readers * kPair : readers);
      }
    }
    device_->PhaseInitFence();
  });
  if (multicast_) {
    device_->ClusterBarrier();
  } else {
    device_->Barrier();
  }
  for (const auto& [barriers, use] : rings_) SetPosition(use.position, I32(0), I32(0));
}

// Tensor stores read tiles from shared memory, so the block waits until the last has read. The end of the kernel waits for their writes.
void KernelLowering::FinishStores() {
  if (has_stores_) device_->TensorStoreWait(0, /*read_only=*/true);
}

// --- rings ---

Value* KernelLowering::RingBarrier(ir::BufferId barriers, Value* index) {
  Value* pointer = b().CreateGEP(b().getInt64Ty(), shared_, index);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(*module_[barriers].shared_offset));
}

std::pair<Value*, Value*> KernelLowering::Position(ir::BufferId position) {
  Value* place = memory_.at(ir::Index(position));
  Value* stage = b().CreateLoad(b().getInt32Ty(), place);
  return {stage, b().CreateLoad(b().getInt32Ty(), b().CreateConstGEP1_32(b().getInt32Ty(), place, 1))};
}

// Blocks of the cluster take turns in loading. Fillings of a ring count from 0.
Value* KernelLowering::IsMyTurn(const ir::Ring& ring) {
  const auto [stage, parity] = Position(ring.position);
  const int64_t stages = module_.ShapeOf(ring.barriers)[0] / 2;
  Value* count = stages % 2 == 0 ? stage : b().CreateAdd(stage, parity);
  return b().CreateICmpEQ(b().CreateAnd(b().CreateXor(count, device_->ClusterRank()), I32(1)), I32(0));
}

void KernelLowering::SetPosition(ir::BufferId position, Value* stage, Value* parity) {
  Value* place = memory_.at(ir::Index(position));
  b().CreateStore(stage, place);
  b().CreateStore(parity, b().CreateConstGEP1_32(b().getInt32Ty(), place, 1));
}

void KernelLowering::LowerRingStep(const ir::RingStep& step) {
  // Only the producers acquire; both roles advance.
  const bool filling = slice_ != nullptr;
  if (!filling && step.action == RingAction::kAcquire) return;
  const int64_t stages = module_.ShapeOf(step.ring.barriers)[0] / 2;
  const auto [stage, parity] = Position(step.ring.position);
  const auto filled = [&] { return RingBarrier(step.ring.barriers, stage); };
  const auto emptied = [&] {
    Value* of = stage;
    if (step.behind != 0) {
      Value* wrapped = b().CreateICmpSLT(stage, I32(step.behind));
      of = b().CreateAdd(stage, b().CreateSelect(wrapped, I32(stages - step.behind), I32(-step.behind)));
    }
    return RingBarrier(step.ring.barriers, b().CreateAdd(of, I32(stages)));
  };
  switch (step.action) {
    case RingAction::kAcquire:
      // Every stage is empty at first: a wait for the phase before the first passes at once.
      device_->PhaseWait(emptied(), b().CreateXor(parity, I32(1)));
      device_->PhaseExpect(filled(), I32(step.bytes));
      return;
    case RingAction::kWait: return device_->PhaseWait(filled(), parity);
    case RingAction::kRelease: {
      const RingUse& use = rings_.at(step.ring.barriers);
      Value* lane = b().CreateURem(thread_, I32(context_.target->warp_size));
      Value* when = use.by_thread ? nullptr : b().CreateICmpEQ(lane, I32(0));
      // PTX ISA, "Causality order": a release alone does not keep a tensor copy from writing before these loads have read.
      if (use.fenced) device_->FenceAsyncProxy();
      device_->PhaseArrive(emptied(), when);
      // The other block fills this stage too.
      if (use.multicast) device_->PhaseArriveAt(emptied(), b().CreateXor(device_->ClusterRank(), I32(1)), when);
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

// --- tensor copies ---

// Where a box starts, innermost dimension first.
Values KernelLowering::BoxAt(const ir::Region& global, const compiler::TensorTile& tile, int64_t row, int64_t column) {
  Values at;
  // Far outside stays outside.
  const auto add = [&](Value* wide, int64_t step) {
    wide = b().CreateBinaryIntrinsic(llvm::Intrinsic::smax, wide, I64(INT32_MIN));
    wide = b().CreateBinaryIntrinsic(llvm::Intrinsic::smin, wide, I64(kFarthest));
    Value* offset = b().CreateTrunc(wide, b().getInt32Ty());
    at.push_back(step == 0 ? offset : b().CreateAdd(offset, I32(step)));
  };
  const bool panels = tile.map.panels > 1;
  for (size_t d = global.offsets.size(); d-- > 0;) {
    if (panels && d == tile.column_dim) {
      at.push_back(I32(0));
    } else {
      add(EvalIndex(global.offsets[d]), d == tile.row_dim ? row * tile.row_step : d == tile.column_dim ? column * tile.column_step : 0);
    }
  }
  if (panels) add(b().CreateSDiv(EvalIndex(global.offsets[tile.column_dim]), I64(tile.column_step), "", /*isExact=*/true), 0);
  return at;
}

void KernelLowering::LowerTensorCopy(const ir::Copy& copy) {
  const compiler::TensorTile tile = compiler::TileOf(module_, copy);
  const ir::Region &global = compiler::GlobalSide(module_, copy), &shared = compiler::SharedSide(module_, copy);
  const bool load = copy.plan->ring.has_value();
  if (load && slice_ == nullptr) return;  // the filling role's
  const size_t map = size_t(std::ranges::find(maps_, tile.map) - maps_.begin());
  const RegionStart start = StartOf(shared);
  Value* tile_offset = AddTo(start.after, start.before);
  Value* barrier = nullptr;
  if (load) barrier = RingBarrier(copy.plan->ring->barriers, Position(copy.plan->ring->position).first);
  Value* everybody = copy.plan->multicast ? b().getInt16((1 << kPair) - 1) : nullptr;
  const int64_t groups_m = copy.plan->groups_m, groups_n = copy.plan->groups_n;
  const auto owner = [&](int64_t row, int64_t column) { return groups_m == 0 ? 0 : row % groups_m + groups_m * (column * groups_n / tile.columns); };
  const auto move = [&](int64_t group) {
    for (int64_t row = 0; row < tile.rows; ++row) {
      for (int64_t column = 0; column < tile.columns; ++column) {
        if (owner(row, column) != group) continue;
        Value* place = tile_offset == nullptr ? shared_ : b().CreateGEP(b().getInt8Ty(), shared_, tile_offset);
        const int64_t constant = *module_[shared.buffer].shared_offset + row * tile.row_bytes + column * tile.column_bytes;
        place = b().CreateConstGEP1_64(b().getInt8Ty(), place, uint64_t(constant));
        const Values at = BoxAt(global, tile, row, column);
        if (load) {
          device_->TensorLoad(place, map_arguments_[map], at, barrier, everybody);
        } else {
          device_->TensorStore(map_arguments_[map], at, place);
        }
      }
    }
    if (!load) device_->TensorStoreCommit();
  };
  if (load && everybody != nullptr) return When(IsMyTurn(*copy.plan->ring), [&] { move(0); });
  if (load) return move(0);
  for (int64_t group = 0; group < std::max<int64_t>(1, groups_m * groups_n); ++group) {
    When(b().CreateICmpEQ(thread_, I32(group * kGroupThreads)), [&] { move(group); });
  }
}

}  // namespace kiln::llvm_ir
