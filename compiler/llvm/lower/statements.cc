// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/statements.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <span>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/iterations_together.h"
#include "compiler/analysis/unrolled.h"
#include "compiler/llvm/lower/loop/claims.h"
#include "compiler/llvm/lower/loop/parallel_loop.h"
#include "compiler/llvm/lower/ops/pair_sum.h"
#include "compiler/llvm/lower/ops/products.h"
#include "compiler/llvm/lower/ops/stream_sum.h"
#include "compiler/rules/reduce.h"

namespace kiln::llvm_ir {

using ir::Overloaded;
using ir::Space;

namespace {

// The order of the one change that a loop's iterations make of global memory, if they do nothing else there and a thread has several of them: they
// are in no order, so that what the changes order is what stands before and behind the loop. kRelaxed: each change has its own order, as those have
// that are in one order with the changes of all threads.
ir::MemoryOrder SharedOrder(const ir::Module& module, const ir::For& loop) {
  using ir::MemoryOrder;
  MemoryOrder order = MemoryOrder::kRelaxed;
  int changes = 0;
  bool shared = loop.layout && loop.layout->Registers() > 1;
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op)) {
      shared &= atomic->kind <= ir::AtomicKind::kBitXor && !atomic->block && module[atomic->buffer].space == ir::Space::kGlobal;
      order = atomic->order, ++changes;
    } else if (const auto* store = std::get_if<ir::Store>(&stmt.op)) {
      shared &= module[store->buffer].space != ir::Space::kGlobal;
    } else {
      shared &= std::holds_alternative<ir::If>(stmt.op) || std::holds_alternative<ir::Let>(stmt.op);
    }
    std::vector<compiler::Access> loads;
    ir::ForEachExpr(stmt.op, [&](ir::ExprId expr) { compiler::CollectLoads(module.exprs, expr, loads); });
    for (const compiler::Access& load : loads) shared &= module[load.buffer].space != ir::Space::kGlobal;
  });
  return shared && changes == 1 && order != MemoryOrder::kSeqCst ? order : MemoryOrder::kRelaxed;
}

}  // namespace

void Statements::LowerBlock(const ir::Block& block) {
  for (size_t i = 0; i < block.size();) {
    const std::span<const ir::Stmt> rest = std::span(block).subspan(i);
    const size_t together = threads().slice == nullptr ? compiler::ExchangeTogether(rest) : 0;
    together == 0 ? LowerStmt(rest[0]) : reductions_.Lower(rest.first(together));
    if (context().IsTooLong()) return;
    i += std::max<size_t>(together, 1);
  }
}

void Statements::LowerStmt(const ir::Stmt& stmt) {
  if (threads().slice != nullptr && !threads().slice->Runs(stmt)) return;
  context().EnterStmt(stmt);
  std::visit(Overloaded{
                 [&](const ir::Alloc& op) { AllocateAgain(op.buffer); },
                 [&](const ir::For& op) { LowerFor(stmt, op); },
                 [&](const ir::If& op) { LowerIf(op); },
                 [&](const ir::While& op) { LowerWhile(op); },
                 [&](const ir::Let& op) {
                   evaluator_.Bind(op.var, evaluator_.Eval(op.value));
                   context().facts().Bind(op);
                 },
                 [&](const ir::Store&) { evaluator_.access().Store(stmt); },
                 [&](const ir::Assume& op) { context().facts().Assume(op.cond); },
                 [&](const ir::Copy& op) { copies_.Lower(op); },
                 [&](const ir::Gemm& op) { LowerProduct(context(), memory_, op); },
                 [&](const ir::Mma& op) { LowerMma(context(), memory_, op); },
                 [&](const ir::Call& op) { calls_.Lower(op); },
                 [&](const ir::Elementwise auto&) { Internal(fmt::format("a {} was left to lowering", ir::Name(stmt.op))); },
                 [&](const ir::Reduce&) { reductions_.Lower({&stmt, 1}); },
                 [&](const ir::Atomic& op) { LowerAtomic(stmt, op); },
                 [&](const ir::Barrier& op) {
                   if (op.grid) return barriers_.WaitForGrid(memory_.places().Of(*op.counter));
                   op.cluster ? barriers_.WaitForCluster() : barriers_.Wait(stmt);
                 },
                 [&]<ir::OneOf<ir::Arrive, ir::Await, ir::Registers> T>(const T& op) { signals_.Lower(op); },
                 [&](const ir::Break&) { LeaveTo(loops_.back().end); },
                 [&](const ir::Continue&) { LeaveTo(loops_.back().next); },
                 [&](const ir::AsyncCommit&) { device().AsyncCommit(); },
                 [&](const ir::AsyncWait& op) { Wait(op); },
                 [&](const ir::RingStep& op) { rings_.Lower(op); },
                 [&](const ir::PairSum& op) { LowerPairSum(context(), memory_, op); },
                 [&](const ir::StreamSum& op) { LowerStreamSum(context(), evaluator_, memory_, barriers_, op); },
             },
             stmt.op);
}

void Statements::LowerAtomic(const ir::Stmt& stmt, const ir::Atomic& atomic) {
  const ir::Buffer& buffer = module()[atomic.buffer];
  if (buffer.space == Space::kGlobal || buffer.space == Space::kShared) return evaluator_.access().Update(stmt);
  Unsupported(fmt::format("an atomic on '{}' in {} memory", buffer.name, ir::Name(buffer.space)),
              "atomics work on global and shared buffers; elsewhere use an ordinary store");
}

void Statements::Wait(const ir::AsyncWait& wait) {
  if (wait.product) return WaitForProduct(context(), memory_, *wait.product, wait.pending);
  if (wait.stores) return device().TensorStoreWait(wait.pending, /*read_only=*/true);
  device().AsyncWait(wait.pending);
}

// In each iteration of a loop the buffer begins without values.
void Statements::AllocateAgain(ir::BufferId buffer) {
  const bool again = !loops_.empty() && kernel().producers == 0 && module()[buffer].versions == 1;
  if (again && module()[buffer].space == Space::kShared) device().Allocate(ir::Index(buffer));
}

void Statements::LeaveTo(llvm::BasicBlock* block) {
  b().CreateBr(block);
  b().SetInsertPoint(NewBlock("unreachable"));
}

void Statements::LowerFor(const ir::Stmt& stmt, const ir::For& loop) {
  const FactsScope scope(context());
  context().facts().EnterLoop(loop);
  const std::optional<int64_t> extent = loop.extents.size() == 1 ? pool().ConstInt(loop.extents[0]) : std::nullopt;
  if (loop.kind == ir::LoopKind::kParallel || loop.kind == ir::LoopKind::kVectorized) {
    LowerParallel(stmt);
  } else if (extent && (*extent <= 1 || compiler::IsWrittenOut(module(), loop, context().request().max_unrolled()))) {
    LowerUnrolled(loop, *extent);
  } else {
    LowerSerial(loop);
  }
}

void Statements::LowerParallel(const ir::Stmt& stmt) {
  const compiler::ThreadLoop loop(module(), facts(), stmt);
  if (loop.IsEmpty()) return;
  // A vectorized loop is each thread's own, and says nothing of the elements of others.
  const bool claimed = loop.loop->kind == ir::LoopKind::kParallel && BeginClaim(context(), evaluator_, memory_, *loop.loop);
  const ir::MemoryOrder order = SharedOrder(module(), *loop.loop);
  const bool fenced = device().FenceAtomics(order, /*behind=*/false);
  memory_.SetFenced(fenced);
  ParallelLoop parallel(context(), evaluator_, memory_, loop);
  parallel.Lower(stmt, [&](const ir::Block& body) { LowerBlock(body); });
  memory_.SetFenced(false);
  if (fenced) device().FenceAtomics(order, /*behind=*/true);
  if (claimed) device().EndClaim();
}

// What an iteration assumes need not hold in others, nor behind the loop.
void Statements::LowerLoopBody(const ir::Block& body, const LoopBlocks& blocks) {
  const FactsScope scope(context());
  loops_.push_back(blocks);
  LowerBlock(body);
  loops_.pop_back();
  b().CreateBr(blocks.next);
}

void Statements::LowerUnrolled(const ir::For& loop, int64_t extent) {
  const ir::DType type = module()[loop.vars[0]].dtype;
  llvm::BasicBlock* end = NewBlock("unrolled.end");
  for (int64_t i = 0; i < extent && !context().too_long(); ++i) {
    evaluator_.Bind(loop.vars[0], llvm::ConstantInt::get(ValueType(llvm(), type), uint64_t(i)));
    llvm::BasicBlock* next = NewBlock("unrolled.next");
    LowerLoopBody(loop.body, {next, end});
    b().SetInsertPoint(next);
  }
  b().CreateBr(end);
  b().SetInsertPoint(end);
}

void Statements::LowerSerial(const ir::For& loop) {
  Value* extent = evaluator_.Eval(loop.extents[0]);
  Value* zero = llvm::ConstantInt::get(extent->getType(), 0);
  const int64_t together = compiler::IterationsTogether(module(), loop);
  if (together == 1) return LowerIterations(loop, zero, extent, 1);
  Value* count = b().CreateBinaryIntrinsic(llvm::Intrinsic::smax, extent, zero);
  Value* whole = b().CreateAnd(count, llvm::ConstantInt::getSigned(extent->getType(), -together));
  LowerIterations(loop, zero, whole, together);
  LowerIterations(loop, whole, count, 1);
}

// Those from `first` on to `limit`, `together` of which are written one behind the other.
void Statements::LowerIterations(const ir::For& loop, Value* first, Value* limit, int64_t together) {
  llvm::Type* type = limit->getType();
  llvm::BasicBlock *before = b().GetInsertBlock(), *body = NewBlock("loop"), *next = NewBlock("loop.next"), *end = NewBlock("loop.end");
  b().CreateCondBr(b().CreateICmpSGT(limit, first), body, end);
  b().SetInsertPoint(body);
  llvm::PHINode* var = b().CreatePHI(type, 2, module()[loop.vars[0]].name);
  var->addIncoming(first, before);
  b().SetInsertPoint(next);
  const auto after = [&](int64_t count) { return b().CreateAdd(var, llvm::ConstantInt::get(type, uint64_t(count)), "", /*NUW=*/true, /*NSW=*/true); };
  Value* increment = after(together);
  // Added before the body: until the variable has its increment, LLVM's facts about it would say that it is 0.
  var->addIncoming(increment, next);
  b().CreateCondBr(b().CreateICmpSLT(increment, limit), body, end);
  b().SetInsertPoint(body);
  for (int64_t i = 0; i < together; ++i) {
    evaluator_.Bind(loop.vars[0], i == 0 ? var : after(i));
    llvm::BasicBlock* following = i + 1 == together ? next : NewBlock("loop.following");
    LowerLoopBody(loop.body, {following, end});
    b().SetInsertPoint(following);
  }
  b().SetInsertPoint(end);
}

void Statements::LowerWhile(const ir::While& loop) {
  llvm::BasicBlock *head = NewBlock("while"), *body = NewBlock("while.body"), *end = NewBlock("while.end");
  b().CreateBr(head);
  b().SetInsertPoint(head);
  b().CreateCondBr(evaluator_.Eval(loop.cond), body, end);
  b().SetInsertPoint(body);
  LowerLoopBody(loop.body, {head, end});
  b().SetInsertPoint(end);
}

void Statements::LowerIf(const ir::If& branch) {
  Value* condition = evaluator_.Eval(branch.cond);
  if (auto* constant = llvm::dyn_cast<llvm::ConstantInt>(condition)) {
    constant->isZero() ? LowerBranch(branch.else_body, branch.else_threads) : LowerBranch(branch.then_body, branch.then_threads);
    return;
  }
  llvm::BasicBlock *then = NewBlock("if.then"), *otherwise = NewBlock("if.else"), *end = NewBlock("if.end");
  b().CreateCondBr(condition, then, otherwise);
  {
    const FactsScope scope(context());
    context().facts().Assume(branch.cond);
    b().SetInsertPoint(then);
    LowerBranch(branch.then_body, branch.then_threads);
    b().CreateBr(end);
  }
  const FactsScope scope(context());
  b().SetInsertPoint(otherwise);
  LowerBranch(branch.else_body, branch.else_threads);
  b().CreateBr(end);
  b().SetInsertPoint(end);
}

// A branch counts its threads from the first that enters it.
void Statements::LowerBranch(const ir::Block& body, const std::optional<ir::ThreadRange>& range) {
  if (!range || range->IsSame(threads().range)) return LowerBlock(body);
  const uint32_t count = range->Count();
  const bool masks = std::has_single_bit(count) && range->begin % count == 0;  // known to be less than `count`
  Value* block_thread = context().block_thread();
  Value* number = masks ? b().CreateAnd(block_thread, I32(count - 1)) : b().CreateSub(block_thread, I32(range->begin));
  const Threads outer = context().SetThreads({.range = *range, .thread = number, .warp_group = nullptr, .slice = threads().slice});
  LowerBlock(body);
  context().SetThreads(outer);
}

}  // namespace kiln::llvm_ir
