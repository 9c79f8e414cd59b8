// SPDX-License-Identifier: Apache-2.0
//
// Targets are rows of tables: an architecture with its limits and features (targets.def). No LLVM and no branches on names.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>

#include "compiler/target/costs.h"

namespace kiln::target {

enum class Family : uint8_t { kNvptx, kAmdgpu };

// What an architecture has. One bit each.
enum class Feature : uint32_t {
  kNone = 0,
  kCpAsync = 1 << 0,  // cp.async global → shared
  kLdMatrix = 1 << 1,
  kStMatrix = 1 << 2,
  kMmaSync = 1 << 3,  // mma.sync m16n8
  kBf16 = 1 << 4,     // native bf16 arithmetic and conversion
  kFp8Convert = 1 << 5,
  kFp8Mma = 1 << 6,
  kTma = 1 << 7,
  kWgmma = 1 << 8,
  kCluster = 1 << 9,
  kDp4a = 1 << 10,
  kMfma = 1 << 11,            // CDNA
  kMfmaWide = 1 << 12,        // CDNA3: K doubled for 8-bit types, fp8
  kWmmaReplicated = 1 << 13,  // RDNA3 WMMA: lanes 16–31 repeat A and B of lanes 0–15
  kWmma = 1 << 14,            // RDNA4 WMMA: no repetition
  kUnifiedVgpr = 1 << 15,
  kRedux = 1 << 16,
  kMmaSyncWide = 1 << 17,     // sm_80: m16n8k16, bf16, tf32, 8-bit m16n8k32
  kFp8MmaSync = 1 << 18,      // fp8 mma.sync in hardware; with kFp8Mma alone it is emulated (sm_90: unpacked to f16)
  kXf32 = 1 << 19,            // MFMA on tf32, CDNA3 only
  kMfmaDouble = 1 << 20,      // CDNA4: K doubled again
  kFp8Fnuz = 1 << 21,         // the hardware's fp8 are the FNUZ kind, not OCP's
  kFencesByMemory = 1 << 22,  // a barrier that orders shared memory alone does not wait for accesses of global memory
  kWordRegisters = 1 << 23,   // registers have 32 bits only; narrower values that blocks of code hand on are repacked
  kOrderedSparse = 1 << 24,   // mma.sp::ordered_metadata; mma.sp, which takes indices in any order, is emulated
};
constexpr Feature operator|(Feature a, Feature b) { return Feature(uint32_t(a) | uint32_t(b)); }

struct Target {
  std::string_view name;  // "cuda:sm_90a"
  Family family;
  std::string_view arch;           // "sm_90a", as LLVM's -mcpu
  std::string_view llvm_features;  // "+ptx83"
  uint32_t warp_size;
  uint32_t max_threads;       // in a block
  uint32_t max_shared_bytes;  // for a block, dynamic
  uint32_t registers_per_thread;
  uint32_t multiprocessors;               // of the usual board; a cost-model hint
  uint32_t registers_per_multiprocessor;  // of 32 bits, which the threads of its blocks share
  const Costs& costs;                     // what takes how long, for the cost models of passes
  Feature features;
  bool emulated = false;  // "emu:sm_90a": the same in all but the last step, which makes code for compiler/emulator

  // Of a thread's own memory, which its arrays and spilled registers share. CUDA C++ Programming Guide, technical specifications; LLVM's
  // AMDGPU backend, SIRegisterInfo and GCNSubtarget: what the scratch addresses of a wave reach.
  uint32_t MaxLocalBytes() const { return family == Family::kNvptx ? 512 << 10 : 131056; }

  // Blocks of a cluster that every board with clusters runs. CUDA C++ Programming Guide, thread block clusters: the portable size.
  uint32_t MaxClusterBlocks() const { return Has(Feature::kCluster) ? 8 : 1; }

  bool Has(Feature f) const { return (uint32_t(features) & uint32_t(f)) == uint32_t(f); }
};

// All rows, in the table's order.
std::span<const Target> All();
// The same, each to be run by the emulator.
std::span<const Target> Emulated();

// Accepts "cuda:sm_90a", "hip:gfx942", either as "emu:sm_90a", and TileLang's spellings "cuda -arch=sm_90a" and "hip -mcpu=gfx942". The
// error names the targets there are and the nearest one.
std::expected<const Target*, std::string> Find(std::string_view name);

}  // namespace kiln::target
