// SPDX-License-Identifier: Apache-2.0
//
// What the code of an emulated thread calls. Plain C: device_emulator.cc declares these functions in LLVM IR, runtime/entry.cc
// defines them. Part of the artifact's meaning: a change here is a change of the format, which the build id records.
//
// `location` is the number of the tile statement (compile.cc numbers them for emulated targets; 0: none). `site` tells the calls
// of a kernel apart: lanes that meet in one warp-wide operation must have come to the same one.
#pragma once

#include <cstdint>

#include "ir/op.h"

namespace kiln::emulator {

// A matrix instruction by what its vendor's manual calls it, packed in 64 bits. Types are the numbers of ir::DType.
enum class MatrixUnit : uint8_t { kMmaSync = 1, kMfma = 2, kWmmaGfx11 = 3, kWmmaGfx12 = 4, kWgmma = 5, kSmfmac = 6 };
// n of wgmma counts in units of 8. sparse: 0, or of a sparse A 1 and the selector.
struct MatrixForm {
  MatrixUnit unit;
  uint8_t m, n, k;
  uint8_t a, b, c;
  uint8_t sparse = 0;

  bool IsSparse() const { return sparse != 0; }
  int Selector() const { return sparse - 1; }
  int KeptK() const { return IsSparse() ? k / 2 : k; }  // columns of A

  uint64_t Pack() const {
    return uint64_t(unit) | uint64_t(m) << 8 | uint64_t(n) << 16 | uint64_t(k) << 24 | uint64_t(a) << 32 | uint64_t(b) << 40 | uint64_t(c) << 48 |
           uint64_t(sparse) << 56;
  }
  static MatrixForm Unpack(uint64_t v) {
    const auto byte = [&](int i) { return uint8_t(v >> 8 * i); };
    return {MatrixUnit(v), byte(1), byte(2), byte(3), byte(4), byte(5), byte(6), byte(7)};
  }
};

// A matrix instruction's operands lie in one array of 32-bit words: a, the metadata of a sparse a, b, and one word for each element of c, which the
// result replaces. Of wgmma: a where it comes in registers, and the metadata.
inline constexpr uint32_t kWordsOfA = 0, kWordOfMetadata = 15, kWordsOfB = 16, kWordsOfC = 32, kMatrixWords = 48;

// What a tensor copy does to global memory, or an atomic to an element: an exchange stores. The numbers are llvm_ir::AtomicOp's.
enum class TensorOp : uint32_t { kAdd, kMax, kMin, kAnd, kOr, kXor, kInc, kDec, kStore, kCompareExchange, kLoad };

// An atomic finds its value in the first word, and what it compares with in this one. What was there before replaces the value.
inline constexpr uint32_t kWordsOfCompared = 2;
struct AtomicCall {
  TensorOp op{};
  ir::MemoryOrder order{};
  bool gives_old = false;

  uint32_t Pack() const { return uint32_t(op) | uint32_t(order) << 8 | uint32_t(gives_old) << 16; }
  static AtomicCall Unpack(uint32_t v) { return {TensorOp(v & 0xff), ir::MemoryOrder(v >> 8 & 0xff), v >> 16 != 0}; }
  bool IsStore() const { return op == TensorOp::kStore && !gives_old; }
  bool Releases() const { return order >= ir::MemoryOrder::kRelease; }
  bool Acquires() const { return order != ir::MemoryOrder::kRelaxed && order != ir::MemoryOrder::kRelease; }
};

}  // namespace kiln::emulator

// KILN_EMU_CALL(name, result, effect, parameters …): i integer of 32 bits, l of 64, p pointer to the thread's own memory or the kernel's
// parameters, g to global, s to shared memory, d to that of any block of the cluster; v nothing. Effects: kPure depends on the thread alone;
// kWarp is an exchange of registers between the lanes of a warp; kMemory is everything else.
#define KILN_EMU_CALLS(KILN_EMU_CALL)                         \
  KILN_EMU_CALL(thread_index, i, kPure)                       \
  KILN_EMU_CALL(block_index, i, kPure, i)                     \
  KILN_EMU_CALL(grid_size, i, kPure, i)                       \
  KILN_EMU_CALL(shared_memory, s, kPure)                      \
  KILN_EMU_CALL(barrier, v, kMemory, i, i, i)                 \
  KILN_EMU_CALL(lanes_barrier, v, kMemory, i, i, i, i)        \
  KILN_EMU_CALL(shuffle_xor, i, kWarp, i, i, i, i)            \
  KILN_EMU_CALL(uniform, i, kWarp, i, i, i)                   \
  KILN_EMU_CALL(vote, i, kWarp, i, i, i, i)                   \
  KILN_EMU_CALL(warp_reduce, i, kWarp, i, i, i, i, i)         \
  KILN_EMU_CALL(copy_async, v, kMemory, s, g, i, i, i)        \
  KILN_EMU_CALL(async_commit, v, kMemory, i)                  \
  KILN_EMU_CALL(async_wait, v, kMemory, i, i)                 \
  KILN_EMU_CALL(load_matrix, v, kMemory, s, i, i, p, i, i)    \
  KILN_EMU_CALL(store_matrix, v, kMemory, s, i, i, p, i, i)   \
  KILN_EMU_CALL(matrix, v, kWarp, l, p, i, i)                 \
  KILN_EMU_CALL(wgmma_begin, v, kMemory, i, i, p, i, i)       \
  KILN_EMU_CALL(wgmma_step, v, kMemory, l, l, l, p, i, i, i)  \
  KILN_EMU_CALL(wgmma_wait, v, kMemory, i, i, p, i, i)        \
  KILN_EMU_CALL(wgmma_touch, v, kMemory, i, i)                \
  KILN_EMU_CALL(wgmma_uses, v, kMemory, i, i, i, i)           \
  KILN_EMU_CALL(wgmma_assign, v, kMemory, i, i, i, i)         \
  KILN_EMU_CALL(fence_async_proxy, v, kMemory, i)             \
  KILN_EMU_CALL(phase_init, v, kMemory, s, i, i)              \
  KILN_EMU_CALL(phase_init_fence, v, kMemory, i)              \
  KILN_EMU_CALL(phase_arrive, v, kMemory, s, i)               \
  KILN_EMU_CALL(phase_arrive_at, v, kMemory, s, i, i)         \
  KILN_EMU_CALL(phase_expect, v, kMemory, s, i, i)            \
  KILN_EMU_CALL(phase_expect_more, v, kMemory, s, i, i)       \
  KILN_EMU_CALL(phase_wait, v, kMemory, s, i, i)              \
  KILN_EMU_CALL(tensor_load, v, kMemory, s, p, p, i, s, i, i) \
  KILN_EMU_CALL(tensor_store, v, kMemory, i, p, p, i, s, i)   \
  KILN_EMU_CALL(tensor_commit, v, kMemory, i)                 \
  KILN_EMU_CALL(tensor_wait, v, kMemory, i, i, i)             \
  KILN_EMU_CALL(named_barrier, v, kMemory, i, i, i, i)        \
  KILN_EMU_CALL(named_arrive, v, kMemory, i, i, i, i)         \
  KILN_EMU_CALL(set_registers, v, kMemory, i, i, i, i, i)     \
  KILN_EMU_CALL(elect, i, kWarp, i, i)                        \
  KILN_EMU_CALL(cluster_rank, i, kPure)                       \
  KILN_EMU_CALL(cluster_barrier, v, kMemory, i)               \
  KILN_EMU_CALL(map_shared, d, kMemory, s, i, i)              \
  KILN_EMU_CALL(store_async_at, v, kMemory, s, i, l, i, s, i) \
  KILN_EMU_CALL(grid_barrier, v, kMemory, i)                  \
  KILN_EMU_CALL(raise_flag, v, kMemory, g, i)                 \
  KILN_EMU_CALL(take_flag, v, kMemory, g, i)                  \
  KILN_EMU_CALL(atomic_global, v, kMemory, i, i, g, p, i)     \
  KILN_EMU_CALL(atomic_shared, v, kMemory, i, i, s, p, i)     \
  KILN_EMU_CALL(give_way, v, kMemory, i)                      \
  KILN_EMU_CALL(meet_global, v, kMemory, g, i, i)             \
  KILN_EMU_CALL(meet_shared, v, kMemory, s, i, i)             \
  KILN_EMU_CALL(access, v, kMemory, p, i, i, i, p, i)         \
  KILN_EMU_CALL(own, v, kMemory, g, i, i)                     \
  KILN_EMU_CALL(allocate, v, kMemory, i)                      \
  KILN_EMU_CALL(claim_begin, i, kMemory, i, i, i)             \
  KILN_EMU_CALL(claim_shared, v, kMemory, s, i)               \
  KILN_EMU_CALL(claim_global, v, kMemory, g, i)               \
  KILN_EMU_CALL(claim_end, v, kMemory, i)                     \
  KILN_EMU_CALL(time_over, v, kMemory, i)                     \
  KILN_EMU_CALL(index_outside, v, kMemory, i, p, i, i, i, i)  \
  KILN_EMU_CALL(unwritten, v, kMemory, i, p, i, i, i)
