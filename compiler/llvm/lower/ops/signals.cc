// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/signals.h"

#include <algorithm>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {

// Each group asks once at most, and all that they ask for must be there at one time.
void Signals::FindRegisters() {
  at_start_ = compiler::RegistersAtStart(kernel(), target(), context().request().options.max_registers());
  int64_t more = 0;
  std::vector<ir::ThreadRange> asked;
  const auto find = [&](const auto& self, const ir::Block& block, const ir::ThreadRange& threads) -> void {
    for (const ir::Stmt& stmt : block) {
      if (const auto* op = std::get_if<ir::Registers>(&stmt.op)) {
        fits_ &= std::ranges::all_of(asked, [&](const ir::ThreadRange& other) { return other.end <= threads.begin || threads.end <= other.begin; });
        asked.push_back(threads);
        more += (int64_t(op->count) - at_start_) * threads.Count();
        fits_ &= threads.begin % compiler::kGroupThreads == 0 && threads.end % compiler::kGroupThreads == 0;
        fits_ &= op->more ? op->count >= at_start_ : op->count <= at_start_;
      }
      const auto* branch = std::get_if<ir::If>(&stmt.op);
      if (branch == nullptr) {
        ir::ForEachBody(stmt.op, [&](const ir::Block& body) { self(self, body, threads); });
      } else {
        self(self, branch->then_body, branch->then_threads.value_or(threads));
        self(self, branch->else_body, branch->else_threads.value_or(threads));
      }
    }
  };
  find(find, kernel().body, compiler::AllThreads(kernel()));
  fits_ &= more <= 0 && target().Has(target::Feature::kWgmma) && kernel().producers == 0;
}

// The tensor unit copies by itself: an arrival behind such a copy has nothing more to order than the one before it.
void Signals::FindFenced(const ir::Block& block) {
  bool fenced = false;
  for (const ir::Stmt& stmt : block) {
    const auto* arrive = std::get_if<ir::Arrive>(&stmt.op);
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    const bool by_unit = copy != nullptr && copy->signals && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor;
    bool loads = false;
    ir::ForEachExpr(stmt.op, [&](ir::ExprId id) {
      loads |= compiler::Contains(pool(), id, [&](ir::ExprId part) { return pool()[part].op == ir::ExprOp::kLoad; });
    });
    if (arrive != nullptr && fenced && !loads) fenced_.insert(arrive);
    fenced = !loads && (arrive != nullptr || (fenced && (by_unit || std::holds_alternative<ir::Let>(stmt.op))));
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) { FindFenced(body); });
  }
}

void Signals::Find() {
  FindRegisters();
  FindFenced(kernel().body);
  ir::Walk(kernel().body, [&](const ir::Stmt& stmt) {
    const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
    if (alloc != nullptr && !module()[alloc->buffer].arrivals.empty()) barriers_.emplace_back(alloc->buffer, stmt.loc.line);
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    async_ |= gemm != nullptr && RowOf(*gemm, target()).in_flight;
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    async_ |= copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor;
    reaches_others_ |= compiler::GoesToOtherBlocks(stmt);
    const auto* arrive = std::get_if<ir::Arrive>(&stmt.op);
    if (arrive != nullptr && arrive->block) of_cluster_.insert(arrive->buffer);
    if (arrive != nullptr && arrive->after_copies) of_copies_.insert(arrive->buffer);
  });
}

void Signals::Init() {
  InitBarriers();
  if (reaches_others_) device().ClusterBarrier();
}

// Until then, other blocks may reach this one's shared memory.
void Signals::Finish() {
  if (reaches_others_) device().ClusterBarrier();
}

void Signals::InitBarriers() {
  if (barriers_.empty()) return;
  When(b().CreateICmpEQ(thread(), I32(0)), [&] {
    for (const auto& [buffer, statement] : barriers_) {
      device().SetLocation(statement);
      int i = 0;
      for (const uint32_t arrivals : module()[buffer].arrivals) device().PhaseInit(At(buffer, I32(i++)), arrivals);
    }
    device().PhaseInitFence();
  });
  device().Barrier();
}

Value* Signals::At(ir::BufferId barriers, Value* index) const {
  Value* pointer = b().CreateGEP(b().getInt64Ty(), places_.Shared(), index);
  return b().CreateConstGEP1_64(b().getInt8Ty(), pointer, uint64_t(*module()[barriers].shared_offset));
}

Value* Signals::Of(ir::BufferId barriers, const std::vector<ir::ExprId>& indices) {
  return At(barriers, b().CreateTrunc(evaluator_.EvalIndex(indices.front()), b().getInt32Ty()));
}

// PTX ISA, "Causality order": an arrival orders accesses of threads; those of products and tensor copies need the fence.
void Signals::Lower(const ir::Arrive& arrive) {
  if (async_ && !fenced_.contains(&arrive)) device().FenceAsyncProxy();
  Value* barrier = Of(arrive.buffer, arrive.indices);
  if (arrive.after_copies) return device().PhaseArriveAfterCopies(barrier, arrive.after_accesses);
  if (!arrive.block) return device().PhaseArrive(barrier, nullptr);
  Value* rank = b().CreateTrunc(evaluator_.EvalIndex(*arrive.block), b().getInt32Ty());
  device().PhaseArriveAt(barrier, rank, nullptr, /*releases=*/true);
}

// What threads of other blocks have written to this one's memory is not there for products and tensor copies before this fence: theirs is of their
// own memory. Nor is what copies brought that arrived themselves, behind the fence of their thread.
void Signals::Lower(const ir::Await& await) {
  Value* parity = evaluator_.Eval(await.parity);
  Value* turn = b().CreateAnd(b().CreateZExtOrTrunc(parity, b().getInt32Ty()), I32(1));
  const bool of_cluster = of_cluster_.contains(await.buffer);
  device().PhaseWait(Of(await.buffer, await.indices), turn, of_cluster);
  if (async_ && (of_cluster || of_copies_.contains(await.buffer))) device().FenceAsyncProxy();
}

// PTX ISA, setmaxnreg: what a group asks for beyond what the others leave would never come.
void Signals::Lower(const ir::Registers& registers) {
  if (registers.count == at_start_ || !fits_) return;
  device().SetRegisters(int(registers.count), registers.more);
}

}  // namespace kiln::llvm_ir
