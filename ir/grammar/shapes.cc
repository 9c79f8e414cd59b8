// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iterator>
#include <numeric>

#include "ir/expr/numeric.h"
#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

constexpr int64_t kMostElementsOfRegion = 16384;
constexpr int64_t kUsualSharedBytes = 40 << 10;

int64_t Product(const std::vector<int64_t>& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies()); }

}  // namespace

// --- parameters ---

void Writer::AddSymbols() {
  for (int64_t i = Below(3); i > 0; --i) {
    symbols_.push_back(module.AddVar({VarKind::kSymbol, Odd(4) ? DType::kI64 : DType::kI32, 0, Name()}));
    scope.counts.push_back({module.VarRef(symbols_.back()), 0});
  }
}

ExprId Writer::TensorExtent() {
  if (!symbols_.empty() && OneIn(3)) return HostValue();
  if (Odd(30)) return module.exprs.Int(0);
  const auto extent =
      Odd(40) ? int64_t{1} << 33 : Pick<int64_t>({1, 2, 3, 8, 16, 17, 32, 64, 64, 65, 100, 128, 128, 256, 255, 512, 1000, 1024, 4096, 65536});
  return module.exprs.Int(extent, extent >> 31 == 0 ? DType::kI32 : DType::kI64);
}

BufferId Writer::AddTensor(bool workspace) {
  Buffer buffer{.space = Space::kGlobal, .dtype = AnyType(), .workspace = workspace, .name = Name()};
  for (int64_t rank = Odd(12) ? 0 : 1 + Below(OneIn(6) ? 5 : 3); rank > 0; --rank) buffer.shape.push_back(TensorExtent());
  if (!workspace && OneIn(5)) {
    for (size_t d = 0; d < buffer.shape.size(); ++d)
      buffer.strides.push_back(d + 1 == buffer.shape.size() && Coin() ? module.exprs.Int(1)
                               : !symbols_.empty() && OneIn(3)        ? HostValue()
                                                                      : module.exprs.Int(Pick<int64_t>({1, 8, 64, 100, 1024})));
  }
  if (OneIn(6))
    buffer.pad_value = IsFloat(buffer.dtype) ? FloatValue() : double(SaturateTo(Bits(buffer.dtype) > 32 ? DType::kU32 : buffer.dtype, FloatValue()));
  if (!workspace) buffer.may_alias = OneIn(5);
  const BufferId id = module.AddBuffer(std::move(buffer));
  scope.buffers.push_back(id);
  return id;
}

void Writer::AddTensors() {
  // The launcher learns each symbol from a dimension of an input.
  for (const VarId symbol : symbols_) {
    const BufferId id = AddTensor(false);
    module[id].shape.push_back(module.VarRef(symbol));
    if (!module[id].strides.empty()) module[id].strides.push_back(module.exprs.Int(1));
    module.params.push_back(id);
  }
  const size_t inputs = module.params.size();
  for (int64_t i = 1 + Below(4); i > 0; --i) module.params.push_back(AddTensor(false));
  for (size_t i = inputs; i < module.params.size(); ++i) {
    if (OneIn(3)) module.outputs.push_back(uint32_t(i));
  }
}

void Writer::AddScalars() {
  for (int64_t i = Below(3); i > 0; --i) {
    const VarId var = module.AddVar({VarKind::kScalar, AnyType(), 0, Name()});
    module.params.push_back(var);
    scope.values.push_back(var);
    if (module[var].dtype == DType::kI32) scope.counts.push_back({module.VarRef(var), 0});
  }
}

void Writer::AddWorkspaces() {
  // Passes that make stream_sum have one of them.
  for (int64_t i = decisions() ? 1 + Below(2) : OneIn(3) ? 1 + Below(2) : 0; i > 0; --i) AddTensor(true);
}

// --- tiles ---

int64_t Writer::Extent() {
  if (Odd(50)) return 0;
  if (OneIn(3)) return Pick<int64_t>({1, 2, 3, 5, 7, 9, 12, 15, 17, 24, 31, 33, 40, 48, 63, 65, 96, 100, 127, 200, 255, 257, 300});
  return Pick<int64_t>({1, 4, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64, 128, 128, 256, 512});
}

std::vector<int64_t> Writer::Shape(size_t rank, int64_t most) {
  std::vector<int64_t> shape;
  for (size_t d = 0; d < rank; ++d) shape.push_back(Extent());
  while (Product(shape) > most) *std::ranges::max_element(shape) /= 2;
  return shape;
}

BufferId Writer::AddTile(Space space, DType type, const std::vector<int64_t>& shape) {
  if (place.parallel && space != Space::kBarrier) space = Space::kLocal;
  const int64_t bytes = (Product(shape) * Bits(type) + 7) / 8;
  if (space == Space::kShared && shared_bytes_ + bytes > kUsualSharedBytes && !OneIn(20)) space = Space::kFragment;
  if (space == Space::kShared) shared_bytes_ += bytes;
  Buffer buffer{.space = space, .dtype = type, .name = Name()};
  for (const int64_t extent : shape) buffer.shape.push_back(module.exprs.Int(extent));
  if (decisions() && space == Space::kFragment && HasLayout(shape)) buffer.layout = SomeLayout(shape);
  if (decisions() && space == Space::kShared) buffer.shared_offset = Below(1000) * 16;
  const BufferId id = module.AddBuffer(std::move(buffer));
  Put(Alloc{id});
  if (space != Space::kBarrier) scope.buffers.push_back(id);
  return id;
}

BufferId Writer::AddTile(Space space, const std::vector<int64_t>& shape) {
  const DType type = AnyType();
  return AddTile(space, type, shape);
}

bool Writer::HasLayout(const std::vector<int64_t>& shape) {
  return !shape.empty() && std::ranges::all_of(shape, [](int64_t extent) { return extent > 0; });
}

Ring Writer::AddRing() { return {AddTile(Space::kBarrier, DType::kI64, {4}), AddTile(Space::kLocal, DType::kI32, {2})}; }

BufferId Writer::AddBarriers() {
  const BufferId barriers = AddTile(Space::kBarrier, DType::kI64, {2});
  module[barriers].arrivals = {uint32_t(1 + Below(2) * 31), 32};
  return barriers;
}

bool Writer::HasElements(BufferId buffer) const {
  return std::ranges::none_of(module[buffer].shape, [&](ExprId extent) { return module.exprs.IsConst(extent, 0); });
}

BufferId Writer::ElementBuffer() {
  for (int tries = 0; tries < 6; ++tries) {
    const BufferId buffer = SomeBuffer();
    const bool conflicts = place.parallel && buffer == written && !OneIn(20);
    // Elements of fragments belong to threads, which loops over elements deal out.
    const bool dealt = module[buffer].space != Space::kFragment || place.parallel || OneIn(10);
    if (HasElements(buffer) && !conflicts && dealt) return buffer;
  }
  return AddTile(Space::kLocal, {1 + Below(8)});
}

std::vector<ExprId> Writer::Indices(BufferId buffer) {
  std::vector<ExprId> indices;
  for (size_t d = 0; d < module[buffer].shape.size(); ++d) indices.push_back(Index(ConstExtent(buffer, d).value_or(0)));
  return indices;
}

std::vector<ExprId> Writer::OwnIndices(BufferId buffer) {
  std::vector<ExprId> indices = Indices(buffer);
  size_t dim = 0;
  const bool global = module[buffer].space == Space::kGlobal;
  for (const auto& [var, extent] : own) {
    const auto holds = [&](size_t d) { return global || ConstExtent(buffer, d).value_or(0) >= extent; };
    while (dim < indices.size() && !holds(dim)) ++dim;
    if (dim == indices.size()) break;
    indices[dim++] = module.VarRef(var);
  }
  return indices;
}

// --- regions ---

Region Writer::Whole(BufferId buffer) {
  Region region{.buffer = buffer, .offsets = {}, .extents = module.ShapeOf(buffer)};
  region.offsets.assign(region.extents.size(), module.exprs.Int(0));
  return region;
}

Region Writer::Part(BufferId buffer) {
  const bool global = module[buffer].space == Space::kGlobal;
  if (!global && !OneIn(3)) return Whole(buffer);
  Region region{.buffer = buffer, .offsets = {}, .extents = {}};
  for (size_t d = 0; d < module[buffer].shape.size(); ++d) {
    const std::optional<int64_t> all = ConstExtent(buffer, d);
    int64_t extent = Extent();
    if (all && (!global || !OneIn(10))) extent = std::min(extent, *all);
    region.extents.push_back(extent);
  }
  while (Product(region.extents) > std::min(kMostElementsOfRegion, sizes_.elements)) *std::ranges::max_element(region.extents) /= 2;
  for (size_t d = 0; d < region.extents.size(); ++d) {
    const int64_t extent = region.extents[d];
    const std::optional<int64_t> all = ConstExtent(buffer, d);
    if (global && !scope.counts.empty() && OneIn(2)) {
      const ExprId count = UniformCount();
      region.offsets.push_back(module.exprs.Mul(count, module.exprs.Int(extent, module.exprs.Type(count))));
    } else {
      region.offsets.push_back(all && *all - extent + 1 > 0 ? Index(*all - extent + 1) : module.exprs.Int(0));
    }
  }
  return region;
}

std::optional<Region> Writer::Fitting(BufferId buffer, const std::vector<int64_t>& extents) {
  const size_t rank = module[buffer].shape.size();
  const bool global = module[buffer].space == Space::kGlobal;
  Region region{.buffer = buffer, .offsets = {}, .extents = {}};
  size_t next = 0;
  for (size_t d = 0; d < rank; ++d) {
    const std::optional<int64_t> all = ConstExtent(buffer, d);
    const bool fits = next < extents.size() && (global || all.value_or(0) >= extents[next]);
    const int64_t extent = fits ? extents[next++] : 1;
    if (!global && all.value_or(0) < extent) return std::nullopt;
    region.extents.push_back(extent);
    region.offsets.push_back(all && *all - extent + 1 > 0 ? Index(*all - extent + 1) : module.exprs.Int(0));
  }
  return next == extents.size() ? std::optional(region) : std::nullopt;
}

Region Writer::Fitting(const std::vector<int64_t>& extents, const std::vector<Space>& spaces) {
  for (int tries = 0; tries < 4; ++tries) {
    const BufferId buffer = SomeBuffer();
    if (std::ranges::count(spaces, module[buffer].space) == 0) continue;
    if (std::optional<Region> region = Fitting(buffer, extents)) return *region;
  }
  std::vector<Space> tiles = spaces;
  std::erase(tiles, Space::kGlobal);
  std::vector<int64_t> shape = extents;
  if (OneIn(4)) shape.insert(shape.begin() + Below(std::ssize(shape) + 1), 1);
  const Space space = Pick(tiles);
  return Whole(AddTile(space, shape));
}

}  // namespace kiln::ir::grammar
