// SPDX-License-Identifier: Apache-2.0
//
// One block: where its threads meet. Where lanes meet, the last to come does the work for all.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/emulator/runtime/check/claims.h"
#include "compiler/emulator/runtime/check/shadow.h"
#include "compiler/emulator/runtime/clock.h"
#include "compiler/emulator/runtime/fiber.h"
#include "compiler/emulator/runtime/grid.h"
#include "compiler/emulator/runtime/matrix/matrix.h"
#include "compiler/emulator/runtime/matrix/wgmma.h"
#include "compiler/emulator/runtime/mbarrier.h"
#include "compiler/emulator/runtime/tensor_store.h"

namespace kiln::emulator {

class Block;
class Gang;

enum class Meeting : uint8_t {
  kNone,
  kBarrier,
  kShuffle,
  kUniform,
  kLoadMatrix,
  kStoreMatrix,
  kMatrix,
  kWgmma,
  kWgmmaWait,
  kElect,
  kNamedBarrier,
  kNamedArrive,
  kSetRegisters,
  kRegisters,
  kPhase,
  kClusterBarrier,
  kGridBarrier,
  kFlag,
  kVote,
  kReduce,
  kLanesBarrier,
};
std::string_view Name(Meeting meeting);

// A copy that a thread started and has not waited for.
struct AsyncCopy {
  std::byte* to;
  const std::byte* from;
  uint32_t bytes, copied;  // the rest of `bytes` becomes zero
  uint32_t location;
};

struct Warp;

// What a finding is about: who does it in which statement, and the statement that it clashes with.
struct About {
  uint32_t thread = 0, location = 0, other_location = 0;
};

struct Thread {
  Block* block = nullptr;
  uint32_t index = 0;
  uint32_t agent = 0;  // its number in the gang
  Warp* warp = nullptr;
  void* stack = nullptr;
  bool done = false;
  bool parked = false, woken = false;
  Meeting waits_for = Meeting::kNone;
  uint32_t site = 0, location = 0;
  uint64_t detail = 0;  // of what it waits for: a barrier's number; an mbarrier's byte and parity
  void* operands = nullptr;
  View view;
  std::vector<AsyncCopy> open;                 // not yet in a group
  std::vector<std::vector<AsyncCopy>> groups;  // oldest first
  std::vector<Accumulator> accumulators;       // of products not waited for
  std::vector<RegistersInUse> in_use;          // by such products
  StoreGroups stores;
};

// Threads that act together: a warp, or the four of wgmma.
struct Warp {
  uint32_t first = 0, count = 0;  // threads
  uint32_t arrived = 0;
  Meeting meeting = Meeting::kNone;
  uint32_t site = 0;
  const Thread* came_first = nullptr;  // of those who arrived
  WgmmaGroups products;                // of a group
  uint32_t registers = 0;              // of each thread of a group: what setmaxnreg left it
};

// Of a part of the block.
struct NamedBarrierState {
  uint32_t expected = 0, arrived = 0;
  uint32_t site = 0;  // of lanes
  About came_first;   // of those who arrived
  SyncPoint sync;
  std::vector<Thread*> waiting;
};

class Block {
 public:
  Block(Gang& gang, uint32_t rank, std::byte* shared, SharedShadow* shadow);

  // --- for the running thread ---
  static Block& Current();
  Thread& thread();
  Gang& gang() { return gang_; }
  const Grid& grid() const { return grid_; }
  uint32_t rank() const { return rank_; }  // in its gang
  uint32_t cluster_rank() const { return rank_ % grid_.cluster_blocks(); }
  Block& Peer(uint32_t cluster_rank);  // of its cluster
  const std::array<uint32_t, 3>& index() const { return index_; }
  std::byte* shared() { return shared_; }
  SharedShadow* shadow() { return shadow_; }
  Claims& claims() { return claims_; }
  MatrixUnits& matrix() { return matrix_; }
  Mbarriers& mbarriers() { return mbarriers_; }
  bool ended() const { return ended_ == grid_.threads; }
  bool lands_late() const { return grid_.seed % 2 == 0; }
  // The shadow's view of a thread, the running one or another. `order` must outlive the result.
  Who WhoOf(uint32_t thread, uint32_t location, Order& order, bool global = false);

  // `shared_only`: without clocks, accesses of global memory before it are not ordered before those behind it.
  void Barrier(bool shared_only, uint32_t site, uint32_t location);
  void NamedBarrier(uint32_t id, uint32_t threads, bool wait, uint32_t site, uint32_t location);
  // A barrier of lanes first … first + count − 1 of the running thread's warp.
  void LanesBarrier(uint32_t first, uint32_t count, uint32_t site, uint32_t location);
  // `at_start`: of each thread when the kernel starts.
  void SetRegisters(uint32_t count, bool more, uint32_t at_start, uint32_t site, uint32_t location);
  // All lanes of the warp with their operands; the last to come runs perform(threads of the warp).
  template <typename Perform>
  void MeetWarp(Meeting meeting, uint32_t site, uint32_t location, void* operands, Perform&& perform) {
    Meet(*thread().warp, meeting, site, location, operands, perform);
  }
  // The same for the 128 threads of wgmma.
  template <typename Perform>
  void MeetGroup(Meeting meeting, uint32_t site, uint32_t location, void* operands, Perform&& perform) {
    Meet(group(), meeting, site, location, operands, perform);
  }
  Warp& group() { return groups_[thread().index / kGroupThreads]; }
  Thread& ThreadAt(uint32_t index) { return threads_[index]; }
  template <typename Perform>
  void Meet(Warp& warp, Meeting meeting, uint32_t site, uint32_t location, void* operands, Perform&& perform) {
    if (!Arrive(warp, meeting, site, location, operands)) return;
    perform(std::span<Thread>(threads_.data() + warp.first, warp.count));
    Leave(warp);
  }

  void Report(FindingKind kind, const About& about, std::string message, Place place = {});
  // The same in two steps: is it news? Then it must be added.
  bool Wants(FindingKind kind, const About& about);
  void Add(FindingKind kind, const About& about, std::string message, Place place);
  // And the gang ends here.
  [[noreturn]] void Fault(FindingKind kind, const About& about, std::string message, Place place = {});
  // The same about the running thread.
  [[noreturn]] void Fault(FindingKind kind, uint32_t location, std::string message, Place place = {});
  std::string IndexName() const;                  // "(1, 0, 0)"
  std::string ThreadName(uint32_t thread) const;  // "thread 5 of block (1, 0, 0)"

  // --- for the gang ---
  void Prepare(uint64_t gang);
  void CountEnd();
  uint32_t count_ended() const { return ended_; }
  std::span<Thread> threads() { return threads_; }
  // "threads 0-31 wait for a barrier (statement 7); 32-63 ended"
  std::string Positions();
  // What a thread waits for, where it lies in shared memory.
  Place PlaceAwaited(const Thread& thread) const;
  // The statement that did something to it last; 0: none.
  uint32_t LastUseOfAwaited(const Thread& thread) const;

 private:
  bool Arrive(Warp& warp, Meeting meeting, uint32_t site, uint32_t location, void* operands);
  void Leave(Warp& warp);
  void Open(NamedBarrierState& named);
  void ArriveNamed(uint32_t id, uint32_t threads, std::span<Thread> warp, bool wait, uint32_t location);
  void GrantRegisters();
  std::string DetailOf(const Thread& thread);
  std::string StateOf(const Thread& thread);

  Gang& gang_;
  const Grid& grid_;
  const uint32_t rank_;
  std::byte* shared_;
  SharedShadow* shadow_;
  MatrixUnits matrix_;
  Mbarriers mbarriers_;
  Claims claims_;
  std::array<uint32_t, 3> index_{};
  uint32_t epoch_ = 1;         // barriers passed, from 1
  uint32_t global_epoch_ = 1;  // the same of those that order global memory
  std::vector<Thread> threads_;
  std::vector<Warp> warps_, groups_;
  uint32_t at_barrier_ = 0;
  uint32_t barrier_site_ = 0;
  const Thread* first_at_barrier_ = nullptr;
  SyncPoint barrier_;
  std::array<NamedBarrierState, 16> named_;
  std::map<std::pair<uint32_t, uint32_t>, NamedBarrierState> lanes_;  // by their first thread and their number
  uint32_t free_registers_ = 0;                                       // of each thread of one more group
  std::vector<std::pair<Warp*, uint32_t>> wants_registers_;
  uint32_t ended_ = 0;
};

}  // namespace kiln::emulator
