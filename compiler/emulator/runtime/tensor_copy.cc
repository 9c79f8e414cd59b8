// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/tensor_copy.h"

#include <algorithm>
#include <cstring>

#include "compiler/emulator/runtime/check/check.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

constexpr int64_t kCoordinateBytes = 16;
constexpr uint32_t kPieceBytes = 16;  // that stores write as one

std::string Number(uint64_t v) { return std::to_string(v); }

// Where a box starts in global memory, whether that lies in a tensor or not.
NamedPlace BoxPlace(const Block& block, const TensorMap& map, const Coordinates& at) {
  uint64_t address = map.address + uint64_t(int64_t{at[0]} * BytesOf(map.type));
  for (uint32_t d = 1; d < map.rank; ++d) address += uint64_t(at[d]) * map.strides[d - 1];
  if (block.grid().shadow != nullptr) return block.grid().shadow->NameOf(reinterpret_cast<const void*>(address));
  return {"byte " + Number(address - map.address) + " of a tensor", {.address = address - map.address, .elements = {}}};
}

// One block's part of a load: its bytes of shared memory and its mbarrier.
void StartAt(Block& to, TensorTransfer& transfer, uint32_t bytes) {
  Block& block = Block::Current();
  if (to.ended()) {
    NamedPlace at = SharedPlace(to, transfer.offset, block);
    block.Fault(FindingKind::kOutOfBounds, transfer.location, "a tensor load to " + at.text + ", which has ended", std::move(at.place));
  }
  Mbarrier& mbarrier = to.mbarriers().At(transfer.mbarrier, transfer.location);
  mbarrier.CheckUse(transfer.location, true);
  const uint32_t number = mbarrier.Start();
  transfer.to.emplace_back(&to, number);
  if (to.shadow() == nullptr) return;
  Thread& self = block.thread();
  const AsyncAccess access{.agent = mbarrier.agent(), .time = number, .starter = &self, .location = transfer.location};
  for (uint32_t i = 0; i < bytes; i += 16) {
    CheckAsyncShared(to, access, PlaceInBox(*transfer.map, transfer.offset, i), 16, Touch::kWrite);
  }
}

void CheckSource(Block& block, const TensorTransfer& transfer) {
  if (!block.grid().notes_global()) return;
  const auto& [first, number] = transfer.to.front();
  const AsyncAccess access{.agent = first->mbarriers().At(transfer.mbarrier, transfer.location).agent(),
                           .time = number,
                           .starter = &block.thread(),
                           .location = transfer.location};
  const uint32_t element = BytesOf(transfer.map->type);
  ForEachRow(*transfer.map, transfer.at, [&](const BoxRow& row) {
    if (row.first == row.end) return;
    CheckAsyncGlobal(block, access, reinterpret_cast<const std::byte*>(row.address) + row.first * element, (row.end - row.first) * element,
                     Touch::kRead);
  });
}

}  // namespace

uint32_t CheckBox(Block& block, const TensorMap* map, const Coordinates& at, uint32_t rank, const std::byte* shared, uint32_t location) {
  if (reinterpret_cast<uintptr_t>(map) % 64 != 0 || map->magic != TensorMap::kMagic) {
    block.Fault(FindingKind::kOperands, location, "a tensor copy without a tensor map");
  }
  if (map->rank != rank) {
    block.Fault(FindingKind::kOperands, location, "a tensor copy of " + Number(rank) + " dimensions with a map of " + Number(map->rank));
  }
  const int64_t first = int64_t{at[0]} * BytesOf(map->type);
  if (first % kCoordinateBytes != 0) {
    NamedPlace place = BoxPlace(block, *map, at);
    block.Fault(FindingKind::kMisaligned, location,
                "a tensor copy from or to " + place.text + ", byte " + std::to_string(first) + " of its tensor's rows, which is not a multiple of " +
                    Number(kCoordinateBytes),
                std::move(place.place));
  }
  const auto offset = uint64_t(shared - block.shared());
  if (offset > block.grid().shared_bytes || map->SharedBytes() > block.grid().shared_bytes - offset) {
    NamedPlace place = BeyondPlace(block, int64_t(offset));
    block.Fault(FindingKind::kOutOfBounds, location, "a tensor copy of " + Number(map->SharedBytes()) + " bytes at " + place.text,
                std::move(place.place));
  }
  if (offset % 128 != 0) {
    NamedPlace place = SharedPlace(block, offset, block);
    block.Fault(FindingKind::kMisaligned, location, "a tensor copy at " + place.text + ", which is not a multiple of 128", std::move(place.place));
  }
  return uint32_t(offset);
}

void StartLoad(Block& block, const TensorMap* map, const Coordinates& at, uint32_t rank, std::byte* shared, std::byte* mbarrier, uint32_t mask,
               uint32_t location) {
  const uint32_t blocks = block.grid().cluster_blocks();
  auto transfer = std::make_unique<TensorTransfer>();
  transfer->offset = CheckBox(block, map, at, rank, shared, location);
  transfer->map = map;
  transfer->at = at;
  transfer->mbarrier = uint32_t(mbarrier - block.shared());
  transfer->starter = &block.thread();
  transfer->location = location;
  if (mask == 0) mask = 1u << block.cluster_rank();
  if (mask >> blocks != 0) {
    NamedPlace place = SharedPlace(block, transfer->offset, block);
    block.Fault(FindingKind::kOperands, location,
                "a multicast to " + place.text + " of blocks that a cluster of " + Number(blocks) + " does not have: mask " + Number(mask),
                std::move(place.place));
  }
  for (uint32_t r = 0; r < blocks; ++r) {
    if ((mask >> r & 1) != 0) StartAt(block.Peer(r), *transfer, map->BoxBytes());
  }
  CheckSource(block, *transfer);
  block.gang().Launch(std::move(transfer));
}

void TensorTransfer::Land() const {
  for (const auto& [block, number] : to) {
    LoadBox(*map, at, block->shared(), offset);
    block->mbarriers().At(mbarrier, location).Complete(number, map->BoxBytes(), {starter, location});
  }
}

// --- stores ---

namespace {

void Write(Block& block, const TensorStore& store) {
  const bool ordered = block.grid().orders_atomics && store.op != TensorOp::kStore;
  if (ordered || DependsOnOrder(store.op, store.map->type)) block.gang().AwaitTurn();
  StoreBox(*store.map, store.at, store.read.data(), store.op);
}

// The block ends where the hardware would write behind a row of the tensor.
void CheckRowEnd(Block& block, const TensorStore& store) {
  const TensorMap& map = *store.map;
  const uint32_t element = BytesOf(map.type);
  ForEachRow(map, store.at, [&](const BoxRow& row) {
    const uint32_t beyond = (kPieceBytes - row.end * element % kPieceBytes) % kPieceBytes;
    if (row.first == row.end || beyond == 0) return;
    NamedPlace place = BoxPlace(block, map, store.at);
    block.Fault(FindingKind::kOutOfBounds, store.location,
                "a tensor store to " + place.text + ", whose rows of " + Number((map.dims[0] + 1) * element) + " bytes end inside a piece of " +
                    Number(kPieceBytes) + ": the hardware overwrites the " + Number(beyond) + " bytes behind them",
                std::move(place.place));
  });
}

}  // namespace

void StartStore(Block& block, TensorStore store) {
  Thread& self = block.thread();
  StoreGroups& stores = self.stores;
  if (const std::string problem = CheckOp(store.op, store.map->type); !problem.empty()) {
    block.Fault(FindingKind::kOperands, store.location, "a tensor reduction of this type: the hardware " + problem);
  }
  CheckRowEnd(block, store);
  if (stores.reads == 0) {
    stores.reads = block.gang().NewAgent({AsyncAgent::Kind::kStoreReads, block.rank(), self.index});
    stores.writes = block.gang().NewAgent({AsyncAgent::Kind::kStoreWrites, block.rank(), self.index});
  }
  store.number = ++stores.started;
  AsyncAccess access{.agent = stores.reads, .time = store.number, .starter = &self, .location = store.location};
  for (uint32_t i = 0; block.shadow() != nullptr && i < store.map->BoxBytes(); i += 16) {
    CheckAsyncShared(block, access, PlaceInBox(*store.map, store.offset, i), 16, Touch::kRead);
  }
  if (block.grid().notes_global()) {
    access.agent = stores.writes;
    const uint32_t element = BytesOf(store.map->type);
    ForEachRow(*store.map, store.at, [&](const BoxRow& row) {
      if (row.first == row.end) return;
      CheckAsyncGlobal(block, access, reinterpret_cast<const std::byte*>(row.address) + row.first * element, (row.end - row.first) * element,
                       store.op == TensorOp::kStore ? Touch::kWrite : Touch::kAtomic);
    });
  }
  if (!block.lands_late()) {
    store.read = GatherBox(*store.map, block.shared(), store.offset);
    Write(block, store);
  }
  stores.open.push_back(std::move(store));
}

void CommitStores(Block& block) {
  StoreGroups& stores = block.thread().stores;
  stores.groups.push_back(std::move(stores.open));
  stores.open.clear();
}

namespace {

void ReadGroup(Block& block, StoreGroups& stores) {
  for (TensorStore& store : stores.groups[stores.read]) {
    if (block.lands_late()) store.read = GatherBox(*store.map, block.shared(), store.offset);
    if (block.grid().clocks) block.thread().view.seen = block.thread().view.seen.With(stores.reads, store.number);
  }
  ++stores.read;
}

void WriteGroup(Block& block, StoreGroups& stores) {
  for (const TensorStore& store : stores.groups.front()) {
    if (block.lands_late()) Write(block, store);
    if (block.grid().clocks) block.thread().view.seen = block.thread().view.seen.With(stores.writes, store.number);
  }
  stores.groups.pop_front();
  --stores.read;
}

}  // namespace

void WaitStores(Block& block, uint32_t pending, bool read_only) {
  StoreGroups& stores = block.thread().stores;
  while (stores.groups.size() - stores.read > pending) ReadGroup(block, stores);
  while (!read_only && stores.groups.size() > pending) WriteGroup(block, stores);
}

namespace {

// The first that may not have been read; null: none.
const TensorStore* FirstUnread(const StoreGroups& stores) {
  for (size_t group = stores.read; group < stores.groups.size(); ++group) {
    if (!stores.groups[group].empty()) return &stores.groups[group].front();
  }
  return stores.open.empty() ? nullptr : &stores.open.front();
}

}  // namespace

void EndStores(Block& block) {
  Thread& self = block.thread();
  if (self.stores.started == 0) return;
  if (const TensorStore* lost = FirstUnread(self.stores)) {
    NamedPlace at = SharedPlace(block, lost->offset, block);
    block.Report(FindingKind::kAsyncPending, {self.index, lost->location},
                 block.ThreadName(self.index) + " ends while a tensor store may still read " + at.text + ": nothing waited for it",
                 std::move(at.place));
  }
  CommitStores(block);
  WaitStores(block, 0, false);
}

}  // namespace kiln::emulator
