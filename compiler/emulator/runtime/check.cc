// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check.h"

#include <string>

namespace kiln::emulator {
namespace {

std::string BlockName(uint64_t linear, const Grid& grid) {
  return "(" + std::to_string(linear % grid.size[0]) + ", " + std::to_string(linear / grid.size[0] % grid.size[1]) + ", " +
         std::to_string(linear / grid.size[0] / grid.size[1]) + ")";
}

std::string SharedName(const Block& block, uint64_t offset) {
  std::string names;
  for (const SharedSlot& slot : block.grid().slots) {
    if (offset < slot.offset || offset >= slot.offset + uint64_t(slot.bytes)) continue;
    names += (names.empty() ? "" : " or ") + slot.name + " + " + std::to_string(offset - slot.offset);
  }
  return "shared memory at byte " + std::to_string(offset) + (names.empty() ? "" : " (" + names + " bytes)");
}

const char* Verb(Touch touch) {
  return touch == Touch::kRead ? "reads" : touch == Touch::kWrite ? "writes" : "changes (by an atomic)";
}

void ReportClash(Block& block, const Access& access, const Clash& clash, const std::string& where, uint32_t bytes) {
  if (clash.kind == Clash::kNone) return;
  std::string text = "thread " + std::to_string(access.thread) + " of block " + BlockName(block.linear(), block.grid()) + " " +
                     Verb(access.touch) + " " + std::to_string(bytes) + " bytes of " + where;
  const std::string other = "thread " + std::to_string(clash.other.thread) +
                            (clash.other.block - 1 == block.linear() ? "" : " of block " + BlockName(clash.other.block - 1, block.grid()));
  FindingKind kind = FindingKind::kRace;
  if (clash.kind == Clash::kUninitialized) {
    kind = FindingKind::kUninitialized;
    text += ", which nobody wrote";
  } else if (clash.kind == Clash::kPending) {
    kind = FindingKind::kAsyncPending;
    text += " while an asynchronous copy to it by " + other + " has not been waited for";
  } else if (clash.kind == Clash::kUnfenced) {
    kind = FindingKind::kUnfenced;
    text += " through the asynchronous proxy, which " + other + " wrote with no proxy fence behind";
  } else {
    text += ", which " + other + (clash.other_writes ? " wrote" : " read") +
            (clash.other.block - 1 == block.linear() ? " with no barrier between them" : "; nothing orders blocks of one launch");
  }
  block.Report(kind, access.thread, access.location, clash.other.location, std::move(text));
}

std::string Where(const Block& block, const Access& access, uint32_t bytes) {
  return "thread " + std::to_string(access.thread) + " of block " + BlockName(block.linear(), block.grid()) + " " +
         Verb(access.touch) + " " + std::to_string(bytes) + " bytes of ";
}

void CheckAlign(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align, const std::string& what) {
  if (reinterpret_cast<uintptr_t>(data) % align == 0) return;
  block.Fault(FindingKind::kMisaligned, access.location,
              Where(block, access, bytes) + what + ", which is not a multiple of " + std::to_string(align));
}

// The offset; the block ends where the bytes are not all inside.
uint32_t InShared(Block& block, const Access& access, const std::byte* data, uint32_t bytes) {
  const uint32_t size = block.shadow()->bytes();
  const auto offset = uint64_t(data - block.shared());
  if (offset > size || bytes > size - offset) {
    block.Fault(FindingKind::kOutOfBounds, access.location,
                Where(block, access, bytes) + "shared memory at byte " + std::to_string(int64_t(offset)) + "; the block has " +
                    std::to_string(size) + " bytes");
  }
  return uint32_t(offset);
}

}  // namespace

void CheckShared(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align,
                 const std::byte* value) {
  if (block.shadow() == nullptr) return;
  const uint32_t offset = InShared(block, access, data, bytes);
  if (reinterpret_cast<uintptr_t>(data) % align != 0) CheckAlign(block, access, data, bytes, align, SharedName(block, offset));
  const Who who{block.linear() + 1, block.epoch(), access.thread, access.location};
  const Clash clash = block.shadow()->Note(who, offset, bytes, access.touch, data, value);
  if (clash.kind != Clash::kNone) ReportClash(block, access, clash, SharedName(block, offset), bytes);
}

void CheckGlobal(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align,
                 const std::byte* value) {
  GlobalShadow* shadow = block.grid().shadow;
  if (shadow == nullptr) return;
  const std::optional<size_t> allocation = shadow->Find(data, bytes);
  if (!allocation) {
    block.Fault(FindingKind::kOutOfBounds, access.location, Where(block, access, bytes) + "global memory, " + shadow->Describe(data));
  }
  if (reinterpret_cast<uintptr_t>(data) % align != 0) CheckAlign(block, access, data, bytes, align, shadow->Describe(data));
  const Who who{block.linear() + 1, block.epoch(), access.thread, access.location};
  const Clash clash = shadow->Note(who, *allocation, data, bytes, access.touch, value);
  if (clash.kind != Clash::kNone) ReportClash(block, access, clash, shadow->Describe(data), bytes);
}

void CheckAsyncProxyRead(Block& block, const Access& access, uint32_t offset, uint32_t bytes) {
  if (offset + bytes > block.grid().shared_bytes) {
    block.Fault(FindingKind::kOutOfBounds, access.location,
                "wgmma reads shared memory at byte " + std::to_string(offset) + "; the block has " + std::to_string(block.grid().shared_bytes));
  }
  if (block.shadow() == nullptr) return;
  const Clash clash = block.shadow()->NoteAsyncProxy({block.linear() + 1, block.epoch(), access.thread, access.location}, offset, bytes);
  if (clash.kind != Clash::kNone) ReportClash(block, access, clash, SharedName(block, offset), bytes);
}

void CheckStart(Block& block, uint32_t thread, const AsyncCopy& copy) {
  if (block.shadow() == nullptr) return;
  const Access access{thread, copy.location, Touch::kWrite};
  const uint32_t offset = InShared(block, access, copy.to, copy.bytes);
  if (reinterpret_cast<uintptr_t>(copy.to) % copy.bytes != 0) {
    CheckAlign(block, access, copy.to, copy.bytes, copy.bytes, SharedName(block, offset));
  }
  const Clash clash = block.shadow()->Start({block.linear() + 1, block.epoch(), thread, copy.location}, offset, copy.bytes);
  if (clash.kind != Clash::kNone) ReportClash(block, access, clash, SharedName(block, offset), copy.bytes);
  if (copy.copied > 0) CheckGlobal(block, {thread, copy.location, Touch::kRead}, copy.from, copy.copied, copy.bytes);
}

void CheckLand(Block& block, uint32_t thread, const AsyncCopy& copy) {
  if (block.shadow() == nullptr) return;
  block.shadow()->Land({block.linear() + 1, block.epoch(), thread, copy.location}, uint32_t(copy.to - block.shared()), copy.bytes);
}

}  // namespace kiln::emulator
