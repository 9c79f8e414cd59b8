// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/gemm.h"

#include "compiler/rules/shared.h"
#include "ir/op.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace kiln::compiler {
namespace {

using ir::Digit;
using ir::Layout;
using ir::Place;

using Dim = std::vector<Digit>;

std::vector<Digit> WarpReplicas(const WarpGrid& grid, int64_t size, int64_t stride) {
  std::vector<Digit> replicas;
  if (size > 1) replicas.push_back({size, Place::kThread, stride * grid.warp_size});
  const int64_t used = grid.warps_m * grid.warps_n * grid.warps_k;
  if (grid.warps > used) replicas.push_back({grid.warps / used, Place::kThread, used * grid.warp_size});
  return replicas;
}

Digit PartsOfK(const WarpGrid& grid) { return {grid.warps_k, Place::kThread, grid.warps_m * grid.warps_n * grid.warp_size}; }

// The instruction's own replicas (lanes that repeat others) first.
std::vector<Digit> Join(std::vector<Digit> a, const std::vector<Digit>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Dim Extended(Dim atom, std::initializer_list<Digit> more) {
  for (const Digit& digit : more)
    if (digit.size > 1) atom.push_back(digit);
  return atom;
}

// An instruction's rows with `count` neighbours between one and the next, which are other instructions'.
Dim Between(int64_t count, int64_t stride, const Dim& atom) {
  Dim dim;
  if (count > 1) dim.push_back({count, Place::kRegister, stride});
  dim.insert(dim.end(), atom.begin(), atom.end());
  return dim;
}

// Whether the region, one of the tile's matrices, begins and ends where swizzles do: at multiples of 8 rows and of `span` columns.
bool IsPart(const ir::Module& module, const ir::Region& region, std::span<const int64_t> shape, int64_t span) {
  const size_t rank = shape.size();
  for (size_t d = rank - 2; d < rank; ++d) {
    const int64_t unit = d + 1 < rank ? 8 : span;
    if (region.extents[d] == shape[d] && module.exprs.IsConst(region.offsets[d], 0)) continue;
    const std::optional<int64_t> offset = module.exprs.ConstInt(region.offsets[d]);
    if (!offset || *offset % unit != 0 || region.extents[d] % unit != 0) return false;
  }
  return true;
}

// Elements of a row in one panel of the tile.
int64_t PanelOf(const ir::Module& module, ir::BufferId tile) {
  const int64_t bits = ir::Bits(module[tile].dtype);
  return PanelBytes(module.ShapeOf(tile).back() * bits / 8) * 8 / bits;
}

// --- the depth of a product whose A lies as a sum does ---

struct Held {
  Digit digit;    // of A
  int64_t place;  // along k
};

// Whether the digits of threads are the same, and as many registers lie between them.
bool SameThreads(const Dim& a, const Dim& b) {
  return std::ranges::equal(a, b, [](const Digit& x, const Digit& y) {
    return x.place == y.place && x.size == y.size && (x.place != Place::kThread || x.stride == y.stride);
  });
}

// The digits of the first `count` columns; those beyond one instruction's are in registers.
Dim FirstOf(const Dim& columns, int64_t count) {
  Dim first;
  for (Digit digit : columns) {
    if (count == 1) return first;
    digit.size = std::gcd(digit.size, count);
    count /= digit.size;
    first.push_back(digit);
  }
  if (count > 1) first.push_back({count, Place::kRegister, 0});
  return first;
}

std::optional<Held> TakeThreads(std::vector<Held>& threads, const Digit& column) {
  const auto found = std::ranges::find(threads, column, &Held::digit);
  if (found == threads.end()) return std::nullopt;
  const Held held = *found;
  threads.erase(found);
  return held;
}

// The next of the registers, the first of which are at the vector's end: as many as there are up to `most`.
std::optional<Held> TakeRegisters(std::vector<Held>& registers, int64_t most) {
  if (registers.empty()) return std::nullopt;
  Held& next = registers.back();
  const int64_t size = std::gcd(next.digit.size, most);
  if (size == 1) return std::nullopt;
  const Held taken{{size, Place::kRegister, next.digit.stride}, next.place};
  next.digit.size /= size, next.digit.stride *= size, next.place *= size;
  if (next.digit.size == 1) registers.pop_back();
  return taken;
}

}  // namespace

GemmShape ShapeOf(const ir::Gemm& gemm) {
  const auto last = [](const ir::Region& region, int from_end) { return region.extents[region.extents.size() - from_end]; };
  return {last(gemm.c, 2), last(gemm.c, 1), last(gemm.b, gemm.transpose_b ? 1 : 2)};
}

bool Suits(const target::MmaInstruction& row, const ir::Module& module, const ir::Gemm& gemm) {
  // A matrix unit that takes tf32 leaves out the low bits of what it is given.
  const auto takes = [&](ir::DType type, const ir::Region& region) {
    const ir::DType operand = module[region.buffer].dtype;
    return type == operand || (gemm.allow_tf32 && operand == ir::DType::kF32 && type == ir::DType::kTF32);
  };
  const GemmShape shape = ShapeOf(gemm);
  return takes(row.a, gemm.a) && takes(row.b, gemm.b) && row.c == module[gemm.c.buffer].dtype && row.IsSparse() == gemm.metadata.has_value() &&
         shape.m % row.m == 0 && shape.n % row.n == 0 && shape.k % row.k == 0;
}

ir::GemmPlan PlanWith(const target::MmaInstruction& row, int64_t warps_m, int64_t warps_n) {
  return {std::string(row.name), int32_t(warps_m), int32_t(warps_n)};
}

double CyclesOf(const ir::Gemm& gemm, const target::Target& target) {
  const target::MmaInstruction& mma = RowOf(gemm, target);
  const GemmShape shape = ShapeOf(gemm);
  return double(shape.m / mma.m) * double(shape.n / mma.n) * double(shape.k / mma.k) * mma.cycles;
}

Layout AccumulatorLayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid) {
  const Layout& atom = mma.c_layout;
  const int64_t registers = atom.Registers();
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_n = shape.n / mma.n / grid.warps_n;
  const Dim one_m = Between(grid.rows, registers * atoms_n, atom.dim(0)), one_n = Between(grid.columns, registers, atom.dim(1));
  Dim m = Extended(one_m, {{grid.warps_m, Place::kThread, grid.warp_size}, {atoms_m / grid.rows, Place::kRegister, registers * atoms_n * grid.rows}});
  Dim n = Extended(
      one_n, {{atoms_n / grid.columns, Place::kRegister, registers * grid.columns}, {grid.warps_n, Place::kThread, grid.warp_size * grid.warps_m}});
  std::vector<Dim> dims = {std::move(m), std::move(n)};
  if (grid.warps_k > 1) dims.insert(dims.begin(), {PartsOfK(grid)});
  return Layout(std::move(dims), Join(atom.replicas(), WarpReplicas(grid, 1, 1)));
}

Layout OperandALayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid, bool as_sums) {
  const Layout& atom = mma.a_layout;
  const int64_t registers = atom.Registers();
  const int64_t atoms_m = shape.m / mma.m / grid.warps_m, atoms_k = shape.k / mma.k / grid.warps_k;
  Dim m = Extended(Between(grid.rows, registers * atoms_k, atom.dim(0)),
                   {{grid.warps_m, Place::kThread, grid.warp_size}, {atoms_m / grid.rows, Place::kRegister, registers * atoms_k * grid.rows}});
  Dim k = Extended(as_sums ? DepthAsSums(mma, mma)->columns : atom.dim(1), {{atoms_k, Place::kRegister, registers}, PartsOfK(grid)});
  return Layout({std::move(m), std::move(k)}, Join(atom.replicas(), WarpReplicas(grid, grid.warps_n, grid.warps_m)));
}

int64_t SharedSteps(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid) {
  return std::gcd(int64_t{mma.selectors}, shape.k / mma.k / grid.warps_k);
}

Layout MetadataLayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid) {
  const Layout& atom = mma.metadata_layout;
  const int64_t shared = SharedSteps(mma, shape, grid), words = shape.k / mma.k / grid.warps_k / shared;
  const int64_t registers = atom.Registers(), atoms_m = shape.m / mma.m / grid.warps_m;
  // Lanes that one selector names lie side by side.
  const Digit& parts = atom.dim(1).front();
  const int64_t lanes = parts.stride * parts.size;
  Dim m = Extended(Between(grid.rows, registers * words, atom.dim(0)),
                   {{grid.warps_m, Place::kThread, grid.warp_size}, {atoms_m / grid.rows, Place::kRegister, registers * words * grid.rows}});
  Dim k = Extended(atom.dim(1), {{shared, Place::kThread, lanes}, {words, Place::kRegister, registers}, PartsOfK(grid)});
  const Dim copies = Extended({}, {{mma.selectors / shared, Place::kThread, lanes * shared}});
  return Layout({std::move(m), std::move(k)}, Join(copies, WarpReplicas(grid, grid.warps_n, grid.warps_m)));
}

Layout OperandBLayout(const target::MmaInstruction& mma, const GemmShape& shape, const WarpGrid& grid) {
  const Layout& atom = mma.b_layout;
  const int64_t registers = atom.Registers();
  const int64_t atoms_n = shape.n / mma.n / grid.warps_n, atoms_k = shape.k / mma.k / grid.warps_k;
  Dim n = Extended(Between(grid.columns, registers * atoms_k, atom.dim(0)),
                   {{atoms_n / grid.columns, Place::kRegister, registers * atoms_k * grid.columns},
                    {grid.warps_n, Place::kThread, grid.warp_size * grid.warps_m}});
  Dim k = Extended(atom.dim(1), {{atoms_k, Place::kRegister, registers}, PartsOfK(grid)});
  return Layout({std::move(n), std::move(k)}, Join(atom.replicas(), WarpReplicas(grid, grid.warps_m, 1)));
}

std::optional<Depth> DepthAsSums(const target::MmaInstruction& mma, const target::MmaInstruction& sums) {
  if (mma.IsScalar() || sums.IsScalar() || mma.IsSparse() || mma.swapped || sums.swapped || !mma.ReadsA() || mma.team != sums.team)
    return std::nullopt;
  if (!mma.a_layout.replicas().empty() || !sums.c_layout.replicas().empty()) return std::nullopt;
  if (!SameThreads(mma.a_layout.dim(0), sums.c_layout.dim(0))) return std::nullopt;
  std::vector<Held> registers, threads;
  int64_t place = 1;
  for (const Digit& digit : mma.a_layout.dim(1)) {
    (digit.place == Place::kThread ? threads : registers).push_back({digit, place});
    place *= digit.size;
  }
  std::ranges::reverse(registers);
  Depth depth;
  for (const Digit& column : FirstOf(sums.c_layout.dim(1), mma.k)) {
    for (int64_t left = column.size; left > 1;) {
      std::optional<Held> held = column.place == Place::kThread ? TakeThreads(threads, column) : TakeRegisters(registers, left);
      if (!held) return std::nullopt;
      depth.columns.push_back(held->digit);
      depth.places.push_back({held->digit.size, Place::kAddress, held->place});
      left /= held->digit.size;
    }
  }
  if (!registers.empty() || !threads.empty()) return std::nullopt;
  const Layout order({depth.places});
  return order.Normalized().dim(0).size() == 1 ? std::nullopt : std::optional(std::move(depth));
}

ir::ExprId Depth::ColumnAt(ir::ExprPool& exprs, ir::ExprId place) const {
  const ir::DType type = exprs.Type(place);
  const auto number = [&](int64_t value) { return exprs.Int(value, type); };
  int64_t column = 1;
  ir::ExprId sum = number(0);
  for (const Digit& digit : places) {
    const ir::ExprId above = exprs.Make(ir::ExprOp::kFloorDiv, {place, number(digit.stride)});
    sum = exprs.Add(sum, exprs.Mul(exprs.Make(ir::ExprOp::kFloorMod, {above, number(digit.size)}), number(column)));
    column *= digit.size;
  }
  return exprs.Add(exprs.Mul(exprs.Make(ir::ExprOp::kFloorDiv, {place, number(column)}), number(column)), sum);
}

Layout ScalarAccumulatorLayout(const GemmShape& shape, int64_t threads) {
  const int64_t vector = std::gcd(shape.n, int64_t{4});
  const int64_t units = shape.n / vector;
  const int64_t across = std::gcd(units, std::gcd(threads, int64_t{16}));
  const int64_t down = std::gcd(shape.m, threads / across);
  const int64_t rest_n = units / across, rest_m = shape.m / down;
  Dim n = Extended({}, {{vector, Place::kRegister, 1}, {across, Place::kThread, 1}, {rest_n, Place::kRegister, vector}});
  Dim m = Extended({}, {{down, Place::kThread, across}, {rest_m, Place::kRegister, vector * rest_n}});
  std::vector<Digit> replicas;
  if (across * down < threads) replicas.push_back({threads / (across * down), Place::kThread, across * down});
  return Layout({std::move(m), std::move(n)}, std::move(replicas));
}

int64_t RegistersAtStartFor(const target::MmaInstruction& mma) {
  constexpr int64_t kMore = 26;  // from experiments with ptxas 13.0
  return mma.c_layout.Registers() * ir::Bits(mma.c) / 32 + kMore;
}

WarpGrid GridOf(const ir::Gemm& gemm, uint32_t threads, const target::Target& target) {
  const ir::GemmPlan& plan = *gemm.plan;
  const target::MmaInstruction& mma = RowOf(gemm, target);
  const int64_t unit = int64_t(target.warp_size) * mma.Warps();
  WarpGrid grid{plan.warps_m, plan.warps_n, plan.warps_k, int64_t(threads) / unit, unit};
  if (mma.team != target::Team::kWarp) return grid;
  const GemmShape shape = ShapeOf(gemm);
  if (gemm.transpose_a) grid.rows = Neighbours(target, mma.a, shape.m / mma.m / grid.warps_m);
  if (!gemm.transpose_b) grid.columns = Neighbours(target, mma.b, shape.n / mma.n / grid.warps_n);
  return grid;
}

int64_t Neighbours(const target::Target& target, ir::DType dtype, int64_t atoms) {
  return target.Has(target::Feature::kLdMatrix) ? 1 : std::gcd(atoms, std::max<int64_t>(1, 64 / ir::Bits(dtype)));
}

bool WgmmaReads(const ir::Module& module, const ir::Region& region, bool k_is_last, int64_t size) {
  const ir::Buffer& buffer = module[region.buffer];
  if (buffer.space != ir::Space::kShared) return false;
  const std::vector<int64_t> shape = module.ShapeOf(region.buffer);
  const size_t rank = shape.size();
  if (rank < 2 || !WgmmaTile(std::span(shape).last(2), ir::Bits(buffer.dtype))) return false;
  if (std::ranges::any_of(std::span(region.extents).first(rank - 2), [](int64_t extent) { return extent != 1; })) return false;
  const int64_t width = PanelOf(module, region.buffer);
  if (region.extents != shape && !IsPart(module, region, shape, width)) return false;
  if (k_is_last) return size <= width;
  // All rows, and of the columns some whole panels. What an instruction takes may not begin inside of one panel and end in another.
  const int64_t columns = region.extents.back();
  return ir::Bits(buffer.dtype) == 16 && region.extents[rank - 2] == shape[rank - 2] && (size == columns || size % width == 0 || width % size == 0);
}

bool WgmmaReadsParts(const ir::Module& module, const ir::Gemm& gemm, int64_t deep, bool staged) {
  const auto reads = [&](const ir::Region& region, bool k_is_last, int64_t columns) {
    if ((module[region.buffer].space != ir::Space::kShared && !staged) || !k_is_last) return true;
    const int64_t span = PanelOf(module, region.buffer);
    if (span == 0) return false;
    if (module.ShapeOf(region.buffer).back() <= span) return true;
    return columns % span == 0 || span % columns == 0;
  };
  return reads(gemm.a, !gemm.transpose_a, gemm.metadata ? deep / 2 : deep) && reads(gemm.b, gemm.transpose_b, deep);
}

bool IsFasterByWarps(const ir::Module& module, const ir::Gemm& gemm, const target::MmaInstruction& mma, const target::Target& target) {
  const ir::Region& held = mma.swapped ? gemm.b : gemm.a;
  const bool k_is_last = mma.swapped ? !gemm.transpose_a : gemm.transpose_b;
  const target::MmaInstruction* each = mma.each_warp;
  if (each == nullptr || !k_is_last || module[held.buffer].space != ir::Space::kFragment) return false;
  return double(mma.swapped ? mma.m : mma.n) / each->n * target.costs.eight_columns < target.costs.few_columns;
}

bool WgmmaTile(std::span<const int64_t> extents, int64_t element_bits) {
  const size_t rank = extents.size();
  for (size_t d = 0; d + 2 < rank; ++d)
    if (extents[d] != 1) return false;
  return extents[rank - 2] % 8 == 0 && PanelBytes(extents[rank - 1] * element_bits / 8) != 0;
}

}  // namespace kiln::compiler
