// SPDX-License-Identifier: Apache-2.0
//
// Boxes of tensors, as tensor maps describe them, to and from shared memory: PTX ISA, "Tensors" (bounding box, traversal strides,
// out-of-boundary access, swizzle modes) and cp.async.bulk.tensor. Rows of the box lie one behind another; a swizzle then exchanges
// 16-byte pieces: bits 4… of an address are changed by bits 7…. What the text leaves open is as an H200 does it (conformance): rows
// narrower than the swizzle's span lie that span apart, f32.ftz loads keep subnormals, a box whose first byte is no multiple of 16
// from its row's start is an illegal instruction, and stores write whole pieces of 16 bytes, also behind a row that ends inside one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "compiler/emulator/abi.h"
#include "compiler/emulator/tensor_map.h"

namespace kiln::emulator {

class Block;
struct Thread;

using Coordinates = std::array<int32_t, kMaxTensorRank>;

// The innermost dimension of a box at one place of the others.
struct BoxRow {
  uint64_t address = 0;         // of its first element, in the tensor or not
  uint32_t first = 0, end = 0;  // elements that lie in the tensor
  uint32_t linear = 0;          // bytes of the box before it
};
void ForEachRow(const TensorMap& map, const Coordinates& at, const std::function<void(const BoxRow&)>& visit);

// Byte of shared memory of byte `linear` of a box at `start`.
uint32_t PlaceInBox(const TensorMap& map, uint32_t start, uint32_t linear);

// Copies; `shared` is the block's memory.
void LoadBox(const TensorMap& map, const Coordinates& at, std::byte* shared, uint32_t start);
std::vector<std::byte> GatherBox(const TensorMap& map, const std::byte* shared, uint32_t start);  // rows one behind another
void StoreBox(const TensorMap& map, const Coordinates& at, const std::byte* rows, TensorOp op);
// Is the result another where several such stores come in another order?
bool DependsOnOrder(TensorOp op, TensorType type);
// Empty, or why the hardware has no such reduction.
const char* CheckOp(TensorOp op, TensorType type);

// A load under way.
struct TensorTransfer {
  const TensorMap* map = nullptr;
  Coordinates at{};
  uint32_t offset = 0;                          // of the destination, in each block
  uint32_t mbarrier = 0;                        // its byte, in each block
  std::vector<std::pair<Block*, uint32_t>> to;  // and its number among the mbarrier's copies
  const Thread* starter = nullptr;
  uint32_t location = 0;

  void Land() const;
};

// By the running thread. `mask`: the cluster's blocks that get it; 0: this one.
void StartLoad(Block& block, const TensorMap* map, const Coordinates& at, uint32_t rank, std::byte* shared, std::byte* mbarrier, uint32_t mask,
               uint32_t location);
// The block ends where the map, its rank, the coordinates or the place in shared memory break the rules.
uint32_t CheckBox(Block& block, const TensorMap* map, const Coordinates& at, uint32_t rank, const std::byte* shared, uint32_t location);

}  // namespace kiln::emulator
