// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

struct Types {
  DType a, b, c;
};

Types SomeTypes(Writer& writer) {
  using enum DType;
  if (writer.Odd(30)) return {writer.Number(), writer.Number(), writer.Number()};
  return writer.Pick<Types>({{kF16, kF16, kF32},
                             {kF16, kF16, kF32},
                             {kF16, kF16, kF16},
                             {kBF16, kBF16, kF32},
                             {kF32, kF32, kF32},
                             {kTF32, kTF32, kF32},
                             {kF64, kF64, kF64},
                             {kF8E4M3, kF8E4M3, kF32},
                             {kF8E5M2, kF8E4M3, kF32},
                             {kF8E4M3FNUZ, kF8E4M3FNUZ, kF32},
                             {kF8E4M3, kF8E4M3, kF16},
                             {kI8, kI8, kI32},
                             {kU8, kI8, kI32},
                             {kU8, kU8, kI32},
                             {kI4, kI4, kI32},
                             {kU4, kU4, kI32},
                             {kF16, kF16, kF64}});
}

struct Product {
  int64_t m, n, k;
};

Product SomeExtents(Writer& writer) {
  const auto extent = [&] {
    if (writer.Odd(60)) return int64_t{0};
    if (writer.OneIn(8)) return writer.Pick<int64_t>({1, 3, 7, 17, 24, 33, 40, 65, 100});
    return writer.Pick<int64_t>({8, 16, 16, 32, 32, 64, 64, 128});
  };
  return {extent(), extent(), extent()};
}

std::vector<int64_t> Sides(int64_t rows, int64_t columns, bool transposed) {
  return transposed ? std::vector{columns, rows} : std::vector{rows, columns};
}

Space OperandSpace(Writer& writer) { return writer.OneIn(5) ? Space::kFragment : Space::kShared; }

// Some products have a sparse a, which holds half of the columns.
void MakeSparse(Writer& writer, Gemm& gemm, const Product& sizes) {
  const DType of = writer.module[gemm.a.buffer].dtype;
  const DType type = writer.Pick<DType>({DType::kI8, DType::kU8, DType::kI16, DType::kU16, DType::kI32, DType::kU32});
  const int64_t each = Bits(of) < 8 || Bits(of) > 32 ? 1 : Sparsity(of).Each(type);
  if (!writer.OneIn(6) || each == 1 || sizes.k % each != 0) return;
  gemm.transpose_metadata = writer.OneIn(4);
  gemm.a = writer.Whole(writer.AddTile(OperandSpace(writer), of, Sides(sizes.m, sizes.k / 2, gemm.transpose_a)));
  gemm.metadata = writer.Whole(writer.AddTile(OperandSpace(writer), type, Sides(sizes.m, sizes.k / each, gemm.transpose_metadata)));
}

Gemm SomeGemm(Writer& writer) {
  const auto [m, n, k] = SomeExtents(writer);
  const Types types = SomeTypes(writer);
  Gemm gemm{.transpose_a = writer.OneIn(4), .transpose_b = writer.OneIn(2), .policy = WarpPolicy(writer.Below(3)), .clear_accum = writer.OneIn(3)};
  gemm.a = writer.Whole(writer.AddTile(OperandSpace(writer), types.a, Sides(m, k, gemm.transpose_a)));
  gemm.b = writer.Whole(writer.AddTile(OperandSpace(writer), types.b, Sides(k, n, gemm.transpose_b)));
  gemm.c = writer.Whole(writer.AddTile(Space::kFragment, types.c, {m, n}));
  MakeSparse(writer, gemm, {m, n, k});
  gemm.allow_tf32 = types.a == DType::kF32 && types.b == DType::kF32 && writer.Coin();
  if (writer.decisions()) gemm.plan = GemmPlan{"mma.m16n8k16.f32.f16", 2, 2, 1 + int(writer.Below(2)), writer.Coin(), writer.Coin(), writer.Coin()};
  return gemm;
}

// The tile of an operand, from some tensor of two dimensions or more, else from what fits.
Op Load(Writer& writer, const Region& tile, VarId step) {
  std::vector<BufferId> tensors;
  for (const BufferId id : writer.scope.buffers) {
    if (writer.module[id].space == Space::kGlobal && writer.module[id].shape.size() >= 2) tensors.push_back(id);
  }
  if (tensors.empty()) return Fill{tile, writer.Value(writer.module[tile.buffer].dtype, 0)};
  ExprPool& pool = writer.module.exprs;
  const BufferId tensor = writer.Pick(tensors);
  const size_t rank = writer.module[tensor].shape.size();
  Copy copy{.src = {.buffer = tensor, .offsets = {}, .extents = {}}, .dst = tile, .plan = {}};
  for (size_t d = 0; d < rank; ++d)
    copy.src.extents.push_back(d + 2 < rank ? 1 : tile.extents[d + 2 - rank]), copy.src.offsets.push_back(pool.Int(0));
  copy.src.offsets[rank - 1 - size_t(writer.Below(2))] = pool.Mul(writer.module.VarRef(step), pool.Int(copy.src.extents[rank - 1]));
  return copy;
}

}  // namespace

int Weight(const Writer& writer, Tag<Gemm>) {
  if (writer.place.parallel || writer.sizes().flat) return 0;
  return writer.place.some_threads ? 0 : 2;
}
Op Write(Writer& writer, Tag<Gemm>) { return SomeGemm(writer); }

// Few modules have instructions of their own, for few targets have the same.
int Weight(const Writer& writer, Tag<Mma>) { return writer.signals() && !writer.place.parallel && !writer.place.some_threads ? 1 : 0; }
Op Write(Writer& writer, Tag<Mma>) {
  using enum DType;
  const Types types = writer.Pick<Types>({{kF16, kF16, kF32}, {kBF16, kBF16, kF32}, {kF16, kF16, kF16}, {kI8, kI8, kI32}});
  const uint32_t k = types.a == kI8 ? 32 : 16;
  const auto part = [&](DType dtype, int64_t elements) { return writer.Whole(writer.AddTile(Space::kLocal, dtype, {elements / 32})); };
  return Mma{part(types.a, 16 * k), part(types.b, 8 * k), part(types.c, 16 * 8), 16, 8, k};
}

Op WriteProductLoop(Writer& writer) {
  Gemm gemm = SomeGemm(writer);
  writer.Put(Fill{gemm.c, writer.module.exprs.Int(0, writer.module[gemm.c.buffer].dtype)});
  const Scope outer = writer.scope;
  const int64_t steps = writer.Pick<int64_t>({1, 2, 4, 8, 16});
  const ExprId up_to = writer.OneIn(2) ? writer.module.exprs.Int(steps) : writer.module.exprs.Cast(DType::kI32, writer.UniformCount());
  For loop{.kind = writer.OneIn(6) ? LoopKind::kSerial : LoopKind::kPipelined, .vars = {writer.Loop(steps)}, .extents = {up_to}};
  if (loop.kind == LoopKind::kPipelined) loop.num_stages = uint32_t(writer.Below(5));
  loop.body.push_back({Load(writer, gemm.a, loop.vars[0]), {}});
  loop.body.push_back({Load(writer, gemm.b, loop.vars[0]), {}});
  if (gemm.metadata) loop.body.push_back({Load(writer, *gemm.metadata, loop.vars[0]), {}});
  if (writer.OneIn(4)) {
    Block more = writer.Nested(writer.place);
    std::ranges::move(more, std::back_inserter(loop.body));
  }
  loop.body.push_back({gemm, {}});
  writer.scope = outer;
  return loop;
}

}  // namespace kiln::ir::grammar
