// SPDX-License-Identifier: Apache-2.0
#include "ir/grammar/writer.h"

#include "ir/grammar/ops/elementwise.h"
#include "ir/op.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <numeric>

namespace kiln::ir::grammar {
namespace {

struct Form {
  int (*weight)(const Writer&);
  Op (*write)(Writer&);
};

template <typename T>
constexpr Form FormOf() {
  if constexpr (Elementwise<T>) return {Weight<T>, Write<T>};
  else return {[](const Writer& writer) { return Weight(writer, Tag<T>()); }, [](Writer& writer) { return Write(writer, Tag<T>()); }};
}

constexpr Form kForms[] = {
#define KILN_OP(number, type, name, family, since) FormOf<type>(),
#include "ir/ops.def"
};
static_assert(std::size(kForms) == std::variant_size_v<Op>);

constexpr DType kTypes[] = {
#define KILN_DTYPE(number, id, name, bits, kind) DType::id,
#include "ir/dtypes.def"
};

}  // namespace

std::string Writer::Name() {
  // Clashes, odd characters and no name at all.
  return Pick<std::string>({"", "x", "x", "x_1", "v0", "b1", "a b", "As"});
}

DType Writer::AnyType() {
  if (OneIn(2)) return Pick<DType>({DType::kF16, DType::kBF16, DType::kF32, DType::kI32});
  const DType type = kTypes[Below(std::ssize(kTypes))];
  return Bits(type) >= 8 || OneIn(20) ? type : DType::kU8;  // elements of less than a byte are refused nearly everywhere
}

DType Writer::Number() {
  const DType type = AnyType();
  return type == DType::kBool ? DType::kF32 : type;
}

double Writer::FloatValue() {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  if (OneIn(4)) return Pick<double>({0.0, -0.0, kInf, -kInf, std::nan(""), 1e-300, 5e-324, 65504, 1.0, -1.0});
  const uint64_t bits = random_();
  return OneIn(4) ? std::bit_cast<double>(bits) : double(int32_t(bits)) / 1024;
}

void Writer::ChooseSizes() {
  sizes_ = {.statements = int(3 + Below(10)), .depth = 3, .elements = 4096, .expression = 3, .flat = false, .products = OneIn(5)};
  const int64_t kind = Below(400);
  if (kind < 1) {
    sizes_.statements = int(300 + Below(4000)), sizes_.flat = true, sizes_.depth = 2;
  } else if (kind < 12) {
    sizes_.statements = 40, sizes_.depth = 12;
  } else if (kind < 32) {
    sizes_.statements = int(20 + Below(60));
  } else if (kind < 60) {
    sizes_.elements = 65536;
  } else if (kind < 80) {
    sizes_.expression = 7;
  }
}

VarId Writer::Loop(int64_t bound, DType type) {
  const VarId var = module.AddVar({VarKind::kLoop, type, 0, Name()});
  scope.counts.push_back({module.VarRef(var), bound});
  return var;
}

Block Writer::Statements(int count) {
  const Scope outer = scope;
  Block block;
  Block* around = std::exchange(block_, &block);
  for (int i = 0; i < count && left_ > 0; ++i) {
    --left_;
    Op op = Statement();
    Put(std::move(op));
  }
  block_ = around;
  scope = outer;
  return block;
}

Block Writer::Nested(const Place& inner) {
  const Place outer = std::exchange(place, inner);
  ++place.depth;
  Block block = Statements(int(1 + Below(4)));
  place = outer;
  return block;
}

Op Writer::Statement() {
  int64_t all = 0;
  for (const Form& form : kForms) all += form.weight(*this);
  int64_t at = Below(all);
  for (const Form& form : kForms) {
    at -= form.weight(*this);
    if (at < 0) return form.write(*this);
  }
  return Write(*this, Tag<Assume>());  // where nothing may stand
}

// Threads of a block by two or three numbers, as `threads=(x, y, z)` gives them.
void Writer::AddThreads(Kernel& kernel) {
  threads_ = kernel.threads = uint32_t(Odd(200) ? Below(1100)
                                       : Odd(8) ? Pick<int64_t>({1, 7, 16, 32, 33, 96, 100})
                                                : Pick<int64_t>({64, 64, 128, 128, 128, 128, 192, 256, 256, 256, 384, 512, 1024}));
  if (OneIn(3)) return;
  if (!thread_) thread_ = module.AddVar({VarKind::kThread, DType::kI32, 0, Name()});
  const ExprId number = module.VarRef(*thread_);
  scope.counts.push_back({number, threads_});
  if (threads_ < 2 || OneIn(2)) return;
  const int64_t x = Pick<int64_t>({1, 2, 3, 8, 16, 32});
  const ExprId width = module.exprs.Int(x);
  scope.counts.push_back({module.exprs.Make(ExprOp::kFloorMod, {number, width}), x});
  const ExprId rest = module.exprs.Make(ExprOp::kFloorDiv, {number, width});
  scope.counts.push_back({rest, (threads_ + x - 1) / x});
  if (OneIn(2)) scope.counts.push_back({module.exprs.Make(ExprOp::kFloorMod, {rest, module.exprs.Int(2)}), 2});
}

void Writer::AddGrid(Kernel& kernel) {
  const int64_t rank = 1 + Below(3);
  for (int64_t axis = 0; axis < rank; ++axis) {
    const bool constant = symbols_.empty() || OneIn(2);
    const int64_t blocks = OneIn(60) ? 0 : Pick<int64_t>({1, 1, 2, 3, 4, 7, 8, 16, 64, 132, 1000});
    kernel.grid.push_back(constant ? module.exprs.Int(blocks) : HostValue());
    kernel.block_vars.push_back(module.AddVar({VarKind::kBlock, DType::kI32, uint8_t(axis), Name()}));
    scope.counts.push_back({module.VarRef(kernel.block_vars.back()), constant ? blocks : 0});
  }
  if (!OneIn(8)) return;
  kernel.cluster.assign(kernel.grid.size(), 1);
  kernel.cluster[size_t(Below(rank))] = uint32_t(Pick<int64_t>({1, 2, 2, 2, 4, 8}));
}

void Writer::AddKernel() {
  const Scope outer = scope;
  Kernel kernel;
  kernel.raster_panel = uint32_t(OneIn(4) ? Below(5) : 0);
  kernel.name = Name();
  AddThreads(kernel);
  if (threads_ <= 256 || Odd(4)) kernel.min_blocks = uint32_t(OneIn(8) ? Below(3) : 0);
  AddGrid(kernel);
  cluster_ = kernel.cluster.empty() ? 0 : int64_t(kernel.ClusterBlocks());
  if (decisions()) kernel.shared_bytes = Below(4) * 1024, kernel.producers = uint32_t(Below(2) * 128), kernel.tried_blocks = uint32_t(Below(2) * 2);
  left_ = sizes_.statements;
  shared_bytes_ = 0;
  place = {};
  own.clear();
  written.reset();
  Block body;
  block_ = &body;
  if (sizes_.products) {
    Op loop = WriteProductLoop(*this);
    Put(std::move(loop));
  }
  while (left_ > 0) {
    --left_;
    Op op = Statement();
    Put(std::move(op));
  }
  block_ = nullptr;
  kernel.body = std::move(body);
  module.kernels.push_back(std::move(kernel));
  scope = outer;
}

Module Writer::Make() {
  module = Module();
  module.name = Name();
  ChooseSizes();
  AddSymbols();
  AddTensors();
  AddScalars();
  AddWorkspaces();
  for (int64_t i = OneIn(4) ? 2 + Below(2) : 1; i > 0; --i) AddKernel();
  return std::move(module);
}

Module MakeModule(uint64_t seed, const Options& options) { return Writer(seed, options).Make(); }

}  // namespace kiln::ir::grammar
