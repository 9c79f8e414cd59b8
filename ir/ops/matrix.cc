// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {
namespace {

struct Matrix {
  int64_t rows, cols;
};

// The last two dimensions; those before must be single.
// `parts`: what the first may be instead.
std::optional<Matrix> MatrixOf(Verifier& verifier, const Region& region, std::string_view what, int64_t parts = 1) {
  if (!verifier.CheckRegion(region, what)) return std::nullopt;
  size_t rank = region.extents.size();
  bool single = rank >= 2 && std::all_of(region.extents.begin(), region.extents.end() - 2, [&](int64_t e) { return e == 1 || e == parts; });
  if (!single) {
    verifier.Error(fmt::format("{} is {}, not a matrix", what, fmt::join(region.extents, " × ")),
                   "name one matrix: only the last two extents may exceed 1");
    return std::nullopt;
  }
  return Matrix{region.extents[rank - 2], region.extents[rank - 1]};
}

// `a`: what op(a) holds.
void CheckMetadata(Verifier& verifier, const Gemm& op, const Matrix& a) {
  const DType of = verifier.module()[op.a.buffer].dtype, type = verifier.module()[op.metadata->buffer].dtype;
  if (Bits(of) < 8 || Bits(of) > 32 || !IsInteger(type) || Bits(type) < 8 || Bits(type) > 32) {
    return verifier.Error(fmt::format("a sparse a of {} with metadata of {}", Name(of), Name(type)),
                          "elements have 8, 16 or 32 bits, and metadata are integers of 8, 16 or 32 bits");
  }
  std::optional<Matrix> metadata = MatrixOf(verifier, *op.metadata, "the metadata");
  if (!metadata) return;
  if (op.transpose_metadata) std::swap(metadata->rows, metadata->cols);
  const int64_t each = Sparsity(of).Each(type), k = 2 * a.cols;
  if (metadata->rows == a.rows && metadata->cols * each == k) return;
  verifier.Error(fmt::format("a sparse op(a) holds {} × {} and its metadata are {} × {}", a.rows, a.cols, metadata->rows, metadata->cols),
                 fmt::format("one {} is for {} of k = {}, twice the columns of op(a); is a transpose missing?", Name(type), each, k));
}

void CheckShapes(Verifier& verifier, const Gemm& op) {
  std::optional<Matrix> a = MatrixOf(verifier, op.a, "a"), b = MatrixOf(verifier, op.b, "b"),
                        c = MatrixOf(verifier, op.c, "c", op.plan ? op.plan->warps_k : 1);
  if (!a || !b || !c) return;
  if (op.transpose_a) std::swap(a->rows, a->cols);
  if (op.transpose_b) std::swap(b->rows, b->cols);
  if (op.metadata) {
    CheckMetadata(verifier, op, *a);
    a->cols *= 2;
  }
  if (a->cols == b->rows && a->rows == c->rows && b->cols == c->cols) return;
  verifier.Error(fmt::format("op(a) is {} × {}, op(b) is {} × {} and c is {} × {}", a->rows, a->cols, b->rows, b->cols, c->rows, c->cols),
                 "op(a) is m × k, op(b) is k × n and c is m × n; is a transpose missing?");
}

// Operands of one kind and width; the result at least as wide.
bool TypesAgree(DType a, DType b, DType c) {
  if (IsInteger(a)) return IsInteger(b) && Bits(a) == Bits(b) && Bits(a) <= 8 && c == DType::kI32;
  if (!IsFloat(a) || !IsFloat(b) || !IsFloat(c)) return false;
  bool both_small = Bits(a) <= 8 && Bits(b) <= 8;
  return (a == b || both_small) && Bits(c) >= Bits(a) && Bits(c) >= 16;
}

void CheckSpaces(Verifier& verifier, const Gemm& op) {
  for (auto [region, what] : {std::pair(&op.a, "a"), std::pair(&op.b, "b"), std::pair(op.metadata ? &*op.metadata : nullptr, "the metadata")}) {
    if (region == nullptr) continue;
    Space space = verifier.module()[region->buffer].space;
    if (space == Space::kShared || space == Space::kFragment) continue;
    verifier.Error(fmt::format("{} {} in {} memory", what, region == &op.a || region == &op.b ? "is" : "are", Name(space)),
                   "copy it to a shared buffer or a fragment first");
  }
  Space space = verifier.module()[op.c.buffer].space;
  if (space != Space::kFragment) verifier.Error(fmt::format("c is in {} memory", Name(space)), "accumulate in a fragment and copy it out");
  const bool held = verifier.module()[op.a.buffer].space == Space::kFragment && !op.transpose_a;
  if (op.plan && op.plan->as_sums && !held) verifier.Error("a lies as a sum does, and is no fragment of m × k", "leave out as_sums");
}

// How many lanes share a matrix of which each holds the region; 0: the region is none of that.
uint32_t LanesOf(Verifier& verifier, const Region& region, std::string_view what, uint64_t elements) {
  if (!verifier.CheckRegion(region, what)) return 0;
  if (verifier.module()[region.buffer].space != Space::kLocal || region.extents.size() != 1) {
    verifier.Error(fmt::format("{} is no array of one dimension that each thread has of its own", what), "use a local buffer of one dimension");
    return 0;
  }
  const auto each = uint64_t(region.extents[0]);
  if (each != 0 && elements % each == 0 && (elements / each == 32 || elements / each == 64)) return uint32_t(elements / each);
  verifier.Error(fmt::format("{} of {} elements of each thread, of {} in all", what, each, elements),
                 "the lanes of a warp hold one matrix: its elements are those of a thread times 32, or 64 on some AMD GPUs");
  return 0;
}

}  // namespace

void Check(Verifier& verifier, const Mma& op) {
  verifier.CheckTogether("an mma");
  constexpr uint32_t kMost = 1024;
  if (op.m > kMost || op.n > kMost || op.k > kMost) {
    return verifier.Error(fmt::format("an mma of {} × {} × {}", op.m, op.n, op.k), fmt::format("no instruction is larger than {}", kMost));
  }
  const uint32_t a = LanesOf(verifier, op.a, "a", uint64_t(op.m) * op.k), b = LanesOf(verifier, op.b, "b", uint64_t(op.n) * op.k),
                 c = LanesOf(verifier, op.c, "c", uint64_t(op.m) * op.n);
  if (a == 0 || b == 0 || c == 0 || (a == b && b == c)) return;
  verifier.Error(fmt::format("an mma whose a, b and c lie on {}, {} and {} lanes", a, b, c), "the same lanes hold all three");
}

void Check(Verifier& verifier, const Gemm& op) {
  verifier.CheckTogether("a gemm");
  CheckShapes(verifier, op);
  CheckSpaces(verifier, op);
  const Module& module = verifier.module();
  DType a = module[op.a.buffer].dtype, b = module[op.b.buffer].dtype, c = module[op.c.buffer].dtype;
  if (!TypesAgree(a, b, c)) {
    verifier.Error(fmt::format("a gemm of {} and {} into {}", Name(a), Name(b), Name(c)),
                   "a and b are of one float type (or both 8-bit floats) and c a float type at least as wide, or a and "
                   "b are 8- or 4-bit "
                   "integers and c is i32");
  }
  if (op.transpose_metadata && !op.metadata) verifier.Error("transposed metadata of a gemm that has none", "leave out transpose_metadata");
  if (op.allow_tf32 && (a != DType::kF32 || b != DType::kF32)) {
    verifier.Error(fmt::format("a gemm of {} and {} that may be in tf32", Name(a), Name(b)), "f32 alone may lose its low bits; leave out tf32");
  }
}

}  // namespace kiln::ir
