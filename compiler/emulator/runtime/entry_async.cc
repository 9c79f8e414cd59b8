// SPDX-License-Identifier: Apache-2.0
//
// What the code of a thread calls (abi.h): what Hopper does behind a thread's back, and between warps of different roles.
#include <cstring>

#include "compiler/emulator/runtime/check/check.h"
#include "compiler/emulator/runtime/entry.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

Block& Current() { return Block::Current(); }

Mbarrier& MbarrierAt(const std::byte* data, uint32_t location) {
  Block& block = Current();
  Mbarrier& mbarrier = block.mbarriers().At(uint32_t(data - block.shared()), location);
  mbarrier.CheckUse(location, false);
  return mbarrier;
}

Coordinates CoordinatesOf(const void* at, uint32_t rank) {
  Coordinates result{};
  std::memcpy(result.data(), at, std::min(rank, kMaxTensorRank) * sizeof(int32_t));
  return result;
}

uint32_t* FlagAt(std::byte* flag, uint32_t location) {
  Block& block = Current();
  CheckGlobal(block, {block.thread().index, location, Touch::kAtomic}, flag, sizeof(uint32_t), sizeof(uint32_t));
  return reinterpret_cast<uint32_t*>(flag);
}

struct ElectOperands {
  bool elected = false;
};

}  // namespace

namespace calls {
extern "C" {

void kiln_emu_wgmma_begin(uint32_t clear, uint32_t count, void* c, uint32_t site, uint32_t location) {
  BeginProducts(Current(), count, static_cast<uint32_t*>(c), clear != 0, site, location);
}
void kiln_emu_wgmma_step(uint64_t form, uint64_t a, uint64_t b, void* words, uint32_t flags, uint32_t site, uint32_t location) {
  StepProducts(Current(), {form, a, b, flags, location, {}, {}}, static_cast<const uint32_t*>(words), site);
}
void kiln_emu_wgmma_wait(uint32_t pending, uint32_t count, void* words, uint32_t site, uint32_t location) {
  WaitProducts(Current(), pending, count, static_cast<uint32_t*>(words), site, location);
}
void kiln_emu_wgmma_touch(uint32_t word, uint32_t location) { TouchProducts(Current(), word, location); }
void kiln_emu_wgmma_uses(uint32_t fragment, uint32_t first, uint32_t count, uint32_t location) {
  UseRegisters(Current(), {.fragment = fragment, .first = first, .count = count, .location = location});
}
void kiln_emu_wgmma_assign(uint32_t fragment, uint32_t reg, uint32_t value, uint32_t location) {
  AssignRegister(Current(), fragment, reg, value, location);
}

// A fence of this thread's proxies also publishes the mbarriers that it initialised.
void kiln_emu_fence_async_proxy(uint32_t) {
  Block& block = Current();
  Thread& self = block.thread();
  if (block.grid().clocks) self.view.Fence(self.agent);
  block.mbarriers().PublishOf(self.agent);
}

void kiln_emu_phase_init(std::byte* mbarrier, uint32_t count, uint32_t location) { Current().mbarriers().Init(mbarrier, count, location); }
void kiln_emu_phase_init_fence(uint32_t) { Current().mbarriers().PublishOf(Current().thread().agent); }
void kiln_emu_phase_arrive(std::byte* mbarrier, uint32_t location) { MbarrierAt(mbarrier, location).Arrive(location); }

void kiln_emu_phase_arrive_at(std::byte* mbarrier, uint32_t rank, uint32_t location) {
  Block& block = Current();
  if (rank >= block.grid().cluster_blocks()) {
    block.Fault(FindingKind::kOperands, location,
                "an arrival at block " + std::to_string(rank) + " of a cluster of " + std::to_string(block.grid().cluster_blocks()));
  }
  Block& other = block.Peer(rank);
  const auto offset = uint32_t(mbarrier - block.shared());
  if (other.ended()) {
    NamedPlace place = SharedPlace(other, offset, block);
    block.Fault(FindingKind::kOutOfBounds, location, "an arrival at an mbarrier in " + place.text + ", which has ended", std::move(place.place));
  }
  Mbarrier& at = other.mbarriers().At(offset, location);
  at.CheckUse(location, &other != &block);
  at.Arrive(location);
}

// PTX ISA, st.async: the bytes count at the mbarrier, with what the thread did before, when they are there. They are at once.
void kiln_emu_store_async_at(std::byte* shared, uint32_t rank, uint64_t word, uint32_t bytes, std::byte* mbarrier, uint32_t location) {
  Block& block = Current();
  if (rank >= block.grid().cluster_blocks()) {
    block.Fault(FindingKind::kOperands, location,
                "a store to block " + std::to_string(rank) + " of a cluster of " + std::to_string(block.grid().cluster_blocks()));
  }
  Block& other = block.Peer(rank);
  if (other.ended()) {
    NamedPlace place = SharedPlace(other, uint32_t(shared - block.shared()), block);
    block.Fault(FindingKind::kOutOfBounds, location, "a store to " + place.text + ", which has ended", std::move(place.place));
  }
  Mbarrier& at = other.mbarriers().At(uint32_t(mbarrier - block.shared()), location);
  at.CheckUse(location, /*needs_fence=*/true);
  std::byte* to = other.shared() + (shared - block.shared());
  CheckShared(block, {block.thread().index, location, Touch::kWrite}, to, bytes, bytes, reinterpret_cast<const std::byte*>(&word));
  std::memcpy(to, &word, bytes);
  at.Deliver(bytes, location);
}

void kiln_emu_phase_expect(std::byte* mbarrier, uint32_t bytes, uint32_t location) {
  Mbarrier& at = MbarrierAt(mbarrier, location);
  at.Expect(bytes, location);
  at.Arrive(location);
}
void kiln_emu_phase_expect_more(std::byte* mbarrier, uint32_t bytes, uint32_t location) { MbarrierAt(mbarrier, location).Expect(bytes, location); }
void kiln_emu_phase_wait(std::byte* mbarrier, uint32_t parity, uint32_t location) { MbarrierAt(mbarrier, location).Wait(parity, location); }

void kiln_emu_tensor_load(std::byte* shared, void* map, void* at, uint32_t rank, std::byte* mbarrier, uint32_t mask, uint32_t location) {
  StartLoad(Current(), static_cast<const TensorMap*>(map), CoordinatesOf(at, rank), rank, shared, mbarrier, mask, location);
}
void kiln_emu_tensor_store(uint32_t op, void* map, void* at, uint32_t rank, std::byte* shared, uint32_t location) {
  Block& block = Current();
  const auto* tensor = static_cast<const TensorMap*>(map);
  const Coordinates first = CoordinatesOf(at, rank);
  StartStore(block, {.op = TensorOp(op),
                     .map = tensor,
                     .at = first,
                     .offset = CheckBox(block, tensor, first, rank, shared, location),
                     .number = 0,
                     .location = location,
                     .read = {}});
}
void kiln_emu_tensor_commit(uint32_t) { CommitStores(Current()); }
void kiln_emu_tensor_wait(uint32_t pending, uint32_t read_only, uint32_t) { WaitStores(Current(), pending, read_only != 0); }

void kiln_emu_named_barrier(uint32_t id, uint32_t threads, uint32_t site, uint32_t location) {
  Current().NamedBarrier(id, threads, true, site, location);
}
void kiln_emu_named_arrive(uint32_t id, uint32_t threads, uint32_t site, uint32_t location) {
  Current().NamedBarrier(id, threads, false, site, location);
}
void kiln_emu_set_registers(uint32_t count, uint32_t more, uint32_t at_start, uint32_t site, uint32_t location) {
  Current().SetRegisters(count, more != 0, at_start, site, location);
}

// The same lane each time, but any: PTX ISA, elect.sync.
uint32_t kiln_emu_elect(uint32_t site, uint32_t location) {
  Block& block = Current();
  ElectOperands own;
  block.MeetWarp(Meeting::kElect, site, location, &own, [&](std::span<Thread> warp) {
    static_cast<ElectOperands*>(warp[block.grid().seed / 2 * 5 % warp.size()].operands)->elected = true;
  });
  return own.elected ? 1 : 0;
}

uint32_t kiln_emu_cluster_rank() { return Current().cluster_rank(); }
void kiln_emu_cluster_barrier(uint32_t location) { Current().gang().Barrier(Meeting::kClusterBarrier, location); }
void kiln_emu_grid_barrier(uint32_t location) { Current().gang().Barrier(Meeting::kGridBarrier, location); }
void kiln_emu_raise_flag(std::byte* flag, uint32_t location) { Current().gang().RaiseFlag(FlagAt(flag, location), location); }
void kiln_emu_take_flag(std::byte* flag, uint32_t location) { Current().gang().TakeFlag(FlagAt(flag, location), location); }

// PTX ISA, mapa: the same place in the shared memory of block `rank` of the cluster.
std::byte* kiln_emu_map_shared(std::byte* shared, uint32_t rank, uint32_t location) {
  Block& block = Current();
  if (rank >= block.grid().cluster_blocks()) {
    NamedPlace place = SharedPlace(block, uint64_t(shared - block.shared()), block);
    block.Fault(FindingKind::kOperands, location,
                place.text + " of block " + std::to_string(rank) + " of a cluster of " + std::to_string(block.grid().cluster_blocks()),
                std::move(place.place));
  }
  return block.Peer(rank).shared() + (shared - block.shared());
}

}  // extern "C"
}  // namespace calls

}  // namespace kiln::emulator
