// SPDX-License-Identifier: Apache-2.0
//
// Bulk groups of one thread: its tensor stores and reductions (PTX ISA, "cp.async.bulk.commit_group"). Groups complete in order.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "compiler/emulator/abi.h"
#include "compiler/emulator/tensor_map.h"

namespace kiln::emulator {

class Block;
struct Thread;

struct TensorStore {
  TensorOp op{};
  const TensorMap* map = nullptr;
  std::array<int32_t, kMaxTensorRank> at{};
  uint32_t offset = 0;  // of the source in shared memory
  uint32_t number = 0;  // of the thread's stores, from 1
  uint32_t location = 0;
  std::vector<std::byte> read;  // what was there when it was read
};

struct StoreGroups {
  std::vector<TensorStore> open;                // not yet in a group
  std::deque<std::vector<TensorStore>> groups;  // not yet written, oldest first
  size_t read = 0;                              // of these, how many have been read
  uint32_t started = 0;
  uint32_t reads = 0, writes = 0;  // agents; 0: none yet
};

// By the running thread.
void StartStore(Block& block, TensorStore store);
void CommitStores(Block& block);
void WaitStores(Block& block, uint32_t pending, bool read_only);
// Its end: what was not waited for is reported, and done.
void EndStores(Block& block);

}  // namespace kiln::emulator
