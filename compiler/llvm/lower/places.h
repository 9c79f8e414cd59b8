// SPDX-License-Identifier: Apache-2.0
//
// Where the buffers of a kernel lie: tensors behind their pointers, shared memory behind its start, and what each thread has for itself in
// arrays on its stack.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>

#include "compiler/llvm/lower/part.h"

namespace kiln::llvm_ir {

class Places : Part {
 public:
  explicit Places(KernelContext& context) : Part(context) {}

  // The buffer with this number in the module is behind `pointer`.
  void Bind(uint32_t buffer, Value* pointer) { memory_[buffer] = pointer; }
  // Makes the block's shared memory, where the kernel has some.
  void AllocateShared(std::string_view entry);
  // Makes the arrays of fragments and local buffers.
  void AllocateThread();
  Value* Alloca(llvm::Type* type, int64_t count, const char* name);

  // A tensor's pointer, or the array of a fragment or a local buffer.
  Value* Of(ir::BufferId buffer) const { return memory_.at(ir::Index(buffer)); }
  // On the emulator, of a thread's array: a byte for each element, 1 once the element has been written. Else nullptr.
  Value* Written(ir::BufferId buffer) const;
  Value* Shared() const { return shared_; }  // where the block's shared memory starts

 private:
  void Allocate(ir::BufferId buffer);

  std::map<uint32_t, Value*> memory_;
  std::map<uint32_t, Value*> written_;
  Value* shared_ = nullptr;
};

}  // namespace kiln::llvm_ir
