// SPDX-License-Identifier: Apache-2.0
//
// wgmma.mma_async: matrix products by four warps, whose operands in shared memory are given by descriptors. Written from the PTX ISA
// ("Asynchronous warpgroup level matrix instructions") and nothing else.
//
// Registers in flight: while products of a group have not been waited for, the thread's accumulators hold marks instead of values.
// Whoever gives all marks of an accumulator to another product or to a wait names it by them; a thread that changes one is caught
// there, and one that computes with them where instrument.cc has put a question.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "compiler/emulator/runtime/clock.h"

namespace kiln::emulator {

class Block;

inline constexpr uint32_t kGroupThreads = 128;
// Flags of kiln_emu_wgmma_step: operands whose rows, not k, are contiguous; a comes in registers.
inline constexpr uint32_t kARows = 1, kBRows = 2, kAInRegisters = 4;

struct Accumulator {
  uint32_t id = 0;
  std::vector<uint32_t> words;
  uint32_t group = 0;                // the last that adds to it
  uint32_t location = 0;             // of that
  std::optional<uint32_t> fragment;  // where it lies, as far as is known
  uint32_t first_register = 0;
};

// Registers of a fragment that products read or write until they are waited for.
struct RegistersInUse {
  uint32_t fragment = 0, first = 0, count = 0;
  uint32_t location = 0;
  uint32_t group = 0;
};

struct WgmmaStep {
  uint64_t form = 0;
  uint64_t a = 0, b = 0;  // descriptors
  uint32_t flags = 0;
  uint32_t location = 0;
  std::vector<uint32_t> a_words;   // in registers: four of each thread
  std::vector<uint32_t> metadata;  // of a sparse a: a word of each thread
};

// From one commit to the next.
struct WgmmaGroup {
  uint32_t number = 0;
  uint32_t accumulator = 0;  // its id in each thread
  bool clear = false;        // what the accumulators held does not count
  std::vector<WgmmaStep> steps;
};

struct WgmmaGroups {
  std::deque<WgmmaGroup> started;  // not waited for, oldest first
  uint32_t agent = 0;              // 0: none yet
  uint32_t number = 0;             // of the last
};

// By the 128 threads. `c`: each thread's accumulator, replaced by marks.
void BeginProducts(Block& block, uint32_t count, uint32_t* c, bool clear, uint32_t site, uint32_t location);
void StepProducts(Block& block, WgmmaStep step, const uint32_t* words, uint32_t site);
// Until at most `pending` groups are under way; marks in `words` become the results they stand for.
void WaitProducts(Block& block, uint32_t pending, uint32_t count, uint32_t* words, uint32_t site, uint32_t location);
// The running thread computes with this word: is it a mark?
void TouchProducts(Block& block, uint32_t word, uint32_t location);
// The group that the running thread began last uses these, the group aside, its accumulator first; and one of a fragment's gets a
// value.
void UseRegisters(Block& block, RegistersInUse use);
void AssignRegister(Block& block, uint32_t fragment, uint32_t reg, uint32_t value, uint32_t location);
// It is at its end.
void EndProducts(Block& block);

// The operands' bytes are read when the step starts: whatever clashes with that is reported.
void CheckWgmma(Block& block, uint32_t first, const WgmmaStep& step);
// Reads the operands as they are now and adds to this accumulator of the group of threads that starts with `first`.
void RunWgmma(Block& block, uint32_t first, uint32_t accumulator, std::span<const WgmmaStep> steps);

}  // namespace kiln::emulator
