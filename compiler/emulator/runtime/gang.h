// SPDX-License-Identifier: Apache-2.0
//
// Blocks that run together on one thread of the host: those of a cluster (most often a single one), or of a whole grid where they wait
// for each other. Their threads are fibers that run until they must meet others or wait, in an order drawn from the seed. What acts
// behind their backs (tensor copies) takes effect at once under odd seeds; under even ones when no thread can go on without it, in
// random order. Nothing that a gang does depends on what else the host does meanwhile.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "compiler/emulator/abi.h"
#include "compiler/emulator/runtime/block.h"
#include "compiler/emulator/runtime/tensor_copy.h"

namespace kiln::emulator {

// Memory of one block.
struct BlockMemory {
  std::byte* shared;
  SharedShadow* shadow;  // null: not checked
};

// What a number of runtime/clock.h's beyond the threads' stands for.
struct AsyncAgent {
  enum class Kind : uint8_t { kTransfers, kStoreReads, kStoreWrites, kProducts } kind{};
  uint32_t block = 0;   // rank in the gang
  uint32_t detail = 0;  // byte of the mbarrier; thread; first thread
};

class Gang {
 public:
  Gang(const Grid& grid, Stacks& stacks, std::span<const BlockMemory> memory);
  ~Gang();
  Gang(const Gang&) = delete;
  Gang& operator=(const Gang&) = delete;

  // False: it was given up, and the recorder says why.
  bool Run(const Turns::Turn& turn);

  static Gang& Current();
  const Grid& grid() const { return grid_; }
  uint64_t number() const { return turn_.gang; }
  uint64_t turn() const { return turn_.number; }
  // Returns when the gangs of earlier turns have ended.
  void AwaitTurn();
  Thread& running() { return *running_; }
  bool IsRunning(const Thread& thread) const { return running_ == &thread; }
  uint32_t size() const { return uint32_t(blocks_.size()); }
  Block& block(uint32_t rank) { return *blocks_[rank]; }
  uint32_t thread_count() const { return grid_.threads * size(); }
  bool lands_late() const { return grid_.seed % 2 == 0; }
  bool has_clocks() const { return grid_.clocks; }
  Joiner& joiner() { return joiner_; }

  // --- the running thread ---
  void Suspend();  // until it is made ready
  void Ready(Thread& thread) { ready_.push_back(&thread); }
  // The running thread waits until Wake; a wake before that is not lost.
  void Park();
  void Wake(Thread& thread);
  // kClusterBarrier: of all threads of the cluster that have not ended; kGridBarrier: of the whole grid.
  void Barrier(Meeting kind, uint32_t location);
  // Words of global memory by which blocks of a grid that runs together hand on what they wrote.
  void RaiseFlag(uint32_t* flag, uint32_t location);
  void TakeFlag(uint32_t* flag, uint32_t location);  // waits until it is up, and lowers it
  // Others may run before the running thread goes on.
  void GiveWay(uint32_t location);
  // The same, before an atomic that gives its old value or orders more than itself.
  void Meet(const std::byte* data, const AtomicCall& call, uint32_t location);
  const std::set<uint64_t>& ahead() const { return ahead_; }
  void End();  // the running thread is at its end
  [[noreturn]] void GiveUp();
  [[noreturn]] void Abandon();  // the same, and nothing is told
  [[noreturn]] void EndByTime(uint32_t location);

  uint32_t NewAgent(AsyncAgent agent);
  std::string NameOf(uint64_t gang, uint32_t agent) const;  // "thread 5", "a tensor load (mbarrier at byte 64)"
  bool IsAsync(uint32_t agent) const { return agent >= thread_count(); }
  const AsyncAgent& AgentOf(uint32_t agent) const { return agents_[agent - thread_count()]; }

  // Takes effect at once or late.
  void Launch(std::unique_ptr<TensorTransfer> transfer);
  uint32_t Random(uint32_t below);

 private:
  static void Enter(void* thread);
  Thread* Next();
  void Prepare();
  void LandOne();
  struct BarrierState {
    Meeting kind{};
    uint32_t first = 0, count = 0;  // blocks
    uint32_t arrived = 0;
    SyncPoint sync;
  };
  struct FlagState {
    uint64_t gang = 0;    // of the block that raised it
    uint32_t raiser = 0;  // that block
    SyncPoint sync;
    std::vector<Thread*> waiting;
  };
  // What those who acquire an element learn.
  struct Released {
    std::set<uint64_t> gangs;  // from 1
    SyncPoint sync;
  };
  void Complete(BarrierState& barrier);
  BarrierState& ClusterBarrierOf(const Thread& thread) { return cluster_barriers_[thread.block->rank() / grid_.cluster_blocks()]; }
  void ReportStuck();
  void ReportTime(const Thread& at);
  std::string Positions();
  void ReportLost();

  const Grid& grid_;
  Stacks& stacks_;
  std::vector<std::unique_ptr<Block>> blocks_;
  Turns::Turn turn_;
  bool is_its_turn_ = false;
  uint64_t random_ = 0;
  std::vector<Thread*> ready_;
  Thread* running_ = nullptr;
  void* scheduler_ = nullptr;  // its stack pointer while a thread runs
  bool given_up_ = false;
  uint32_t ended_ = 0;
  std::vector<BarrierState> cluster_barriers_;
  BarrierState grid_barrier_;
  std::map<uint32_t*, FlagState> flags_;           // asked for by address only
  std::map<const std::byte*, Released> released_;  // asked for by address only
  std::set<uint64_t> ahead_;                       // where blocks follow each other: gangs, from 1, whose flags it took, or what they released
  std::vector<AsyncAgent> agents_;
  std::vector<std::unique_ptr<TensorTransfer>> in_flight_;
  Joiner joiner_;
};

}  // namespace kiln::emulator
