// SPDX-License-Identifier: Apache-2.0
#include "ir/grammar/random_module.h"

#include "ir/fields.h"
#include "ir/op.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>

namespace kiln::ir {
namespace {

const std::vector<ExprOp> kFloatBinary = {ExprOp::kAdd, ExprOp::kSub, ExprOp::kMul, ExprOp::kDiv,    ExprOp::kMin,
                                          ExprOp::kMax, ExprOp::kPow, ExprOp::kMod, ExprOp::kDivFull};
const std::vector<ExprOp> kFloatUnary = {ExprOp::kNeg,   ExprOp::kAbs,   ExprOp::kExp2, ExprOp::kExp2Ftz,
                                         ExprOp::kRsqrt, ExprOp::kFloor, ExprOp::kErf,  ExprOp::kSigmoid};
const std::vector<ExprOp> kIntBinary = {ExprOp::kAdd,      ExprOp::kSub,      ExprOp::kMul, ExprOp::kDiv, ExprOp::kMod,
                                        ExprOp::kFloorDiv, ExprOp::kFloorMod, ExprOp::kMin, ExprOp::kMax, ExprOp::kBitAnd,
                                        ExprOp::kBitOr,    ExprOp::kBitXor,   ExprOp::kShl, ExprOp::kShr};
const std::vector<ExprOp> kIntUnary = {ExprOp::kNeg, ExprOp::kAbs, ExprOp::kBitNot};
const std::vector<ExprOp> kCompare = {ExprOp::kEq, ExprOp::kNe, ExprOp::kLt, ExprOp::kLe, ExprOp::kGt, ExprOp::kGe};
const std::vector<DType> kFloats = {DType::kF16,    DType::kBF16,       DType::kF32,  DType::kF64,   DType::kF8E4M3,
                                    DType::kF8E5M2, DType::kF8E4M3FNUZ, DType::kTF32, DType::kF4E2M1};
const std::vector<DType> kInts = {DType::kI8, DType::kI16, DType::kI32, DType::kI64, DType::kU8, DType::kU32, DType::kU64, DType::kI4, DType::kU4};

}  // namespace

std::string RandomModule::Name() {
  // Clashes, odd characters and no name at all.
  return Pick<std::string>({"", "x", "x", "x_1", "v0", "b1", "a b", "As"});
}

DType RandomModule::NumberType() { return Coin() ? Pick(kFloats) : Pick(kInts); }

double RandomModule::FloatValue() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (Below(4) == 0) return Pick<double>({0.0, -0.0, kInf, -kInf, std::nan(""), 1e-300, 5e-324, 65504, 1.0, -1.0});
  uint64_t bits = uint64_t(random_()) << 32 | random_();
  return Coin() ? std::bit_cast<double>(bits) : double(int32_t(bits)) / 1024;
}

ExprId RandomModule::Leaf(DType type) {
  ExprPool& pool = module_.exprs;
  if (type == DType::kBool) return pool.Bool(Coin());
  if (type == DType::kI32 && !ints_.empty() && Coin()) return module_.VarRef(Pick(ints_));
  if (type == DType::kF32 && !floats_.empty() && Coin()) return module_.VarRef(Pick(floats_));
  if (IsFloat(type)) return pool.Float(FloatValue(), type);
  return pool.Int(Coin() ? Below(9) - 4 : int64_t(uint64_t(random_()) << 32 | random_()), type);
}

ExprId RandomModule::Expr(DType type, int depth) {
  ExprPool& pool = module_.exprs;
  if (depth <= 0) return Leaf(type);
  switch (Below(8)) {
    case 0: return Leaf(type);
    case 1: return pool.Cast(type, Expr(NumberType(), depth - 1));
    case 2: return pool.Select(BoolExpr(depth - 1), Expr(type, depth - 1), Expr(type, depth - 1));
    case 3: {
      BufferId buffer = Pick(buffers_);
      std::vector<ExprId> indices = Indices(buffer);
      const ExprId load = pool.Load(buffer, module_[buffer].dtype, indices);
      if (Below(3) != 0) return pool.Cast(type, load);
      return pool.Cast(type, pool.Make(ExprOp::kMasked, {BoolExpr(depth - 1), load, Expr(module_[buffer].dtype, depth - 1)}));
    }
    default: break;
  }
  if (type == DType::kBool) return BoolExpr(depth);
  return IsFloat(type) ? FloatExpr(type, depth) : IntExpr(type, depth);
}

ExprId RandomModule::FloatExpr(DType type, int depth) {
  if (Below(8) == 0) return module_.exprs.Make(ExprOp::kFma, {Expr(type, depth - 1), Expr(type, depth - 1), Expr(type, depth - 1)});
  if (Below(3) == 0) return module_.exprs.Make(Pick(kFloatUnary), {Expr(type, depth - 1)});
  return module_.exprs.Make(Pick(kFloatBinary), {Expr(type, depth - 1), Expr(type, depth - 1)});
}

ExprId RandomModule::IntExpr(DType type, int depth) {
  if (Below(4) == 0) return module_.exprs.Make(Pick(kIntUnary), {Expr(type, depth - 1)});
  return module_.exprs.Make(Pick(kIntBinary), {Expr(type, depth - 1), Expr(type, depth - 1)});
}

ExprId RandomModule::BoolExpr(int depth) {
  if (depth <= 0) return Leaf(DType::kBool);
  ExprPool& pool = module_.exprs;
  switch (Below(5)) {
    case 0: return pool.Make(ExprOp::kNot, {BoolExpr(depth - 1)});
    case 1: return pool.Make(Coin() ? ExprOp::kAnd : ExprOp::kOr, {BoolExpr(depth - 1), BoolExpr(depth - 1)});
    case 2: return pool.Make(ExprOp::kIsNan, {Expr(Pick(kFloats), depth - 1)});
    default: break;
  }
  DType type = NumberType();
  return pool.Make(Pick(kCompare), {Expr(type, depth - 1), Expr(type, depth - 1)});
}

std::vector<ExprId> RandomModule::Indices(BufferId buffer) {
  std::vector<ExprId> indices;
  for (size_t i = 0; i < module_[buffer].shape.size(); ++i) {
    bool single = module_.exprs.IsConst(module_[buffer].shape[i], 1);
    indices.push_back(Coin() ? module_.exprs.Int(single ? 0 : Below(2)) : module_.VarRef(Pick(ints_)));
  }
  return indices;
}

Layout RandomModule::SomeLayout(const std::vector<int64_t>& shape) { return Layout::Distributed(shape, 32, 1); }

BufferId RandomModule::AddTile(Space space, DType type, std::vector<int64_t> shape) {
  Buffer buffer{.space = space, .dtype = type, .name = Name()};
  for (int64_t extent : shape) buffer.shape.push_back(module_.exprs.Int(extent));
  if (decisions_ && space == Space::kFragment) buffer.layout = SomeLayout(shape);
  if (decisions_ && space == Space::kShared) buffer.shared_offset = Below(1000) * 16;
  BufferId id = module_.AddBuffer(std::move(buffer));
  block_->push_back({Alloc{id}, {}});
  buffers_.push_back(id);
  return id;
}

Ring RandomModule::AddRing() {
  const Ring ring{AddTile(Space::kBarrier, DType::kI64, {4}), AddTile(Space::kLocal, DType::kI32, {2})};
  std::erase(buffers_, ring.barriers);  // it holds no elements
  return ring;
}

BufferId RandomModule::AddBarriers() {
  const BufferId barriers = AddTile(Space::kBarrier, DType::kI64, {2});
  module_[barriers].arrivals = {uint32_t(1 + Below(32)), 32};
  std::erase(buffers_, barriers);  // they hold no elements
  return barriers;
}

Region RandomModule::Whole(BufferId buffer) {
  Region region{.buffer = buffer, .offsets = {}, .extents = module_.ShapeOf(buffer)};
  region.offsets.assign(region.extents.size(), module_.exprs.Int(0));
  return region;
}

void RandomModule::Header() {
  module_.name = Name();
  VarId symbol = module_.AddVar({VarKind::kSymbol, DType::kI32, 0, Name()});
  for (int i = 0; i < 1 + Below(3); ++i) {
    Buffer buffer{.space = Space::kGlobal, .dtype = NumberType(), .name = Name()};
    buffer.shape = {i == 0 ? module_.VarRef(symbol) : module_.exprs.Int(Below(100)), module_.exprs.Int(64)};
    if (Coin()) buffer.strides = {module_.exprs.Int(64), module_.exprs.Int(1)};
    if (Coin()) buffer.pad_value = IsFloat(buffer.dtype) ? FloatValue() : double(Below(8));
    buffer.may_alias = Coin();
    buffers_.push_back(module_.AddBuffer(std::move(buffer)));
    module_.params.push_back(buffers_.back());
  }
  VarId scalar = module_.AddVar({VarKind::kScalar, DType::kF32, 0, Name()});
  module_.params.push_back(scalar);
  if (module_.params.size() > 2) module_.outputs = {1};
  buffers_.push_back(module_.AddBuffer({.space = Space::kGlobal,
                                        .dtype = DType::kF32,
                                        .shape = {module_.VarRef(symbol)},
                                        .strides = {},
                                        .workspace = true,
                                        .pad_value = {},
                                        .name = Name(),
                                        .layout = {},
                                        .shared_offset = {}}));
  ints_ = {symbol, module_.AddVar({VarKind::kThread, DType::kI32, 0, Name()})};
  floats_ = {scalar};
}

Kernel RandomModule::MakeKernel() {
  auto scope = std::tuple(ints_, floats_, buffers_);
  Kernel kernel;
  kernel.threads = uint32_t(32 * (1 + Below(8)));
  kernel.raster_panel = uint32_t(Below(3));
  kernel.min_blocks = uint32_t(Below(3));
  kernel.name = Name();
  for (int axis = 0; axis < 1 + Below(3); ++axis) {
    kernel.grid.push_back(Coin() ? module_.exprs.Int(1 + Below(9)) : module_.exprs.CeilDiv(module_.VarRef(ints_[0]), 128));
    kernel.block_vars.push_back(module_.AddVar({VarKind::kBlock, DType::kI32, uint8_t(axis), Name()}));
    ints_.push_back(kernel.block_vars.back());
  }
  if (Coin()) kernel.cluster.assign(kernel.grid.size(), 1);
  if (decisions_) kernel.shared_bytes = Below(4) * 1024, kernel.producers = uint32_t(Below(2) * 128), kernel.tried_blocks = uint32_t(Below(2) * 2);
  threads_ = {0, kernel.threads}, all_threads_ = kernel.threads;
  clustered_ = !kernel.cluster.empty();
  kernel.body = MakeBlock(3);
  std::tie(ints_, floats_, buffers_) = scope;
  return kernel;
}

Block RandomModule::MakeBlock(int depth) {
  auto scope = std::tuple(ints_, floats_, buffers_);
  Block block;
  Block* outer = std::exchange(block_, &block);
  for (int i = 1 + Below(5); i > 0; --i) {
    Op op = MakeOp(depth);
    block.push_back({std::move(op), {}});
  }
  block_ = outer;
  std::tie(ints_, floats_, buffers_) = scope;
  return block;
}

Op RandomModule::MakeOp(int depth) {
  switch (Below(depth > 0 ? 9 : 6)) {
    case 0: {
      bool is_float = Coin();
      DType type = is_float ? DType::kF32 : DType::kI32;
      ExprId value = Expr(type, 3);
      VarId var = module_.AddVar({VarKind::kLet, type, 0, Name()});
      (is_float ? floats_ : ints_).push_back(var);
      return Let{var, value};
    }
    case 1: {
      BufferId buffer = Pick(buffers_);
      return Store{buffer, Indices(buffer), Expr(module_[buffer].dtype, 4)};
    }
    case 2: return Assume{BoolExpr(3)};
    case 3:
    case 4: return MakeTileOp();
    case 5: return MakeAtomic();
    case 6: return MakeBranch(depth);
    default: return MakeLoop(depth);
  }
}

Op RandomModule::MakeBranch(int depth) {
  constexpr uint32_t kLeast = 32;  // threads of SomeLayout
  If branch{.cond = BoolExpr(2), .then_body = {}, .else_body = {}};
  const ThreadRange outer = threads_;
  const std::vector<BufferId> buffers = buffers_;
  if (decisions_ && outer.Count() >= 2 * kLeast && Coin()) {
    const uint32_t middle = outer.begin + kLeast + uint32_t(Below(int(outer.Count() - 2 * kLeast + 1)));
    branch.then_threads = {outer.begin, middle, uint32_t(Below(16))};
    branch.else_threads = {middle, outer.end};
    std::erase_if(buffers_, [&](BufferId id) { return module_[id].space == Space::kFragment; });  // spread over the threads around
  }
  threads_ = branch.then_threads.value_or(outer);
  branch.then_body = MakeBlock(depth - 1);
  threads_ = branch.else_threads.value_or(outer);
  if (branch.else_threads || Coin()) branch.else_body = MakeBlock(depth - 1);
  threads_ = outer, buffers_ = buffers;
  return branch;
}

Op RandomModule::MakeLoop(int depth) {
  if (Below(6) == 0) {
    While loop{.cond = BoolExpr(2), .body = MakeBlock(depth - 1)};
    loop.body.push_back({Coin() ? Op(Break{}) : Op(Continue{}), {}});
    return loop;
  }
  if (Below(4) == 0) return MakeParallel();
  VarId var = module_.AddVar({VarKind::kLoop, DType::kI32, 0, Name()});
  For loop{.kind = Pick<LoopKind>({LoopKind::kSerial, LoopKind::kSerial, LoopKind::kPipelined, LoopKind::kPipelined, LoopKind::kPipelined,
                                   LoopKind::kUnroll, LoopKind::kPersistent}),
           .vars = {var},
           .extents = {Expr(DType::kI32, 2)}};
  if (loop.kind == LoopKind::kPipelined) loop.num_stages = uint32_t(Below(5));
  ints_.push_back(var);
  loop.body = MakeBlock(depth - 1);
  ints_.pop_back();
  return loop;
}

StorePlan RandomModule::SomePlan(const Store& store, size_t vars) {
  const auto is_memory = [&](const Buffer& buffer) { return buffer.space == Space::kGlobal || buffer.space == Space::kShared; };
  const auto wide = [&](const Buffer& buffer) { return Coin() ? std::min(16, 128 / Bits(buffer.dtype)) : 1; };
  const auto may_choose = [&](const Buffer& buffer, int width) { return buffer.space == Space::kGlobal && width * Bits(buffer.dtype) == 128; };
  const Buffer& to = module_[store.buffer];
  StorePlan plan{.form = is_memory(to) ? StoreForm::kVector : StoreForm::kRegisters, .packed = 1 << Below(3), .loads = {}};
  if (is_memory(to)) plan.width = wide(to);
  plan.parted = is_memory(to) && Coin();
  plan.kept = may_choose(to, plan.width) && Coin();
  for (const Read& read : ReadsOf(module_.exprs, store.value)) {
    const BufferId from{module_.exprs[read.load].ref};
    if (!is_memory(module_[from])) continue;
    LoadPlan load{from, LoadForm(Below(7))};
    if (load.form == LoadForm::kGathered && module_[from].space != Space::kShared) load.form = LoadForm::kVector;
    if (IsScattered(load.form) && (vars == 1 || read.mask)) load.form = LoadForm::kVector;
    const int bits = Bits(module_[from].dtype);
    if (load.form == LoadForm::kAround && (module_[from].space != Space::kGlobal || (bits != 8 && bits != 16))) load.form = LoadForm::kVector;
    if (load.form >= LoadForm::kVector) load.width = wide(module_[from]);
    if (TakesOthers(load.form)) load.width = std::min(16, 128 / bits);
    load.once = load.form != LoadForm::kAround && may_choose(module_[from], load.width) && Coin();
    plan.loads.push_back(load);
  }
  return plan;
}

// Of elements: no tiles are computed within.
Op RandomModule::MakeParallel() {
  const auto scope = ints_;
  const bool vectorized = Below(4) == 0;
  For loop{.kind = vectorized ? LoopKind::kVectorized : LoopKind::kParallel, .vars = {}, .extents = {}};
  if (!vectorized) loop.coalesced_width = uint32_t(Below(2) * 4);
  std::vector<int64_t> shape;
  for (int axis = vectorized ? 1 : 1 + Below(2); axis > 0; --axis) {
    shape.push_back(8 * (1 + Below(4)));
    loop.vars.push_back(module_.AddVar({VarKind::kLoop, DType::kI32, 0, Name()}));
    loop.extents.push_back(module_.exprs.Int(shape.back()));
    ints_.push_back(loop.vars.back());
  }
  if (decisions_ && !vectorized && Coin()) loop.layout = SomeLayout(shape);
  const BufferId buffer = Pick(buffers_);
  Store store{buffer, Indices(buffer), Expr(module_[buffer].dtype, 3)};
  store.async = decisions_ && Coin();
  if (decisions_ && !vectorized && module_[buffer].space != Space::kLocal && Coin()) store.plan = SomePlan(store, loop.vars.size());
  loop.body.push_back({std::move(store), {}});
  ints_ = scope;
  return loop;
}

Op RandomModule::MakeAtomic() {
  std::vector<BufferId> shared;
  std::ranges::copy_if(buffers_, std::back_inserter(shared), [&](BufferId id) {
    const Buffer& buffer = module_[id];
    return (buffer.space == Space::kGlobal || buffer.space == Space::kShared) && Bits(buffer.dtype) >= 16;
  });
  const BufferId buffer = Pick(shared);  // the workspace, if nothing else
  const DType type = module_[buffer].dtype;
  Atomic atomic{.kind = AtomicKind(1 + Below(9)), .buffer = buffer, .indices = Indices(buffer), .each_thread = Coin()};
  if (IsFloat(type) && atomic.kind >= AtomicKind::kBitAnd && atomic.kind <= AtomicKind::kBitXor) atomic.kind = AtomicKind::kExchange;
  if (atomic.TakesValue()) atomic.value = Expr(type, 2);
  if (atomic.Compares()) atomic.compare = Expr(type, 2);
  const bool loads = atomic.kind == AtomicKind::kLoad;
  if (module_[buffer].space == Space::kShared) atomic.block = Rank();
  if (atomic.block && Coin()) {
    atomic.kind = AtomicKind::kStore, atomic.compare = {}, atomic.value = Expr(type, 2);
    return atomic;
  }
  if (!atomic.block) {
    atomic.order = loads ? Pick<MemoryOrder>({MemoryOrder::kRelaxed, MemoryOrder::kAcquire, MemoryOrder::kSeqCst}) : MemoryOrder(Below(5));
  }
  if (loads || Coin()) {
    atomic.each_thread = true;
    atomic.old = Element{AddTile(Space::kLocal, type, {2}), {module_.exprs.Int(Below(2))}};
  }
  return atomic;
}

Op RandomModule::MakeGemm() {
  Gemm gemm{.a = Whole(AddTile(Space::kShared, DType::kF16, {64, 32})),
            .b = Whole(AddTile(Space::kShared, DType::kF16, {48, 32})),
            .c = Whole(AddTile(Space::kFragment, DType::kF32, {64, 48})),
            .transpose_b = true,
            .policy = WarpPolicy(Below(3)),
            .clear_accum = Coin()};
  if (decisions_) gemm.plan = GemmPlan{"mma.m16n8k16.f32.f16", 2, 2, 1 + Below(2), Coin(), Coin(), Coin()};
  return gemm;
}

// Tiles of one shape, and values of their type.
class RandomModule::ElementwiseFields : public FieldVisitor {
 public:
  explicit ElementwiseFields(RandomModule& random) : random_(random), dtype_(random.Pick(kFloats)) {}
  void Region(ir::Region& region, std::string_view, Use) { region = random_.Whole(random_.AddTile(Space::kFragment, dtype_, {16, 8})); }
  void Evaluates(ExprId& value, std::string_view) { value = random_.module_.exprs.Float(random_.FloatValue(), dtype_); }
  void Is(auto&, Label) = delete;

 private:
  RandomModule& random_;
  const DType dtype_;
};

template <typename T>
Op RandomModule::MakeElementwise() {
  T op{};
  Fields(op, ElementwiseFields(*this));
  return op;
}

Op RandomModule::MakeCall() {
  module_.functions.push_back({Language(1 + Below(2)), Pick<std::string>({"f", "f", "_Z1fPf", "a.b$c"}),
                               Pick<std::string>({"", "\n", "one\ntwo\n", "a \"quoted\" \\ line", "\t\x01\xff"})});
  Call call{.function = FunctionId(Below(int(module_.functions.size()))), .arguments = {}};
  for (int i = Below(4); i > 0; --i) {
    const Buffer& buffer = module_[buffers_[size_t(Below(int(buffers_.size())))]];
    const bool passed = (buffer.space == Space::kGlobal || buffer.space == Space::kShared) && Bits(buffer.dtype) >= 8;
    const BufferId id{uint32_t(&buffer - module_.buffers.data())};
    if (passed) call.arguments.push_back({id, Leaf(DType::kI32)});
    else call.arguments.push_back({{}, Leaf(Coin() ? DType::kF32 : DType::kBool)});
  }
  return call;
}

Op RandomModule::MakeTileOp() {
  switch (Below(decisions_ ? 14 : 5)) {
    case 0: return MakeGemm();
    case 1: {
      std::vector<Op (RandomModule::*)()> makers;
      ForEachOpType([&]<typename T>(std::type_identity<T>) {
        if constexpr (Elementwise<T>) makers.push_back(&RandomModule::MakeElementwise<T>);
      });
      return (this->*Pick(makers))();
    }
    case 2: {
      const auto kind = ReduceKind(1 + Below(8));
      const DType type = kind >= ReduceKind::kBitAnd ? DType::kI32 : DType::kF32;
      Reduce reduce{.kind = kind,
                    .src = Whole(AddTile(Space::kFragment, type, {16, 8})),
                    .dst = Whole(AddTile(Space::kFragment, type, {16})),
                    .dim = 1,
                    .clear = Coin(),
                    .scratch = {}};
      reduce.cluster = decisions_ && Coin();
      if (decisions_ && Coin())
        reduce.scratch = module_.AddBuffer({.space = Space::kShared,
                                            .dtype = DType::kF32,
                                            .shape = {module_.exprs.Int(4)},
                                            .strides = {},
                                            .pad_value = {},
                                            .name = Name(),
                                            .layout = {},
                                            .shared_offset = 64});
      return reduce;
    }
    case 3: {
      Copy copy{.src = Whole(AddTile(Space::kShared, DType::kF16, {16, 8})),
                .dst = Whole(AddTile(Space::kFragment, DType::kF32, {16, 1, 8})),
                .coalesced_width = uint32_t(Below(2) * 4),
                .plan = {}};
      const auto groups = uint32_t(Below(3));
      if (decisions_)
        copy.plan = CopyPlan{CopyInstruction(Below(3)), 1 << Below(4), SomeLayout({16, 8}), {}, Coin(), Coin(), Coin(), groups, uint32_t(groups > 0)};
      if (decisions_ && Coin()) copy.plan->ring = AddRing();
      return copy;
    }
    case 4: {
      if (threads_.Count() == all_threads_ && Coin()) return MakeCall();
      const int of = Below(3);
      return Barrier{.grid = of == 1, .cluster = of == 2 && clustered_, .by_group = decisions_ && Coin()};
    }
    case 5: return AsyncCommit{};
    case 6: {
      AsyncWait wait{Below(4), Coin()};
      if (decisions_ && Coin()) wait.product = AddTile(Space::kFragment, DType::kF32, {16, 8});
      return wait;
    }
    case 7: {
      PairSum sum{AddTile(Space::kFragment, DType::kF32, {16, 8})};
      if (Coin()) sum.half = AddTile(Space::kFragment, DType::kF32, {16, 4}), sum.dim = 1;
      if (Coin()) sum.scratch = AddTile(Space::kShared, DType::kF32, {128});
      return sum;
    }
    case 8: {
      const auto is_workspace = [](const Buffer& buffer) { return buffer.workspace; };
      const BufferId workspace{uint32_t(std::ranges::find_if(module_.buffers, is_workspace) - module_.buffers.begin())};
      return StreamSum{AddTile(Space::kFragment, DType::kF32, {16, 8}),
                       workspace,
                       workspace,
                       module_.exprs.Int(Below(9)),
                       module_.exprs.Bool(Coin()),
                       module_.exprs.Int(Below(3))};
    }
    case 9: return Arrive{AddBarriers(), {module_.exprs.Int(Below(2))}, Rank()};
    case 10: return Await{AddBarriers(), {module_.exprs.Int(Below(2))}, module_.exprs.Int(Below(2))};
    case 11: return Registers{uint32_t(24 + Below(20) * 8), Coin()};
    case 12: {
      const auto part = [&](DType dtype, int64_t elements) { return Whole(AddTile(Space::kLocal, dtype, {elements})); };
      return Mma{part(DType::kF16, 8), part(DType::kF16, 4), part(DType::kF32, 4), 16, 8, 16};
    }
    default: {
      const Ring ring = AddRing();
      return RingStep{RingAction(Below(4)), ring, Below(2) * 128, Below(3)};
    }
  }
}

Module RandomModule::Make(bool decisions) {
  decisions_ = decisions;
  module_ = Module();
  buffers_.clear();
  Header();
  for (int i = 1 + Below(2); i > 0; --i) module_.kernels.push_back(MakeKernel());
  return std::move(module_);
}

}  // namespace kiln::ir
