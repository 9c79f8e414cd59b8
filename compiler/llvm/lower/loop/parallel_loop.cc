// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/parallel_loop.h"

#include <algorithm>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/llvm/lower/loop/matrix_store.h"

namespace kiln::llvm_ir {

using ir::Space;

namespace {

bool IsMemory(Space space) { return space == Space::kGlobal || space == Space::kShared; }

// Of conditions that "and" joins, the first one first.
void AddParts(const ir::ExprPool& pool, ir::ExprId cond, std::vector<ir::ExprId>& parts) {
  const ir::ExprNode& node = pool[cond];
  if (node.op != ir::ExprOp::kAnd) return parts.push_back(cond);
  for (const ir::ExprId arg : node.Args()) AddParts(pool, arg, parts);
}

}  // namespace

ParallelLoop::ParallelLoop(KernelContext& context, Evaluator& evaluator, Memory& memory, const compiler::ThreadLoop& loop)
    : Part(context),
      evaluator_(evaluator),
      memory_(memory),
      loop_(loop),
      iterations_(context, evaluator, loop),
      addresses_(context, evaluator, memory, iterations_),
      vectors_(context, memory, iterations_, addresses_),
      elements_(context, evaluator, memory, iterations_, addresses_),
      neighbours_(context, iterations_, addresses_, vectors_, elements_),
      access_(evaluator, *this) {}

void ParallelLoop::Lower(const ir::Stmt& stmt, const std::function<void(const ir::Block&)>& lower_body) {
  MakeAddresses(stmt);
  // If the loop reads what it writes, only the thread with the first copy runs an iteration: the other copies could read what the first has
  // already written.
  When(compiler::ReadsItsWrites(module(), stmt) ? iterations_.first_copy() : nullptr, [&] {
    if (loop_.only_stores) {
      LowerChunks();
    } else {
      LowerElements(lower_body);
    }
  });
}

// Addresses are made before the iterations so that all of these can use the values they share.
void ParallelLoop::MakeAddresses(const ir::Stmt& stmt) {
  for (const compiler::Access& access : compiler::AccessesOf(module(), stmt)) {
    const Space space = module()[access.buffer].space;
    if (access.tile || (!IsMemory(space) && space != Space::kFragment)) continue;
    addresses_.Of(access.buffer, access.indices, access.mask);
    if (access.mask && IsMemory(space)) addresses_.Of(access.buffer, access.indices);  // of what is loaded whatever the mask says
  }
  for (const ir::Stmt& inner : loop_.loop->body) {
    const auto* branch = loop_.only_stores ? std::get_if<ir::If>(&inner.op) : nullptr;
    if (branch == nullptr) continue;
    for (const ir::Stmt& within : branch->then_body) {
      const auto& store = std::get<ir::Store>(within.op);
      addresses_.Of(store.buffer, store.indices, branch->cond);
    }
  }
}

void ParallelLoop::LowerElements(const std::function<void(const ir::Block&)>& lower_body) {
  for (int64_t r = 0; r < loop_.Registers() && !context().too_long(); ++r) {
    When(iterations_.Exists(r), [&] {
      const FactsScope scope(context());  // what an iteration assumes need not hold in others
      iterations_.Enter(r);
      lower_body(loop_.loop->body);
    });
  }
}

void ParallelLoop::LowerChunks() {
  const ir::Block& body = loop_.loop->body;
  const auto* only = body.size() == 1 ? std::get_if<ir::Store>(&body[0].op) : nullptr;
  if (only != nullptr && only->plan && only->plan->form >= ir::StoreForm::kMatrix) {
    return StoreByMatrix(context(), memory_, loop_, addresses_, vectors_, neighbours_, *only);
  }
  if (only != nullptr && only->async && !SourceOf(*only).split) return LowerGather(body[0], *only);
  // Few threads come near the end of a tensor: one look spares the others a look at each copy.
  if (only != nullptr && IsClipped(*only) && !all_inside_) {
    Value* all = addresses_.AllInside(SourceOf(*only));
    if (all != nullptr) {
      When(all, [&] { all_inside_ = true, LowerChunks(), all_inside_ = false; });
      return When(b().CreateNot(all), [&] { LowerRuns(body); });
    }
  }
  LowerRuns(body);
}

void ParallelLoop::LowerRuns(const ir::Block& body) {
  for (int64_t first = 0; first < loop_.Registers() && !context().too_long(); first += loop_.run) {
    iterations_.SetGuard(iterations_.Exists(first));
    for (const ir::Stmt& stmt : body) {
      context().EnterStmt(stmt);
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        LowerBranch(stmt, *branch, first, loop_.run);
      } else if (const auto& store = std::get<ir::Store>(stmt.op); store.async) {
        LowerAsyncChunk(store, first, loop_.run);
      } else if (store.plan && store.plan->parted) {
        LowerParted(stmt, std::nullopt, {&stmt, 1}, first, loop_.run);
      } else {
        LowerChunk(store, first, loop_.run);
      }
      if (context().IsTooLong()) break;
    }
    iterations_.SetGuard(nullptr);
  }
}

// The iterations of planned stores share the condition, or meet it in a row; others are done one after the other.
void ParallelLoop::LowerBranch(const ir::Stmt& stmt, const ir::If& branch, int64_t first, int64_t count) {
  const auto planned = [](const ir::Stmt& stmt) { return std::get<ir::Store>(stmt.op).plan.has_value(); };
  const auto parted = [](const ir::Stmt& stmt) { return std::get<ir::Store>(stmt.op).plan->parted; };
  if (!std::ranges::all_of(branch.then_body, planned)) return LowerOneByOne(stmt, branch.cond, branch.then_body, first, count);
  if (std::ranges::any_of(branch.then_body, parted)) return LowerParted(stmt, branch.cond, branch.then_body, first, count);
  context().EnterStmt(stmt);
  iterations_.Enter(first);
  When(evaluator_.Eval(branch.cond), [&] { LowerTogether(branch.then_body, first, count, branch.cond); });
}

void ParallelLoop::LowerTogether(std::span<const ir::Stmt> stores, int64_t first, int64_t count, std::optional<ir::ExprId> cond) {
  const FactsScope scope(context());
  if (cond) context().facts().Assume(*cond);
  for (const ir::Stmt& stmt : stores) {
    context().EnterStmt(stmt);
    iterations_.Enter(first);
    LowerChunk(std::get<ir::Store>(stmt.op), first, count, cond);
  }
}

void ParallelLoop::LowerOneByOne(const ir::Stmt& stmt, std::optional<ir::ExprId> cond, std::span<const ir::Stmt> stores, int64_t first,
                                 int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    context().EnterStmt(stmt);
    iterations_.Enter(first + i);
    When(cond ? evaluator_.Eval(*cond) : nullptr, [&] {
      const FactsScope scope(context());
      if (cond) context().facts().Assume(*cond);
      for (const ir::Stmt& inner : stores) {
        context().EnterStmt(inner);
        iterations_.Enter(first + i);
        StoreElement(std::get<ir::Store>(inner.op));
      }
    });
  }
}

// Where the first and the last of a vector's neighbours meet the condition and lie inside, all do. What the condition begins with and all share is a
// branch. The emulator would take what only the others' values read for accesses of theirs.
void ParallelLoop::LowerParted(const ir::Stmt& stmt, std::optional<ir::ExprId> cond, std::span<const ir::Stmt> stores, int64_t first, int64_t count) {
  if (target().emulated) return LowerOneByOne(stmt, cond, stores, first, count);
  std::vector<ir::ExprId> parts;
  if (cond) AddParts(pool(), *cond, parts);
  const auto shared = [&](ir::ExprId part) {
    return compiler::MaskWidth(module(), facts(), *loop_.loop, loop_.extents.size() - 1, part, count) == count;
  };
  const auto own = std::ranges::find_if_not(parts, shared);
  const auto holds = [&](auto begin, auto end, int64_t reg) {
    Value* all = nullptr;
    if (begin != end) iterations_.Enter(reg);
    for (auto part = begin; part != end; ++part) all = Both(all, evaluator_.Eval(*part));
    return all;
  };
  context().EnterStmt(stmt);
  When(holds(parts.begin(), own, first), [&] {
    for (const ir::Stmt& inner : stores) {
      context().EnterStmt(inner);
      const auto& store = std::get<ir::Store>(inner.op);
      Values values = neighbours_.Eval(store, first, count);
      for (Value*& value : values) value = ToMemory(value, module()[store.buffer].dtype);
      const auto met = [&](int64_t reg) { return holds(own, parts.end(), reg); };
      vectors_.StoreParted(*store.plan, addresses_.Of(store.buffer, store.indices), first, values, met);
    }
  });
}

void ParallelLoop::LowerChunk(const ir::Store& store, int64_t first, int64_t count, std::optional<ir::ExprId> cond) {
  if (!store.plan) {
    for (int64_t i = 0; i < count; ++i) {
      iterations_.Enter(first + i);
      StoreElement(store);
    }
    return;
  }
  const ir::Buffer& buffer = module()[store.buffer];
  const ElementAddress& address = addresses_.Of(store.buffer, store.indices, cond);
  Values values = neighbours_.Eval(store, first, count);
  if (store.plan->form == ir::StoreForm::kRegisters) {
    for (int64_t i = 0; i < count; ++i) {
      StoreRegister(store, address.registers[size_t(first + i)], ToMemory(values[size_t(i)], buffer.dtype));
    }
    return;
  }
  for (Value*& value : values) value = ToMemory(value, buffer.dtype);
  vectors_.Store(*store.plan, address, first, values);
}

bool ParallelLoop::IsClipped(const ir::Store& store) { return store.async && store.plan && store.plan->loads.back().form == ir::LoadForm::kClipped; }

// What an async store copies. The value's other reads are of its indices and its mask.
ir::Read ParallelLoop::ReadOf(const ir::Store& store) const { return ir::ReadsOf(pool(), store.value).back(); }

const ElementAddress& ParallelLoop::SourceOf(const ir::Store& store) {
  const ir::Read read = ReadOf(store);
  const ir::ExprNode& load = pool()[read.load];
  return addresses_.Of(ir::BufferId(load.ref), load.Args(), read.mask);
}

void ParallelLoop::LowerAsyncChunk(const ir::Store& store, int64_t first, int64_t count) {
  Value* guard = iterations_.guard();
  When(Both(guard, iterations_.first_copy()), [&] {
    iterations_.SetGuard(nullptr);  // it holds here
    CopyAsync(store, first, count, AsyncSource(store, first));
    iterations_.SetGuard(guard);
  });
}

// Each chunk has a place of its own, and loads may say where. Those of several chunks are under way together before the first copy starts.
void ParallelLoop::LowerGather(const ir::Stmt& stmt, const ir::Store& store) {
  constexpr int64_t kTogether = 8;
  for (int64_t start = 0; start < loop_.Registers() && !context().too_long(); start += kTogether * loop_.run) {
    const int64_t end = std::min<int64_t>(loop_.Registers(), start + kTogether * loop_.run);
    std::vector<Source> sources;
    for (int64_t first = start; first < end; first += loop_.run) {
      context().EnterStmt(stmt);
      iterations_.SetGuard(iterations_.Exists(first));
      sources.push_back(AsyncSource(store, first));
    }
    for (int64_t first = start; first < end; first += loop_.run) {
      Value* exists = iterations_.Exists(first);
      iterations_.SetGuard(nullptr);
      When(Both(exists, iterations_.first_copy()), [&] { CopyAsync(store, first, loop_.run, sources[size_t((first - start) / loop_.run)]); });
    }
    if (context().IsTooLong()) break;
  }
}

void ParallelLoop::CopyAsync(const ir::Store& store, int64_t first, int64_t count, const Source& source) {
  const ElementAddress& to = addresses_.Of(store.buffer, store.indices);
  vectors_.CheckStore(to, first, count, nullptr);
  const int64_t bytes = ir::Bytes(module()[store.buffer].dtype);
  Value* copied = source.count == nullptr ? I32(count * bytes) : Scaled(source.count, bytes);
  if (source.exists != nullptr) copied = b().CreateSelect(source.exists, copied, I32(0));
  device().CopyAsync(addresses_.PointerAt(to, first), source.pointer, int(count * bytes), copied);
}

ParallelLoop::Source ParallelLoop::AsyncSource(const ir::Store& store, int64_t reg) {
  const ir::Read read = ReadOf(store);
  const ir::ExprNode& load = pool()[read.load];
  const ir::BufferId from{load.ref};
  const ElementAddress& address = SourceOf(store);
  if (read.mask || !address.split) iterations_.Enter(reg);
  Value* mask = read.mask ? evaluator_.Eval(*read.mask) : nullptr;
  Value *inside = nullptr, *pointer = nullptr;
  const auto find = [&] {
    if (!all_inside_) inside = address.split ? addresses_.ConditionAt(address, reg) : memory_.ElementExists(from, load.Args());
    pointer = address.split ? addresses_.PointerAt(address, reg) : memory_.ElementPointer(from, load.Args());
  };
  // What the indices load is loaded where the mask does not hold, too, if it is there.
  const bool asks = mask != nullptr && std::ranges::any_of(load.Args(), [&](ir::ExprId index) { return evaluator_.MayNotLoad(index); });
  asks ? evaluator_.EvalWhere(mask, find) : find();
  const bool counts = IsClipped(store) && !all_inside_;
  return {pointer, Both(mask, inside), counts ? addresses_.CountAt(address, reg, store.plan->loads.back().width) : nullptr};
}

// Whether the iteration under way writes the element, which exists where `condition` holds. An array of the thread's own is written by each
// copy of the iteration.
Value* ParallelLoop::WhereWritten(Space space, Value* condition) const {
  if (!IsMemory(space)) return iterations_.guard();
  return Both(Both(condition, iterations_.first_copy()), iterations_.guard());
}

// In the iteration entered last.
void ParallelLoop::StoreElement(const ir::Store& store) {
  const ir::Buffer& buffer = module()[store.buffer];
  const auto value = [&] { return ToMemory(evaluator_.Eval(store.value), buffer.dtype); };
  if (buffer.space == Space::kFragment) {
    Value* element = value();
    return StoreRegister(store, addresses_.Of(store.buffer, store.indices).registers[size_t(iterations_.current())], element);
  }
  Value* written = WhereWritten(buffer.space, memory_.ElementExists(store.buffer, store.indices));
  // As in ThreadAccess::Store.
  const bool apart = target().emulated;
  When(apart ? written : nullptr, [&] { memory_.Store(store.buffer, store.indices, value(), apart ? nullptr : written); });
}

// Stores an element of a fragment if the iteration exists. A thread without this iteration may hold another element in the same register.
void ParallelLoop::StoreRegister(const ir::Store& store, int64_t reg, Value* v) {
  Registers& registers = memory_.registers();
  if (iterations_.guard() != nullptr && !iterations_.PaddingIsTheSame(store)) {
    v = b().CreateSelect(iterations_.guard(), v, registers.Load(store.buffer, reg));
  }
  registers.Store(store.buffer, reg, v);
}

void ParallelLoop::Update(const ir::Stmt& stmt) {
  const auto& atomic = std::get<ir::Atomic>(stmt.op);
  Value* exists = memory_.ElementExists(atomic.buffer, atomic.indices);
  memory_.Update(atomic, WhereWritten(module()[atomic.buffer].space, exists));
}

}  // namespace kiln::llvm_ir
