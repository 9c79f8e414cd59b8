// SPDX-License-Identifier: Apache-2.0
//
// Addresses in the block's shared memory, as its buffers' layouts and swizzles say.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>

#include "compiler/llvm/lower/places.h"

namespace kiln::llvm_ir {

// A byte offset, split into a value and the sum of all constants.
struct SplitOffset {
  Value* variable = nullptr;  // nullptr: zero
  int64_t constant = 0;
};

class SharedMemory : Part {
 public:
  SharedMemory(KernelContext& context, const Places& places) : Part(context), places_(places) {}

  // `bytes` from the buffer's start, to be swizzled; `after` is added after the swizzle.
  Value* Pointer(ir::BufferId buffer, SplitOffset bytes, Value* after = nullptr);
  // What an index in a dimension adds to the address, in bytes; i32.
  Value* Term(ir::BufferId buffer, int dim, Value* index) const;
  // Offsets that differ by multiples of so many bytes are swizzled alike.
  int64_t SwizzlePeriod(ir::BufferId buffer) const;
  // Whether an index in a dimension moves by whole periods of the swizzle, as versions of a buffer do: it may be added after the swizzle.
  bool MovesByPeriods(ir::BufferId buffer, int dim) const;

 private:
  Value* Swizzled(const ir::Swizzle& swizzle, Value* variable, int64_t constant);
  int64_t KnownZeros(Value* offset);

  const Places& places_;
  // Swizzled offsets are shared between accesses: (variable, low constant, swizzle bits, shift) in one basic block.
  std::map<std::tuple<Value*, int64_t, int, int, llvm::BasicBlock*>, Value*> swizzled_;
  std::map<Value*, int64_t> zeros_;  // low bits of an offset that are known to be 0
};

}  // namespace kiln::llvm_ir
