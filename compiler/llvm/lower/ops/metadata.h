// SPDX-License-Identifier: Apache-2.0
//
// The metadata of a product whose A is sparse, as its instructions take them: a word of each lane, loaded from shared memory.
#pragma once

#include <cstdint>
#include <map>

#include "compiler/llvm/lower/memory.h"
#include "compiler/rules/gemm.h"

namespace kiln::llvm_ir {

class Metadata : Part {
 public:
  Metadata(KernelContext& context, Memory& memory, const ir::Gemm& gemm, const target::MmaInstruction& mma, const compiler::WarpGrid& grid);

  // Of instruction `atom` along rows at `step` along k. A word is loaded once.
  SparseMetadata At(int64_t atom, int64_t step);

 private:
  // Bits that lie together in memory, from the region's start.
  struct Piece {
    SplitOffset offset;
    int64_t bits;
  };
  Value* Word(int64_t reg);
  std::vector<Piece> PiecesOf(int64_t row, int64_t part);
  Piece Contiguous(int64_t row, int64_t byte);
  Piece Across(int64_t row, int64_t part, int64_t element);
  int64_t BitsAtOnce() const;

  Memory& memory_;
  const ir::Region& region_;
  const int64_t registers_;    // of an instruction
  const int64_t part_;         // bits of one of them
  const int64_t shared_;       // steps along k that share a word
  const int64_t words_;        // along k
  const ir::Layout layout_;    // (row, part) → (thread, register), the whole block
  const Values thread_part_;   // (row, part) of the thread's first
  const bool contiguous_;      // along k
  const int row_dim_, k_dim_;  // dimensions of the buffer
  const Memory::RegionStart start_;
  std::map<int64_t, Value*> known_;  // by the first register
};

}  // namespace kiln::llvm_ir
