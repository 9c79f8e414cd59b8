// SPDX-License-Identifier: Apache-2.0
//
// Blocks of threads that execute PTX, one thread of the host for all of them. A thread runs until it must wait for others; a seed chooses which runs
// next, so that what no barrier orders comes in many orders. Registers, shared and local memory begin with values that the seed chooses.
#pragma once

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <utility>

#include "tests/ptx/text.h"

namespace kiln::ptx {

struct Block;

struct Failure : std::runtime_error {
  using runtime_error::runtime_error;
};

struct Frame {
  const Function* function = nullptr;
  std::vector<uint64_t> regs;
  std::vector<std::byte> params;
  uint32_t at = 0;           // of its next instruction
  uint32_t local_begin = 0;  // its part of the thread's local memory
};

// A copy to shared memory under way.
struct Copy {
  uint64_t from = 0, to = 0;
  uint32_t bytes = 0, read = 0;  // the rest becomes zeros
};

// A box of shared memory on its way to a tensor.
struct BoxStore {
  const std::byte* map = nullptr;
  std::array<int32_t, 5> at{};
  uint32_t from = 0;
  uint32_t op = 0;  // emulator::TensorOp
};

enum class State : uint8_t { kReady, kAtBarrier, kAtCluster, kInWarp, kDone };

struct Thread {
  Block* block = nullptr;
  uint32_t index = 0;
  State state = State::kReady;
  uint64_t* regs = nullptr;
  std::deque<Frame> frames;
  std::vector<std::byte> local;
  std::vector<Copy> copies;              // that belong to no group yet
  std::deque<std::vector<Copy>> groups;  // oldest first
  std::vector<BoxStore> stores;
  std::deque<std::vector<BoxStore>> store_groups;
  bool yields = false;                    // others have their turn now
  bool carry = false;                     // CC.CF
  const Instruction* waits_in = nullptr;  // kInWarp, kAtBarrier
  uint32_t waits_for = 0;                 // kInWarp: the lanes; kAtBarrier: the barrier

  uint32_t Lane() const { return index % 32; }
  Frame& frame() { return frames.back(); }

  uint64_t Read(const Operand& operand) {
    if (operand.kind == Operand::Kind::kRegister) return operand.negated ? regs[operand.reg] ^ 1 : regs[operand.reg];
    if (operand.kind == Operand::Kind::kSpecial) return Special(operand);
    return Constant(operand);
  }
  // The low bits of `value`, as many as the register has.
  void Write(const Operand& operand, uint64_t value) {
    if (operand.kind != Operand::Kind::kRegister) return;
    regs[operand.reg] = operand.bits == 64 ? value : value & ((uint64_t{1} << operand.bits) - 1);
  }
  uint64_t Address(const Operand& operand) { return (operand.reg == Operand::kNoRegister ? 0 : regs[operand.reg]) + Constant(operand); }
  // Where an access of the instruction goes, on the host. Throws Failure where it may not.
  std::byte* Place(Space space, uint64_t address, uint32_t bytes, uint32_t align = 0);  // align 0: as many
  // The same of a load. A vector that has a byte of a tensor may be read, for memory is protected by pages; what else is in it is nobody's.
  const std::byte* PlaceToRead(Space space, uint64_t address, uint32_t bytes);

  void Complete(const std::vector<Copy>& group);

 private:
  uint64_t Constant(const Operand& operand);
  uint64_t Special(const Operand& operand);
  bool IsInTensor(uint64_t address, uint32_t bytes) const;

  std::array<std::byte, 16> around_{};
};

struct Range {
  uint64_t begin = 0, end = 0;
  std::string name;
};

struct Launch {
  const Module* module = nullptr;
  const Function* entry = nullptr;
  std::array<uint32_t, 3> grid{1, 1, 1};
  uint32_t threads = 0, shared_bytes = 0;
  std::vector<std::byte> params;
  std::vector<Range> memory;  // by address
  uint64_t seed = 0;
};

// Of one instruction, by 128 threads: what wgmma reads later.
struct Product {
  const Instruction* instruction = nullptr;
  bool adds = false;
  uint64_t a = 0, b = 0;           // descriptors
  std::vector<uint32_t> a_words;   // in place of a's: of each thread
  std::vector<uint32_t> metadata;  // of a sparse a: of each thread
};

// The four warps of a group.
struct Products {
  std::vector<Product> open;
  std::deque<std::vector<Product>> groups;
};

// Blocks that reach each other's shared memory. An address there names the block by its number, plus 1, above these bits.
inline constexpr uint32_t kClusterShift = 24;
struct Cluster {
  std::vector<Block*> blocks;
  uint32_t arrived = 0;
};

struct NamedBarrier {
  uint32_t arrived = 0, expected = 0;  // threads; expected 0: all of the block
};

struct Block {
  Block(const Launch& launch, std::array<uint32_t, 3> index, uint64_t seed);

  bool Done() const { return done_ == threads.size(); }
  // Until all threads are done or wait for other blocks, or for about so many instructions; how many there were.
  uint64_t Run(uint64_t instructions);
  // The thread waits until `lanes` of its warp are at this instruction; the last of them finishes it for all, by `finish`.
  void Meet(Thread& thread, const Instruction& instruction, uint32_t lanes, void (*finish)(std::span<Thread*> lanes, const Instruction&));
  // The same for four warps, all of whose threads meet.
  void MeetGroup(Thread& thread, const Instruction& instruction, void (*finish)(std::span<Thread*> threads, const Instruction&));
  // All threads of the cluster.
  void WaitForCluster(Thread& thread, const Instruction& instruction);
  // The block and the byte of its shared memory that an address of the cluster names.
  std::pair<Block*, uint32_t> InCluster(uint64_t address, uint32_t bytes);
  // The thread comes to the barrier, to wait there or not; `expected` threads open it.
  void Arrive(Thread& thread, const Instruction& instruction, uint32_t barrier, uint32_t expected, bool waits);
  void End(Thread& thread);
  uint32_t ExistingLanes(uint32_t warp) const;

  const Launch& launch;
  std::array<uint32_t, 3> index;
  std::vector<std::byte> shared;
  std::vector<Thread> threads;
  std::array<NamedBarrier, 16> barriers;
  std::minstd_rand random;
  bool copies_at_once = false;
  Cluster* cluster = nullptr;
  uint32_t rank = 0;                           // in the cluster
  std::vector<std::function<void()>> landing;  // copies by the tensor unit
  std::array<Products, 8> products;            // of each group of four warps

 private:
  uint64_t Step(Thread& thread, uint64_t instructions);
  bool WaitsForOthers() const;
  void Finish(std::span<Thread*> present, Thread& last, const Instruction& instruction, void (*finish)(std::span<Thread*>, const Instruction&));
  void OpenCluster();
  void MakeReady(Thread& thread);
  void Open(uint32_t barrier);
  std::string Stuck() const;

  std::vector<uint32_t> ready_;
  size_t done_ = 0;
};

// By the tensor unit.
void StoreBoxes(Block& block, const std::vector<BoxStore>& stores);

}  // namespace kiln::ptx
