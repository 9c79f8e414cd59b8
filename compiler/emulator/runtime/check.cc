// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check.h"

#include <string>

#include "compiler/emulator/runtime/cluster.h"

namespace kiln::emulator {
namespace {

std::string SharedName(const Block& block, uint64_t offset) {
  std::string names;
  for (const SharedSlot& slot : block.grid().slots) {
    if (offset < slot.offset || offset >= slot.offset + uint64_t(slot.bytes)) continue;
    names += (names.empty() ? "" : " or ") + slot.name + " + " + std::to_string(offset - slot.offset);
  }
  return "shared memory at byte " + std::to_string(offset) + (names.empty() ? "" : " (" + names + " bytes)");
}

const char* Verb(Touch touch) {
  return touch == Touch::kRead ? " reads " : touch == Touch::kWrite ? " writes " : " changes (by an atomic) ";
}

std::string ThreadName(const Block& block, uint32_t thread) {
  return "thread " + std::to_string(thread) + " of block " + block.IndexName();
}

// Who does what, and where it is reported.
struct Subject {
  std::string name;
  uint32_t thread = 0, location = 0;
  Touch touch{};
};

void ReportClash(Block& block, const Subject& subject, const Clash& clash, const std::string& where, uint32_t bytes) {
  Cluster& cluster = block.cluster();
  std::string text = subject.name + Verb(subject.touch) + std::to_string(bytes) + " bytes of " + where;
  const bool here = clash.other.block == cluster.number() + 1;
  const std::string other = clash.kind == Clash::kUninitialized ? "" : cluster.NameOf(clash.other.block - 1, clash.other.agent);
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
  } else if (here && cluster.IsAsync(clash.other.agent)) {
    kind = FindingKind::kAsyncPending;
    text += ", which " + other + (clash.other_writes ? " writes" : " reads") + ": its end has not been waited for";
  } else {
    text += ", which " + other + (clash.other_writes ? " wrote" : " read") +
            (here ? " with no barrier between them" : "; nothing orders blocks of one launch");
  }
  block.Report(kind, subject.thread, subject.location, clash.other.location, std::move(text));
}

Subject SubjectOf(const Block& block, const Access& access) {
  return {ThreadName(block, access.thread), access.thread, access.location, access.touch};
}

Subject SubjectOf(Block& block, const AsyncAccess& access, Touch touch) {
  return {block.cluster().NameOf(block.cluster().number(), access.agent), access.starter == nullptr ? 0 : access.starter->index,
          access.location, touch};
}

std::string Where(const Block& block, const Access& access, uint32_t bytes) {
  return ThreadName(block, access.thread) + Verb(access.touch) + std::to_string(bytes) + " bytes of ";
}

void CheckAlign(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align, const std::string& what) {
  if (reinterpret_cast<uintptr_t>(data) % align == 0) return;
  block.Fault(FindingKind::kMisaligned, access.location,
              Where(block, access, bytes) + what + ", which is not a multiple of " + std::to_string(align));
}

// The block in whose memory all the bytes are; the cluster ends where there is none.
Block& OwnerOf(Block& block, const Access& access, const std::byte* data, uint32_t bytes) {
  const uint32_t size = block.shadow()->bytes();
  const auto inside = [&](Block& owner) {
    const auto offset = uint64_t(data - owner.shared());
    return offset <= size && bytes <= size - offset;
  };
  if (inside(block)) return block;
  for (uint32_t r = 0; r < block.cluster().size(); ++r) {
    Block& other = block.cluster().block(r);
    if (!inside(other)) continue;
    if (!other.ended()) return other;
    block.Fault(FindingKind::kOutOfBounds, access.location, Where(block, access, bytes) + "shared memory of block " + other.IndexName() + ", which has ended");
  }
  block.Fault(FindingKind::kOutOfBounds, access.location,
              Where(block, access, bytes) + "shared memory at byte " + std::to_string(data - block.shared()) + "; the block has " +
                  std::to_string(size) + " bytes");
}

Who WhoOf(Block& block, const AsyncAccess& access, Order& order) {
  order = {.views = access.starter == nullptr ? access.views : std::span(&access.starter->view, 1),
           .self = access.starter == nullptr ? kNoAgent : access.starter->agent,
           .threads = block.cluster().thread_count(),
           .async = true};
  return {block.cluster().number() + 1, access.time, access.agent, access.location, &order};
}

}  // namespace

void CheckShared(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align,
                 const std::byte* value) {
  if (block.shadow() == nullptr) return;
  Block& owner = OwnerOf(block, access, data, bytes);
  const auto offset = uint32_t(data - owner.shared());
  if (reinterpret_cast<uintptr_t>(data) % align != 0) CheckAlign(block, access, data, bytes, align, SharedName(block, offset));
  if (const Mbarrier* mbarrier = owner.mbarriers().Touching(offset, bytes)) {
    block.Report(FindingKind::kMbarrier, access.thread, access.location, mbarrier->init_location(),
                 Where(block, access, bytes) + mbarrier->Describe() + " as if it were ordinary memory");
  }
  Order order;
  const Clash clash = owner.shadow()->Note(block.WhoOf(access.thread, access.location, order), offset, bytes, access.touch, data, value);
  if (clash.kind != Clash::kNone) ReportClash(block, SubjectOf(block, access), clash, SharedName(block, offset), bytes);
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
  Order order;
  const Clash clash = shadow->Note(block.WhoOf(access.thread, access.location, order), *allocation, data, bytes, access.touch, value);
  if (clash.kind != Clash::kNone) ReportClash(block, SubjectOf(block, access), clash, shadow->Describe(data), bytes);
}

void CheckAsyncShared(Block& block, const AsyncAccess& access, uint32_t offset, uint32_t bytes, Touch touch) {
  if (block.shadow() == nullptr) return;
  Order order;
  const Clash clash = block.shadow()->Note(WhoOf(block, access, order), offset, bytes, touch, nullptr, nullptr);
  if (clash.kind != Clash::kNone) ReportClash(block, SubjectOf(block, access, touch), clash, SharedName(block, offset), bytes);
}

void CheckAsyncGlobal(Block& block, const AsyncAccess& access, const std::byte* data, uint32_t bytes, Touch touch) {
  GlobalShadow* shadow = block.grid().shadow;
  if (shadow == nullptr) return;
  const Subject subject = SubjectOf(block, access, touch);
  const std::optional<size_t> allocation = shadow->Find(data, bytes);
  if (!allocation) {
    block.Fault(FindingKind::kOutOfBounds, access.location,
                subject.name + Verb(touch) + std::to_string(bytes) + " bytes of global memory, " + shadow->Describe(data));
  }
  Order order;
  const Clash clash = shadow->Note(WhoOf(block, access, order), *allocation, data, bytes, touch, nullptr);
  if (clash.kind != Clash::kNone) ReportClash(block, subject, clash, shadow->Describe(data), bytes);
}

void CheckStart(Block& block, uint32_t thread, const AsyncCopy& copy) {
  if (block.shadow() == nullptr) return;
  const Access access{thread, copy.location, Touch::kWrite};
  OwnerOf(block, access, copy.to, copy.bytes);
  const auto offset = uint32_t(copy.to - block.shared());
  if (reinterpret_cast<uintptr_t>(copy.to) % copy.bytes != 0) {
    CheckAlign(block, access, copy.to, copy.bytes, copy.bytes, SharedName(block, offset));
  }
  Order order;
  const Clash clash = block.shadow()->Start(block.WhoOf(thread, copy.location, order), offset, copy.bytes);
  if (clash.kind != Clash::kNone) ReportClash(block, SubjectOf(block, access), clash, SharedName(block, offset), copy.bytes);
  if (copy.copied > 0) CheckGlobal(block, {thread, copy.location, Touch::kRead}, copy.from, copy.copied, copy.bytes);
}

void CheckLand(Block& block, uint32_t thread, const AsyncCopy& copy) {
  if (block.shadow() == nullptr) return;
  Order order;
  block.shadow()->Land(block.WhoOf(thread, copy.location, order), uint32_t(copy.to - block.shared()), copy.bytes);
}

}  // namespace kiln::emulator
