// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "mbarrier", "Data Movement and Conversion Instructions: Bulk and Tensor copy" and st.async. The tensor maps are the emulator's, and so
// are the boxes that they describe.
#include <algorithm>
#include <cstring>

#include "compiler/emulator/runtime/tensor_copy.h"
#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"

namespace kiln::ptx {
namespace {

using emulator::TensorMap;
using emulator::TensorOp;

// An mbarrier as it lies in shared memory.
struct Mbarrier {
  uint64_t phase : 1, pending : 20, count : 20;
  int64_t bytes : 23;

  void Update() {
    if (pending != 0 || bytes != 0) return;
    phase ^= 1;
    pending = count;
  }
};
static_assert(sizeof(Mbarrier) == 8);

template <typename Change>
void AtMbarrier(Block& block, uint64_t address, Change change) {
  if (address % 8 != 0) throw Failure("an mbarrier that is not aligned");
  const auto [owner, offset] = block.InCluster(address, 8);
  Mbarrier mbarrier;
  std::memcpy(&mbarrier, owner->shared.data() + offset, 8);
  change(mbarrier);
  mbarrier.Update();
  std::memcpy(owner->shared.data() + offset, &mbarrier, 8);
}
void Arrive(Block& block, uint64_t address, uint32_t expected) {
  AtMbarrier(block, address, [&](Mbarrier& mbarrier) {
    if (mbarrier.pending == 0) throw Failure("more arrivals than the mbarrier counts");
    mbarrier.bytes += expected;
    --mbarrier.pending;
  });
}
void Deliver(Block& block, uint64_t address, uint32_t bytes) {
  AtMbarrier(block, address, [&](Mbarrier& mbarrier) { mbarrier.bytes -= bytes; });
}

void InitMbarrier(Thread& t, const Instruction& i) {
  const auto [owner, offset] = t.block->InCluster(t.Address(i.operands[0]), 8);
  const auto count = uint32_t(t.Read(i.operands[1])) & 0xfffff;
  const Mbarrier mbarrier{.phase = 0, .pending = count, .count = count, .bytes = 0};
  std::memcpy(owner->shared.data() + offset, &mbarrier, 8);
}
// mbarrier.arrive{.expect_tx} _, [a] {, bytes}
void ArriveAt(Thread& t, const Instruction& i) {
  const uint32_t expected = i.Has("expect_tx") ? uint32_t(t.Read(i.operands[2])) : 0;
  Arrive(*t.block, t.Address(i.operands[1]), expected);
}
// cp.async.mbarrier.arrive.noinc [a]: once all that the thread has begun to copy is there, at any time from now on.
void ArriveAfterCopies(Thread& t, const Instruction& i) {
  const auto land = [&t, address = t.Address(i.operands[0])] {
    for (std::vector<Copy>& group : t.groups) t.Complete(std::exchange(group, {}));
    t.Complete(std::exchange(t.copies, {}));
    Arrive(*t.block, address, 0);
  };
  if (t.block->copies_at_once) return land();
  t.block->landing.emplace_back(land);
}
// mbarrier.expect_tx [a], bytes
void ExpectAt(Thread& t, const Instruction& i) {
  const auto expected = uint32_t(t.Read(i.operands[1]));
  AtMbarrier(*t.block, t.Address(i.operands[0]), [&](Mbarrier& mbarrier) { mbarrier.bytes += expected; });
}
// Lands copies by and by, in any order.
void LandSome(Block& block) {
  if (block.landing.empty() || block.random() % 2 == 0) return;
  const size_t chosen = block.random() % block.landing.size();
  const auto land = std::move(block.landing[chosen]);
  block.landing.erase(block.landing.begin() + ptrdiff_t(chosen));
  land();
}
void TryWait(Thread& t, const Instruction& i) {
  for (Block* block : t.block->cluster->blocks) LandSome(*block);
  bool passed = false;
  const auto parity = t.Read(i.operands[2]) & 1;
  AtMbarrier(*t.block, t.Address(i.operands[1]), [&](const Mbarrier& mbarrier) { passed = mbarrier.phase != parity; });
  t.Write(i.operands[0], passed);
  t.yields = !passed;
}

// mapa.shared::cluster d, a, rank
void MapAddress(Thread& t, const Instruction& i) {
  const uint64_t rank = t.Read(i.operands[2]);
  t.Write(i.operands[0], t.Read(i.operands[1]) | (rank + 1) << kClusterShift);
}

// st.async….b32 [a], v, [mbarrier]
void StoreAsync(Thread& t, const Instruction& i) {
  const uint32_t bytes = i.type.Bytes();
  const uint64_t to = t.Address(i.operands[0]), value = t.Read(i.operands[1]), mbarrier = t.Address(i.operands[2]);
  Block* block = t.block;
  const auto land = [=] {
    const auto [owner, offset] = block->InCluster(to, bytes);
    std::memcpy(owner->shared.data() + offset, &value, bytes);
    Deliver(*block, mbarrier, bytes);
  };
  if (block->copies_at_once) return land();
  block->landing.emplace_back(land);
}

const TensorMap& MapOf(const std::byte* address) {
  const auto& map = *reinterpret_cast<const TensorMap*>(address);
  if (map.magic != TensorMap::kMagic) throw Failure("no tensor map");
  return map;
}
// [map, {c0, …}]
BoxStore BoxOf(Thread& t, const Operand& operand) {
  BoxStore box{.map = reinterpret_cast<const std::byte*>(t.Address(operand))};
  const std::vector<Operand>& at = operand.parts.at(0).parts;
  if (at.size() != MapOf(box.map).rank) throw Failure("a tensor map of another rank");
  for (size_t d = 0; d < at.size(); ++d) box.at[d] = int32_t(t.Read(at[d]));
  return box;
}

// cp.async.bulk.tensor.… [to], [map, {…}], [mbarrier] {, blocks}
void LoadTensor(Thread& t, const Instruction& i) {
  const BoxStore box = BoxOf(t, i.operands[1]);
  const TensorMap& map = MapOf(box.map);
  const uint64_t to = t.Address(i.operands[0]), mbarrier = t.Address(i.operands[2]);
  const uint32_t mask = i.operands.size() > 3 ? uint32_t(t.Read(i.operands[3])) & 0xffff : 1u << t.block->rank;
  if (to % 128 != 0) throw Failure("a box that is not aligned");
  Block* block = t.block;
  for (uint32_t rank = 0; mask >> rank != 0; ++rank) {
    if ((mask >> rank & 1) == 0) continue;
    if (rank >= block->cluster->blocks.size()) throw Failure("a block that the cluster does not have");
    Block* other = block->cluster->blocks[rank];
    const auto land = [=, &map] {
      const auto [owner, offset] = other->InCluster(to, map.SharedBytes());
      emulator::LoadBox(map, box.at, owner->shared.data(), offset);
      Deliver(*other, mbarrier, map.BoxBytes());
    };
    if (block->copies_at_once) {
      land();
    } else {
      block->landing.emplace_back(land);
    }
  }
}

// cp{.reduce}.async.bulk.tensor.… [map, {…}], [from]
void StoreTensor(Thread& t, const Instruction& i) {
  BoxStore box = BoxOf(t, i.operands[0]);
  box.from = uint32_t(t.Address(i.operands[1]));
  if (box.from % 128 != 0) throw Failure("a box that is not aligned");
  const TensorOp op = i.Has("add") ? TensorOp::kAdd : i.Has("max") ? TensorOp::kMax : i.Has("min") ? TensorOp::kMin : TensorOp::kStore;
  if (op == TensorOp::kStore && i.words[1] == "reduce") throw Failure("an unknown reduction");
  box.op = uint32_t(op);
  if (t.block->copies_at_once) return StoreBoxes(*t.block, {box});
  t.stores.push_back(box);
}
void CommitStores(Thread& t, const Instruction&) {
  t.store_groups.push_back(std::move(t.stores));
  t.stores.clear();
}
void WaitForStores(Thread& t, const Instruction& i) {
  for (const uint64_t most = t.Read(i.operands[0]); t.store_groups.size() > most; t.store_groups.pop_front()) {
    StoreBoxes(*t.block, t.store_groups.front());
  }
}

Execute DecodeBulk(const Instruction& i) {
  if (i.Has("commit_group")) return CommitStores;
  if (i.Has("wait_group")) return WaitForStores;
  if (!i.Has("tensor")) return nullptr;
  return i.Has("mbarrier::complete_tx::bytes") ? LoadTensor : StoreTensor;
}

}  // namespace

void StoreBoxes(Block& block, const std::vector<BoxStore>& stores) {
  for (const BoxStore& store : stores) {
    const TensorMap& map = MapOf(store.map);
    const auto [owner, offset] = block.InCluster(store.from, map.SharedBytes());
    const std::vector<std::byte> rows = emulator::GatherBox(map, owner->shared.data(), offset);
    emulator::StoreBox(map, store.at, rows.data(), TensorOp(store.op));
  }
}

Execute DecodeAsync(Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "mapa") return MapAddress;
  if (i.words.size() < 3) return nullptr;
  if (name == "st" && i.words[1] == "async") return StoreAsync;
  if (name == "cp" && i.Has("bulk")) return DecodeBulk(i);
  if (name == "cp" && i.words[2] == "mbarrier") {
    if (!i.Has("arrive") || !i.Has("noinc") || i.operands.size() != 1) throw Refusal("an unknown form of arrival");
    return ArriveAfterCopies;
  }
  if (name != "mbarrier") return nullptr;
  if (i.words[1] == "init") return InitMbarrier;
  if (i.words[1] == "arrive") {
    if (!i.operands[0].IsNothing() || i.operands.size() > (i.Has("expect_tx") ? 3 : 2)) throw Refusal("an unknown form of arrival");
    return ArriveAt;
  }
  if (i.words[1] == "expect_tx") return ExpectAt;
  if (i.words[1] == "try_wait" && i.Has("parity")) return TryWait;
  return nullptr;
}

}  // namespace kiln::ptx
