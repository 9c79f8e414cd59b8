// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/places.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::llvm_ir {

using ir::Space;

void Places::AllocateShared(std::string_view entry) {
  if (kernel().shared_bytes == 0) return;
  shared_ = device().SharedMemory(uint64_t(kernel().shared_bytes), fmt::format("{}_shared", entry));
}

void Places::AllocateThread() {
  for (uint32_t id = 0; id < module().buffers.size(); ++id) Allocate(ir::BufferId(id));
}

void Places::Allocate(ir::BufferId id) {
  const ir::Buffer& buffer = module()[id];
  if (buffer.space != Space::kFragment && buffer.space != Space::kLocal) return;
  if (ir::Bits(buffer.dtype) < 8) return;  // never touched
  int64_t count = 1;
  if (buffer.space == Space::kFragment) {
    if (!buffer.layout) return;  // of another kernel, or never used
    count = buffer.layout->Registers();
  } else {
    for (int64_t extent : module().ShapeOf(id)) count *= extent;
  }
  Value* memory = memory_[ir::Index(id)] = Alloca(MemoryType(llvm(), buffer.dtype), count, buffer.name.c_str());
  if (!target().emulated) return;
  // Fills registers with NaN, in any type, so that results computed from unset registers show.
  b().CreateMemSet(memory, b().getInt8(0xff), uint64_t(count) * uint64_t(ir::Bits(buffer.dtype)) / 8, llvm::MaybeAlign());
  if (buffer.space != Space::kLocal) return;
  Value* written = written_[ir::Index(id)] = Alloca(b().getInt8Ty(), count, "written");
  b().CreateMemSet(written, b().getInt8(0), uint64_t(count), llvm::MaybeAlign());
}

Value* Places::Written(ir::BufferId buffer) const {
  const auto it = written_.find(ir::Index(buffer));
  return it == written_.end() ? nullptr : it->second;
}

Value* Places::Alloca(llvm::Type* type, int64_t count, const char* name) {
  llvm::IRBuilderBase::InsertPointGuard guard(b());
  llvm::BasicBlock& entry = context().function()->getEntryBlock();
  b().SetInsertPoint(&entry, entry.begin());
  auto* array = llvm::ArrayType::get(type, uint64_t(std::max<int64_t>(count, 1)));
  const unsigned space = context().out().getDataLayout().getAllocaAddrSpace();
  return b().CreateAlloca(array, space, nullptr, name);
}

}  // namespace kiln::llvm_ir
