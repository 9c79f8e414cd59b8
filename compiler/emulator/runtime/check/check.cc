// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check/check.h"

#include <algorithm>
#include <string>

#include "compiler/emulator/runtime/check/owners.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

std::string Number(uint64_t v) { return std::to_string(v); }

const char* Verb(Touch touch) { return touch == Touch::kRead ? " reads " : touch == Touch::kWrite ? " writes " : " changes (by an atomic) "; }

// The thread or agent of an access, and the statement in which the access is reported.
struct Subject {
  Block* block = nullptr;  // of the thread
  uint32_t agent = 0, thread = 0, location = 0;
  Touch touch{};
  bool async = false;

  std::string Name() const { return async ? block->gang().NameOf(block->gang().number(), agent) : block->ThreadName(thread); }
  About AboutIt(uint32_t other_location = 0) const { return {thread, location, other_location}; }
};

Subject SubjectOf(Block& block, const Access& access) { return {&block, 0, access.thread, access.location, access.touch, false}; }

Subject SubjectOf(Block& block, const AsyncAccess& access, Touch touch) {
  const bool alone = access.starter != nullptr;
  return {alone ? access.starter->block : &block, access.agent, alone ? access.starter->index : access.first_thread, access.location, touch, true};
}

FindingKind KindOf(const Gang& gang, const Clash& clash) {
  if (clash.kind == Clash::kUninitialized || clash.kind == Clash::kOutlived) return FindingKind::kUninitialized;
  if (clash.kind == Clash::kPending) return FindingKind::kAsyncPending;
  if (clash.kind == Clash::kUnfenced) return FindingKind::kUnfenced;
  const bool here = clash.other.block == gang.number() + 1;
  return here && gang.IsAsync(clash.other.agent) ? FindingKind::kAsyncPending : FindingKind::kRace;
}

// What is wrong with it, behind the place.
std::string Reason(const Gang& gang, const Clash& clash, FindingKind kind) {
  if (kind == FindingKind::kUninitialized && clash.other.block == 0) return ", which nobody wrote";
  const std::string other = gang.NameOf(clash.other.block - 1, clash.other.agent);
  if (clash.kind == Clash::kOutlived) return ", which nobody wrote since it was allocated: " + other + " left there what an earlier iteration had";
  if (kind == FindingKind::kUninitialized) return ", which nobody wrote: " + other + " left there what belongs to another buffer, whose time is over";
  if (clash.kind == Clash::kPending) return " while an asynchronous copy to it by " + other + " has not been waited for";
  if (kind == FindingKind::kUnfenced)
    return " through the asynchronous proxy, which " + other + (clash.other_writes ? " wrote" : " read") + " with no proxy fence behind";
  if (kind == FindingKind::kAsyncPending)
    return ", which " + other + (clash.other_writes ? " writes" : " reads") + ": its end has not been waited for";
  const bool here = clash.other.block == gang.number() + 1;
  return ", which " + other + (clash.other_writes ? " wrote" : " read") +
         (here ? " with no barrier between them" : "; nothing orders blocks of one launch");
}

// `name`: of the place of a byte of the access, asked where the clash is news.
template <typename Name>
void ReportClash(const Subject& subject, const Clash& clash, uint32_t bytes, Name&& name) {
  if (clash.kind == Clash::kNone) return;
  const Gang& gang = subject.block->gang();
  const FindingKind kind = KindOf(gang, clash);
  const About about = subject.AboutIt(clash.other.location);
  if (!subject.block->Wants(kind, about)) return;
  NamedPlace at = name(clash.byte);
  subject.block->Add(kind, about,
                     subject.Name() + Verb(subject.touch) + Number(bytes) + (clash.byte == 0 ? " bytes of " : " bytes, among them ") + at.text +
                         Reason(gang, clash, kind),
                     std::move(at.place));
}

std::string Deed(const Block& block, const Access& access, uint32_t bytes) {
  return block.ThreadName(access.thread) + Verb(access.touch) + Number(bytes) + " bytes of ";
}

// The element's number in its buffer, row by row.
int64_t NumberOf(const Outside& of) {
  int64_t number = 0;
  for (size_t d = 0; d < of.index.size(); ++d) number = number * of.shape[d] + of.index[d];
  return number;
}

bool IsMisaligned(const std::byte* data, uint32_t align) { return reinterpret_cast<uintptr_t>(data) % align != 0; }

[[noreturn]] void FaultMisaligned(Block& block, const Access& access, uint32_t bytes, uint32_t align, NamedPlace at) {
  block.Fault(FindingKind::kMisaligned, {access.thread, access.location},
              Deed(block, access, bytes) + at.text + ", which is not a multiple of " + Number(align), std::move(at.place));
}

// Buffers lie close together: beyond one of them there may be another that the statement has nothing to do with.
void CheckTouched(const Block& owner, const Subject& subject, uint32_t offset, uint32_t bytes) {
  Block& block = *subject.block;
  if (block.grid().MayTouch(subject.location, offset, bytes) || !block.Wants(FindingKind::kOutOfBounds, subject.AboutIt())) return;
  NamedPlace at = SharedPlace(owner, offset, block);
  block.Add(FindingKind::kOutOfBounds, subject.AboutIt(),
            subject.Name() + Verb(subject.touch) + Number(bytes) + " bytes of " + at.text + ", which is in no buffer of its statement",
            std::move(at.place));
}

// The block in whose memory all the bytes are; the gang ends where there is none.
Block& OwnerOf(Block& block, const Access& access, const std::byte* data, uint32_t bytes) {
  const uint32_t size = block.shadow()->bytes();
  const auto inside = [&](Block& owner) {
    const auto offset = uint64_t(data - owner.shared());
    return offset <= size && bytes <= size - offset;
  };
  if (inside(block)) return block;
  for (uint32_t r = 0; r < block.grid().cluster_blocks(); ++r) {
    Block& other = block.Peer(r);
    if (!inside(other)) continue;
    if (!other.ended()) return other;
    NamedPlace at = SharedPlace(other, uint64_t(data - other.shared()), block);
    block.Fault(FindingKind::kOutOfBounds, {access.thread, access.location}, Deed(block, access, bytes) + at.text + ", which has ended",
                std::move(at.place));
  }
  NamedPlace at = BeyondPlace(block, data - block.shared());
  block.Fault(FindingKind::kOutOfBounds, {access.thread, access.location}, Deed(block, access, bytes) + at.text, std::move(at.place));
}

Who WhoOf(Block& block, const AsyncAccess& access, Order& order) {
  order = {.views = access.starter == nullptr ? access.views : std::span(&access.starter->view, 1),
           .self = access.starter == nullptr ? kNoAgent : access.starter->agent,
           .threads = block.gang().thread_count(),
           .async = true};
  return {block.gang().number() + 1, access.time, access.agent, access.location, &order};
}

size_t FindGlobal(const Subject& subject, const std::byte* data, uint32_t bytes) {
  const GlobalShadow& shadow = *subject.block->grid().shadow;
  const std::optional<size_t> allocation = shadow.Find(data, bytes);
  if (allocation) return *allocation;
  NamedPlace at = shadow.NameOf(data);
  subject.block->Fault(FindingKind::kOutOfBounds, subject.AboutIt(),
                       subject.Name() + Verb(subject.touch) + Number(bytes) + " bytes of global memory, " + at.text, std::move(at.place));
}

}  // namespace

void CheckShared(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align, const std::byte* value) {
  if (block.shadow() == nullptr) return;
  if (access.touch != Touch::kRead) block.claims().Wrote(access.thread, data, bytes);
  Block& owner = OwnerOf(block, access, data, bytes);
  const auto offset = uint32_t(data - owner.shared());
  if (IsMisaligned(data, align)) FaultMisaligned(block, access, bytes, align, SharedPlace(owner, offset, block, access.location));
  if (const Mbarrier* mbarrier = owner.mbarriers().Touching(offset, bytes)) {
    block.Report(FindingKind::kMbarrier, {access.thread, access.location, mbarrier->init_location()},
                 Deed(block, access, bytes) + mbarrier->Describe() + " as if it were ordinary memory", SharedPlace(owner, offset, block).place);
  }
  const Subject subject = SubjectOf(block, access);
  CheckTouched(owner, subject, offset, bytes);
  Order order;
  const Clash clash =
      owner.shadow()->Note(block.WhoOf(access.thread, access.location, order), access.thread, offset, bytes, access.touch, data, value);
  ReportClash(subject, clash, bytes, [&](uint32_t byte) { return SharedPlace(owner, offset + byte, block, access.location); });
}

void CheckGlobal(Block& block, const Access& access, const std::byte* data, uint32_t bytes, uint32_t align, const std::byte* value) {
  GlobalShadow* shadow = block.grid().shadow;
  if (shadow == nullptr) return Own(block, data, bytes, access.touch);
  if (access.touch != Touch::kRead) block.claims().Wrote(access.thread, data, bytes);
  const Subject subject = SubjectOf(block, access);
  const size_t allocation = FindGlobal(subject, data, bytes);
  if (IsMisaligned(data, align)) FaultMisaligned(block, access, bytes, align, shadow->NameOf(data));
  Order order;
  const Clash clash = shadow->Note(block.WhoOf(access.thread, access.location, order, /*global=*/true), allocation, data, bytes, access.touch, value);
  ReportClash(subject, clash, bytes, [&](uint32_t byte) { return shadow->NameOf(data + byte); });
}

void CheckAsyncShared(Block& block, const AsyncAccess& access, uint32_t offset, uint32_t bytes, Touch touch) {
  if (block.shadow() == nullptr) return;
  const Subject subject = SubjectOf(block, access, touch);
  CheckTouched(block, subject, offset, bytes);
  Order order;
  const Clash clash = block.shadow()->Note(WhoOf(block, access, order), subject.thread, offset, bytes, touch, nullptr, nullptr);
  ReportClash(subject, clash, bytes, [&](uint32_t byte) { return SharedPlace(block, offset + byte, *subject.block, access.location); });
}

void CheckAsyncGlobal(Block& block, const AsyncAccess& access, const std::byte* data, uint32_t bytes, Touch touch) {
  GlobalShadow* shadow = block.grid().shadow;
  if (shadow == nullptr) return Own(block, data, bytes, touch);
  const Subject subject = SubjectOf(block, access, touch);
  const size_t allocation = FindGlobal(subject, data, bytes);
  Order order;
  const Clash clash = shadow->Note(WhoOf(block, access, order), allocation, data, bytes, touch, nullptr);
  ReportClash(subject, clash, bytes, [&](uint32_t byte) { return shadow->NameOf(data + byte); });
}

void Own(Block& block, const std::byte* data, uint32_t bytes, Touch touch) {
  Owners* owners = block.grid().owners;
  if (owners != nullptr && !owners->Note(block.gang().number(), data, bytes, touch)) block.gang().Abandon();
}

void ReportUnwritten(Block& block, const Outside& element, uint32_t location) {
  const About about{block.thread().index, location, 0};
  if (block.shadow() == nullptr || !block.Wants(FindingKind::kUninitialized, about)) return;
  const int64_t number = NumberOf(element);
  block.Add(FindingKind::kUninitialized, about,
            block.ThreadName(about.thread) + " reads " + Number(element.bytes) + " bytes of " + element.buffer + IndexText(element.index) +
                ", which nobody wrote",
            {.address = uint64_t(number) * element.bytes, .elements = {{element.buffer, uint64_t(number)}}});
}

void StopOutside(Block& block, const Outside& outside, uint32_t location) {
  const size_t wrong =
      size_t(std::ranges::mismatch(outside.index, outside.shape, [](int64_t i, int64_t extent) { return i >= 0 && i < extent; }).in1 -
             outside.index.begin());
  const int64_t element = NumberOf(outside);
  const auto slot = std::ranges::find(block.grid().slots, outside.buffer, &SharedSlot::name);
  const uint64_t first = slot == block.grid().slots.end() ? 0 : slot->offset;
  Place place{.address = first + uint64_t(element * outside.bytes), .elements = {{outside.buffer, uint64_t(element)}}};
  block.Fault(FindingKind::kOutOfBounds, location,
              block.ThreadName(block.thread().index) + (outside.write ? " writes " : " reads ") + outside.buffer + IndexText(outside.index) +
                  ": index " + std::to_string(outside.index[wrong]) + " is outside of dimension " + Number(wrong) + ", which has " +
                  std::to_string(outside.shape[wrong]) + " elements",
              std::move(place));
}

void CheckStart(Block& block, uint32_t thread, const AsyncCopy& copy) {
  if (block.shadow() == nullptr) return Own(block, copy.from, copy.copied, Touch::kRead);
  const Access access{thread, copy.location, Touch::kWrite};
  block.claims().Wrote(thread, copy.to, copy.bytes);
  if (Block& owner = OwnerOf(block, access, copy.to, copy.bytes); &owner != &block) {
    NamedPlace at = SharedPlace(owner, uint64_t(copy.to - owner.shared()), block);
    block.Fault(FindingKind::kOperands, {thread, copy.location},
                Deed(block, access, copy.bytes) + at.text + " by an asynchronous copy, which reaches only its own block's", std::move(at.place));
  }
  const auto offset = uint32_t(copy.to - block.shared());
  const Subject subject = SubjectOf(block, access);
  if (IsMisaligned(copy.to, copy.bytes)) FaultMisaligned(block, access, copy.bytes, copy.bytes, SharedPlace(block, offset, block));
  CheckTouched(block, subject, offset, copy.bytes);
  Order order;
  const Clash clash = block.shadow()->Start(block.WhoOf(thread, copy.location, order), thread, offset, copy.bytes);
  ReportClash(subject, clash, copy.bytes, [&](uint32_t byte) { return SharedPlace(block, offset + byte, block, copy.location); });
  if (copy.copied > 0) CheckGlobal(block, {thread, copy.location, Touch::kRead}, copy.from, copy.copied, copy.bytes);
}

void CheckLand(Block& block, uint32_t thread, const AsyncCopy& copy) {
  if (block.shadow() == nullptr) return;
  Order order;
  block.shadow()->Land(block.WhoOf(thread, copy.location, order), uint32_t(copy.to - block.shared()), copy.bytes);
}

}  // namespace kiln::emulator
