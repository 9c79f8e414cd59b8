// SPDX-License-Identifier: Apache-2.0
//
// One block at a time on one thread of the host: its threads are fibers that run until they must meet others, in an order drawn
// from the seed. Where lanes meet, the last to come does the work for all.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compiler/emulator/runtime/fiber.h"
#include "compiler/emulator/runtime/grid.h"
#include "compiler/emulator/runtime/matrix.h"
#include "compiler/emulator/runtime/wgmma.h"

namespace kiln::emulator {

class SharedShadow;

enum class Meeting : uint8_t { kNone, kBarrier, kShuffle, kUniform, kLoadMatrix, kStoreMatrix, kMatrix, kWgmma, kWgmmaWait };
std::string_view Name(Meeting meeting);

// A copy that a thread started and has not waited for.
struct AsyncCopy {
  std::byte* to;
  const std::byte* from;
  uint32_t bytes, copied;  // the rest of `bytes` becomes zero
  uint32_t location;
};

struct Warp;

struct Thread {
  uint32_t index = 0;
  Warp* warp = nullptr;
  void* stack = nullptr;
  bool done = false;
  Meeting waits_for = Meeting::kNone;
  uint32_t site = 0, location = 0;
  void* operands = nullptr;
  std::vector<AsyncCopy> open;                 // not yet in a group
  std::vector<std::vector<AsyncCopy>> groups;  // oldest first
  std::vector<std::vector<uint32_t>> accumulators;  // of products not waited for
};

// Threads that act together: a warp, or the four of wgmma.
struct Warp {
  uint32_t first = 0, count = 0;  // threads
  uint32_t arrived = 0;
  Meeting meeting = Meeting::kNone;
  uint32_t site = 0;
  std::vector<WgmmaStep> started;  // of a group: products that have not landed
};

class Block {
 public:
  Block(const Grid& grid, Stacks& stacks, std::byte* shared, SharedShadow* shadow);

  // Runs block number `linear`. False: it was given up, and the recorder says why.
  bool Run(uint64_t linear);

  // --- for the running thread ---
  static Block& Current();
  Thread& thread() { return *running_; }
  const Grid& grid() const { return grid_; }
  const std::array<uint32_t, 3>& index() const { return index_; }
  std::byte* shared() { return shared_; }
  SharedShadow* shadow() { return shadow_; }
  MatrixUnits& matrix() { return matrix_; }
  uint64_t linear() const { return linear_; }
  uint32_t epoch() const { return epoch_; }  // barriers passed, from 1

  void Barrier(uint32_t site, uint32_t location);
  // All lanes of the warp with their operands; the last to come runs perform(threads of the warp).
  template <typename Perform>
  void MeetWarp(Meeting meeting, uint32_t site, uint32_t location, void* operands, Perform&& perform) {
    Meet(*running_->warp, meeting, site, location, operands, perform);
  }
  // The same for the 128 threads of wgmma.
  template <typename Perform>
  void MeetGroup(Meeting meeting, uint32_t site, uint32_t location, void* operands, Perform&& perform) {
    Meet(groups_[running_->index / kGroupThreads], meeting, site, location, operands, perform);
  }
  Warp& group() { return groups_[running_->index / kGroupThreads]; }
  Thread& ThreadAt(uint32_t index) { return threads_[index]; }
  template <typename Perform>
  void Meet(Warp& warp, Meeting meeting, uint32_t site, uint32_t location, void* operands, Perform&& perform) {
    if (!Arrive(warp, meeting, site, location, operands)) return;
    perform(std::span<Thread>(threads_.data() + warp.first, warp.count));
    Leave(warp);
  }
  bool lands_late() const { return grid_.seed % 2 == 0; }

  void Report(FindingKind kind, uint32_t thread, uint32_t location, uint32_t other_location, std::string message);
  // The same about the running thread, and the block ends here.
  [[noreturn]] void Fault(FindingKind kind, uint32_t location, std::string message);

 private:
  static void Enter(void* thread);
  bool Arrive(Warp& warp, Meeting meeting, uint32_t site, uint32_t location, void* operands);
  void Leave(Warp& warp);
  Thread* Next();
  void Suspend();
  void Prepare();
  void Schedule();
  void ReportStuck();
  std::string Positions() const;
  uint32_t Random(uint32_t below);

  const Grid& grid_;
  Stacks& stacks_;
  std::byte* shared_;
  SharedShadow* shadow_;
  MatrixUnits matrix_;
  std::array<uint32_t, 3> index_{};
  uint64_t linear_ = 0;
  uint32_t epoch_ = 1;
  uint64_t random_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_, groups_;
  std::vector<uint32_t> ready_;
  uint32_t at_barrier_ = 0;
  uint32_t barrier_site_ = 0;
  Thread* running_ = nullptr;
  void* scheduler_ = nullptr;  // its stack pointer while a thread runs
  bool given_up_ = false;
};

}  // namespace kiln::emulator
