// SPDX-License-Identifier: Apache-2.0
//
// Builder: the statements of a kernel.
#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "clients/cpp/builder.h"
#include "clients/cpp/builder_state.h"

namespace kiln {

static_assert(int(ReduceKind::kBitXor) == int(ir::ReduceKind::kBitXor));
static_assert(int(AtomicKind::kStore) == int(ir::AtomicKind::kStore));
static_assert(int(MemoryOrder::kSeqCst) == int(ir::MemoryOrder::kSeqCst));
static_assert(int(WarpPolicy::kFullCol) == int(ir::WarpPolicy::kFullCol));

namespace {

// Extents of an open operand: the other's, from the right, without those of 1 that find no dimension; what is left gets 1.
void Close(Operand& operand, const ir::Region& other) {
  std::vector<std::int64_t> wanted = other.extents;
  const std::size_t rank = operand.region.offsets.size();
  for (auto it = wanted.begin(); it != wanted.end() && wanted.size() > rank;) it = *it == 1 ? wanted.erase(it) : it + 1;
  const std::size_t count = std::min(rank, wanted.size());
  operand.region.extents.assign(rank, 1);
  std::copy_backward(wanted.end() - std::ptrdiff_t(count), wanted.end(), operand.region.extents.end());
  operand.open = false;
}

}  // namespace

Operand BuilderState::Open(const Region& given, const std::source_location& where) {
  const ir::BufferId buffer{given.tile_.id_};
  Operand operand{.region = {.buffer = buffer, .offsets = TakeAll(given.offsets_), .extents = given.extents_}};
  if (given.kind_ == Region::Kind::kAll) {
    const std::size_t rank = module[buffer].shape.size();
    const auto shape = module.ConstShape(buffer);
    if (!shape) {
      Report(fmt::format("all of {}, whose size is known at launch only", module[buffer].name),
             "a tile has a fixed size: give its first element, or a Slice", where);
    }
    operand.region.offsets.assign(rank, module.exprs.Int(0));
    operand.region.extents = shape.value_or(std::vector<std::int64_t>(rank, 1));
  }
  operand.open = given.kind_ == Region::Kind::kFrom;
  return operand;
}

ir::Region BuilderState::Closed(const Region& given, const std::source_location& where) {
  Operand operand = Open(given, where);
  if (operand.open) {
    Report(fmt::format("an element of {} where a tile is expected", module[operand.region.buffer].name), "give the whole tile, or a Slice", where);
  }
  return std::move(operand.region);
}

ir::Block BuilderState::Nested(const std::function<void()>& body) {
  struct Pop {  // also where the body throws
    std::vector<ir::Block*>& blocks;
    ~Pop() { blocks.pop_back(); }
  };
  ir::Block block;
  blocks.push_back(&block);
  const Pop pop{blocks};
  if (body) body();
  return block;
}

void Builder::CopySignalling(const Region& from, const Region& to, const Element& barrier, Where where) {
  Operand src = state_->Open(from, where), dst = state_->Open(to, where);
  if (src.open && dst.open) {
    return state_->Report("neither operand of the copy says how large the tile is", "give one of them as a whole tile, or a Slice", where);
  }
  if (src.open) Close(src, dst.region);
  if (dst.open) Close(dst, src.region);
  ir::Copy copy{.src = std::move(src.region), .dst = std::move(dst.region)};
  copy.signals = state_->ElementOf(barrier);
  state_->Append(std::move(copy), where);
}

void Builder::Copy(const Region& from, const Region& to, Where where) {
  Operand src = state_->Open(from, where), dst = state_->Open(to, where);
  if (src.open && dst.open) {
    return state_->Report("neither operand of the copy says how large the tile is", "give one of them as a whole tile, or a Slice", where);
  }
  if (src.open) Close(src, dst.region);
  if (dst.open) Close(dst, src.region);
  state_->Append(ir::Copy{.src = std::move(src.region), .dst = std::move(dst.region), .plan = {}}, where);
}

void Builder::Mma(const Region& a, const Region& b, const Region& c, std::array<std::uint32_t, 3> m_n_k, Where where) {
  state_->Append(
      ir::Mma{
          .a = state_->Closed(a, where), .b = state_->Closed(b, where), .c = state_->Closed(c, where), .m = m_n_k[0], .n = m_n_k[1], .k = m_n_k[2]},
      where);
}

kiln::Function Builder::Function(Language language, std::string symbol, std::string text) {
  std::vector<ir::Function>& functions = state_->module.functions;
  functions.push_back({ir::Language(language), std::move(symbol), std::move(text)});
  return kiln::Function(std::uint32_t(functions.size() - 1));
}

void Builder::Call(const kiln::Function& function, const std::vector<FunctionArgument>& arguments, Where where) {
  ir::Call call{.function = ir::FunctionId(function.id_), .arguments = {}};
  for (const FunctionArgument& argument : arguments) {
    ir::Argument given{.value = state_->Take(argument.value_)};
    if (argument.tile_) given.buffer = ir::BufferId{argument.tile_->id_};
    call.arguments.push_back(given);
  }
  state_->Append(std::move(call), where);
}

void Builder::Gemm(const Region& a, const Region& b, const Region& c, const GemmOptions& options, Where where) {
  state_->Append(ir::Gemm{.a = state_->Closed(a, where),
                          .b = state_->Closed(b, where),
                          .c = state_->Closed(c, where),
                          .transpose_a = options.transpose_a,
                          .transpose_b = options.transpose_b,
                          .policy = ir::WarpPolicy(options.policy),
                          .clear_accum = options.clear,
                          .allow_tf32 = options.allow_tf32,
                          .metadata = options.metadata ? std::optional(state_->Closed(*options.metadata, where)) : std::nullopt,
                          .transpose_metadata = options.transpose_metadata,
                          .plan = {}},
                 where);
}

void Builder::Fill(const Region& to, const Expr& value, Where where) {
  ir::Region region = state_->Closed(to, where);
  const ir::ExprId taken = state_->Take(value, state_->module[region.buffer].dtype);
  state_->Append(ir::Fill{std::move(region), taken}, where);
}

void Builder::Reduce(ReduceKind kind, const Region& from, const Region& to, int dim, bool clear, Where where) {
  state_->Append(ir::Reduce{.kind = ir::ReduceKind(kind),
                            .src = state_->Closed(from, where),
                            .dst = state_->Closed(to, where),
                            .dim = dim,
                            .clear = clear,
                            .scratch = {}},
                 where);
}

void Builder::Store(const Element& to, const Expr& value, Where where) {
  const ir::BufferId buffer{to.tile_.id_};
  state_->Append(ir::Store{.buffer = buffer, .indices = state_->TakeAll(to.index_), .value = state_->Take(value, state_->module[buffer].dtype)},
                 where);
}

ir::Element BuilderState::ElementOf(const Element& element) { return {ir::BufferId{element.tile_.id_}, TakeAll(element.index_)}; }

ir::Atomic BuilderState::AtomicOf(AtomicKind kind, const Element& to, const AtomicOptions& options) {
  ir::Atomic atomic{.kind = ir::AtomicKind(kind), .buffer = ir::BufferId{to.tile_.id_}, .indices = TakeAll(to.index_)};
  atomic.each_thread = options.each_thread;
  if (options.old) atomic.old = ElementOf(*options.old);
  atomic.order = ir::MemoryOrder(options.order);
  if (options.block) atomic.block = Take(*options.block);
  return atomic;
}

void Builder::Atomic(AtomicKind kind, const Element& to, const Expr& value, const AtomicOptions& options, Where where) {
  ir::Atomic atomic = state_->AtomicOf(kind, to, options);
  atomic.value = state_->Take(value, state_->module[atomic.buffer].dtype);
  state_->Append(std::move(atomic), where);
}

void Builder::CompareExchange(const Element& to, const Expr& compare, const Expr& value, const AtomicOptions& options, Where where) {
  ir::Atomic atomic = state_->AtomicOf(AtomicKind::kCompareExchange, to, options);
  atomic.value = state_->Take(value, state_->module[atomic.buffer].dtype);
  atomic.compare = state_->Take(compare, state_->module[atomic.buffer].dtype);
  state_->Append(std::move(atomic), where);
}

void Builder::AtomicLoad(const Element& from, const Element& old, MemoryOrder order, Where where) {
  state_->Append(state_->AtomicOf(AtomicKind::kLoad, from, {.each_thread = true, .old = old, .order = order}), where);
}

Expr Builder::Let(std::string name, const Expr& value, Where where) {
  ir::Module& module = state_->module;
  const ir::ExprId taken = state_->Take(value);
  const ir::VarId var = module.AddVar({.kind = ir::VarKind::kLet, .dtype = module.exprs.Type(taken), .name = std::move(name)});
  state_->Append(ir::Let{var, taken}, where);
  return state_->Give(module.VarRef(var));
}

Expr Builder::Number(DType dtype, const Expr& number) { return state_->Give(state_->Take(number, ir::DType(dtype))); }

void Builder::Assume(const Expr& condition, Where where) { state_->Append(ir::Assume{state_->Take(condition)}, where); }
void Builder::Barrier(Where where) { state_->Append(ir::Barrier{}, where); }
void Builder::GridBarrier(Where where) { state_->Append(ir::Barrier{.grid = true}, where); }
void Builder::ClusterBarrier(Where where) { state_->Append(ir::Barrier{.cluster = true}, where); }
void Builder::ArriveAt(const Element& barrier, const Expr& rank, Where where) {
  auto [buffer, indices] = state_->ElementOf(barrier);
  state_->Append(ir::Arrive{buffer, std::move(indices), state_->Take(rank)}, where);
}
void Builder::Arrive(const Element& barrier, Where where) {
  auto [buffer, indices] = state_->ElementOf(barrier);
  state_->Append(ir::Arrive{buffer, std::move(indices)}, where);
}
void Builder::Await(const Element& barrier, const Expr& parity, Where where) {
  auto [buffer, indices] = state_->ElementOf(barrier);
  state_->Append(ir::Await{buffer, std::move(indices), state_->Take(parity)}, where);
}
void Builder::Registers(std::uint32_t count, bool more, Where where) { state_->Append(ir::Registers{count, more}, where); }
void Builder::Break(Where where) { state_->Append(ir::Break{}, where); }
void Builder::Continue(Where where) { state_->Append(ir::Continue{}, where); }

void Builder::If(const Expr& condition, const Body& then, const Body& otherwise, Where where) {
  const ir::ExprId taken = state_->Take(condition);
  state_->ReportBroken(where);
  ir::Block then_body = state_->Nested(then), else_body = state_->Nested(otherwise);
  state_->Append(ir::If{taken, std::move(then_body), std::move(else_body)}, where);
}

void Builder::While(const Expr& condition, const Body& body, Where where) {
  const ir::ExprId taken = state_->Take(condition);
  state_->ReportBroken(where);
  state_->Append(ir::While{taken, state_->Nested(body)}, where);
}

void Builder::Loop(LoopKind kind, std::vector<Expr> extents, std::uint32_t stages, int arity, const VarsBody& body, const Where& where) {
  ir::Module& module = state_->module;
  if (std::size_t(arity) != extents.size()) {
    return state_->Report(fmt::format("a loop over {} extents and a body of {} indices", extents.size(), arity), "", where);
  }
  ir::For loop{.kind = ir::LoopKind(kind), .vars = {}, .extents = state_->TakeAll(extents), .body = {}, .num_stages = stages, .layout = {}};
  state_->ReportBroken(where);
  constexpr const char* kNames[] = {"i", "j", "k", "l"};
  std::vector<Expr> vars;
  for (std::size_t d = 0; d < extents.size(); ++d) {
    loop.vars.push_back(module.AddVar({.kind = ir::VarKind::kLoop, .dtype = module.exprs.Type(loop.extents[d]), .name = kNames[d]}));
    vars.push_back(state_->Give(module.VarRef(loop.vars.back())));
  }
  loop.body = state_->Nested([&] { body(vars); });
  state_->Append(std::move(loop), where);
}

void Builder::Serial(const Expr& extent, const std::function<void(Expr)>& body, Where where) {
  Loop(LoopKind::kSerial, {extent}, 0, 1, [&](Vars vars) { body(vars[0]); }, where);
}
void Builder::Unroll(const Expr& extent, const std::function<void(Expr)>& body, Where where) {
  Loop(LoopKind::kUnroll, {extent}, 0, 1, [&](Vars vars) { body(vars[0]); }, where);
}
void Builder::Vectorized(const Expr& extent, const std::function<void(Expr)>& body, Where where) {
  Loop(LoopKind::kVectorized, {extent}, 0, 1, [&](Vars vars) { body(vars[0]); }, where);
}
void Builder::Pipelined(const Expr& extent, std::uint32_t stages, const std::function<void(Expr)>& body, Where where) {
  Loop(LoopKind::kPipelined, {extent}, stages, 1, [&](Vars vars) { body(vars[0]); }, where);
}
void Builder::Persistent(const Expr& extent, const std::function<void(Expr)>& body, Where where) {
  Loop(LoopKind::kPersistent, {extent}, 0, 1, [&](Vars vars) { body(vars[0]); }, where);
}

}  // namespace kiln
