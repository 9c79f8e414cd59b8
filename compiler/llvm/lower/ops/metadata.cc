// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/ops/metadata.h"

#include <algorithm>
#include <numeric>

#include "compiler/analysis/threads/thread_loop.h"

namespace kiln::llvm_ir {

Metadata::Metadata(KernelContext& context, Memory& memory, const ir::Gemm& gemm, const target::MmaInstruction& mma, const compiler::WarpGrid& grid)
    : Part(context),
      memory_(memory),
      region_(*gemm.metadata),
      registers_(mma.metadata_layout.Registers()),
      part_(mma.MetadataBits()),
      shared_(compiler::SharedSteps(mma, compiler::ShapeOf(gemm), grid)),
      words_(compiler::ShapeOf(gemm).k / mma.k / grid.warps_k / shared_),
      layout_(compiler::MetadataLayout(mma, compiler::ShapeOf(gemm), grid)),
      thread_part_(ThreadParts(layout_)),
      contiguous_(!gemm.transpose_metadata),
      row_dim_(int(region_.extents.size()) - (contiguous_ ? 2 : 1)),
      k_dim_(int(region_.extents.size()) - (contiguous_ ? 1 : 2)),
      start_(memory.StartOf(region_)) {}

SparseMetadata Metadata::At(int64_t atom, int64_t step) {
  const int64_t first = registers_ * (step / shared_ + words_ * atom);
  Value*& word = known_[first];
  if (word == nullptr) word = Word(first);
  return {word, int(step % shared_)};
}

// From the lowest bits on.
Value* Metadata::Word(int64_t reg) {
  Value* word = nullptr;
  int64_t at = 0;
  for (int64_t r = reg; r < reg + registers_; ++r) {
    const ir::Indices index = layout_.RegisterPart(r);
    for (const Piece& piece : PiecesOf(index[0], index[1])) {
      Value* pointer = memory_.shared().Pointer(region_.buffer, piece.offset, start_.after);
      Value* bits = b().CreateAlignedLoad(b().getIntNTy(unsigned(piece.bits)), pointer, llvm::Align(uint64_t(piece.bits / 8)));
      bits = b().CreateShl(b().CreateZExt(bits, b().getInt32Ty()), uint64_t(at));
      word = word == nullptr ? bits : b().CreateOr(word, bits);
      at += piece.bits;
    }
  }
  return word;
}

std::vector<Metadata::Piece> Metadata::PiecesOf(int64_t row, int64_t part) {
  const int64_t bits = BitsAtOnce();
  std::vector<Piece> pieces;
  for (int64_t at = 0; at < part_; at += bits) {
    pieces.push_back(contiguous_ ? Contiguous(row, (part * part_ + at) / 8) : Across(row, part, at / bits));
    pieces.back().bits = bits;
  }
  return pieces;
}

// As many as are aligned and stay together under the swizzle.
int64_t Metadata::BitsAtOnce() const {
  const ir::Buffer& buffer = module()[region_.buffer];
  const int64_t element = ir::Bytes(buffer.dtype);
  if (!contiguous_) return std::min<int64_t>(part_, 8 * element);
  int64_t bytes = std::gcd(part_ / 8, compiler::SharedStride(buffer, row_dim_) * element);
  for (size_t d = 0; d < region_.offsets.size(); ++d) {
    bytes = std::gcd(bytes, facts().DivisorOf(region_.offsets[d]) * compiler::SharedStride(buffer, int(d)) * element);
  }
  const ir::Swizzle& swizzle = buffer.layout->swizzle();
  return 8 * (swizzle.bits > 0 ? std::gcd(bytes, int64_t{1} << swizzle.base) : bytes);
}

Metadata::Piece Metadata::Contiguous(int64_t row, int64_t byte) {
  const ir::Buffer& buffer = module()[region_.buffer];
  const int64_t stride = compiler::SharedStride(buffer, row_dim_) * ir::Bytes(buffer.dtype);
  Value* variable = AddTo(Scaled(thread_part_[0], stride), start_.before);
  Value* along = Scaled(thread_part_[1], part_ / 8);
  if (!compiler::IsBlocked(buffer, k_dim_)) return {{AddTo(variable, along), row * stride + byte}, 0};
  const int64_t each = ir::Bytes(buffer.dtype);
  Value* total = AddTo(along, I32(byte));
  variable = AddTo(variable, memory_.shared().Term(region_.buffer, k_dim_, b().CreateUDiv(total, I32(each))));
  return {{AddTo(variable, b().CreateURem(total, I32(each))), row * stride}, 0};
}

// Element by element, or a part of one.
Metadata::Piece Metadata::Across(int64_t row, int64_t part, int64_t element) {
  const ir::Buffer& buffer = module()[region_.buffer];
  const int64_t bits = ir::Bits(buffer.dtype);
  Value* at = AddTo(thread_part_[1], I32(part));
  Value* column = part_ >= bits ? AddTo(Scaled(at, part_ / bits), I32(element)) : b().CreateUDiv(at, I32(bits / part_));
  Value* within = part_ >= bits ? nullptr : Scaled(b().CreateURem(at, I32(bits / part_)), part_ / 8);
  Value* variable = AddTo(memory_.shared().Term(region_.buffer, row_dim_, AddTo(thread_part_[0], I32(row))), start_.before);
  variable = AddTo(variable, memory_.shared().Term(region_.buffer, k_dim_, column));
  return {{AddTo(variable, within), 0}, 0};
}

}  // namespace kiln::llvm_ir
