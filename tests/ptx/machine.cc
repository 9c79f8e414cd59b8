// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/machine.h"

#include <algorithm>
#include <cstring>

namespace kiln::ptx {
namespace {

constexpr uint64_t kWindow = uint64_t{1} << 60;  // of generic addresses of shared memory; local ones lie behind it
constexpr uint32_t kLocalBegin = 16;             // the address 0 is none
constexpr uint32_t kQuantum = 20'000;            // instructions of a thread before others have their turn

void Fill(std::minstd_rand& random, std::span<std::byte> bytes) {
  const auto value = std::byte(random() % 2 == 0 ? 0xff : random());
  std::ranges::fill(bytes, value);
}

}  // namespace

Block::Block(const Launch& l, std::array<uint32_t, 3> i, uint64_t seed)
    : launch(l),
      index(i),
      shared(l.shared_bytes + l.module->shared_bytes),
      threads(l.threads),
      random(uint32_t(seed * 2654435761u + 12345)),
      copies_at_once(l.seed % 2 == 1) {
  random.discard(8);
  Fill(random, shared);
  for (uint32_t t = 0; t < threads.size(); ++t) {
    Thread& thread = threads[t];
    thread.block = this;
    thread.index = t;
    thread.frames.push_back({.function = l.entry, .regs = std::vector<uint64_t>(l.entry->registers, random()), .params = l.params});
    thread.regs = thread.frame().regs.data();
    thread.local.resize(l.entry->local_bytes);
    Fill(random, thread.local);
    ready_.push_back(t);
  }
}

uint32_t Block::ExistingLanes(uint32_t warp) const {
  const size_t count = std::min<size_t>(32, threads.size() - size_t{warp} * 32);
  return count == 32 ? ~0u : (1u << count) - 1;
}

bool Block::WaitsForOthers() const {
  return std::ranges::any_of(threads, [](const Thread& thread) { return thread.state == State::kAtCluster; });
}

uint64_t Block::Run(uint64_t instructions) {
  uint64_t spent = 0;
  while (!Done() && spent <= instructions) {
    if (ready_.empty()) {
      if (WaitsForOthers()) break;
      throw Failure(Stuck());
    }
    const size_t chosen = random() % ready_.size();
    Thread& thread = threads[ready_[chosen]];
    ready_[chosen] = ready_.back();
    ready_.pop_back();
    spent += Step(thread, kQuantum);
    if (thread.state == State::kReady) ready_.push_back(thread.index);
  }
  return spent;
}

uint64_t Block::Step(Thread& thread, uint64_t instructions) {
  uint64_t count = 0;
  for (; count < instructions && thread.state == State::kReady && !thread.yields; ++count) {
    Frame& frame = thread.frame();
    if (frame.at >= frame.function->code.size()) {
      End(thread);
      break;
    }
    const Instruction& instruction = frame.function->code[frame.at++];
    if (instruction.guard != Operand::kNoRegister && ((thread.regs[instruction.guard] & 1) != 0) == instruction.guard_negated) continue;
    try {
      instruction.execute(thread, instruction);
    } catch (const Failure& failure) {
      throw Failure(std::string(failure.what()) + " at `" + instruction.text + "`, thread " + std::to_string(thread.index) + " of block " +
                    std::to_string(index[0]) + ", " + std::to_string(index[1]) + ", " + std::to_string(index[2]));
    }
  }
  thread.yields = false;
  return count;
}

void Block::MakeReady(Thread& thread) {
  thread.state = State::kReady;
  thread.waits_in = nullptr;
  ready_.push_back(thread.index);
}

void Block::Meet(Thread& thread, const Instruction& instruction, uint32_t lanes, void (*finish)(std::span<Thread*>, const Instruction&)) {
  const uint32_t warp = thread.index / 32;
  if ((lanes >> thread.Lane() & 1) == 0) throw Failure("a lane that is not in the mask");
  if ((lanes & ~ExistingLanes(warp)) != 0 && lanes != ~0u) throw Failure("a mask with lanes that do not exist");
  lanes &= ExistingLanes(warp);
  thread.state = State::kInWarp;
  thread.waits_in = &instruction;
  thread.waits_for = lanes;
  std::array<Thread*, 32> present;
  size_t count = 0;
  for (uint32_t lane = 0; lane < 32; ++lane) {
    if ((lanes >> lane & 1) == 0) continue;
    Thread& other = threads[size_t{warp} * 32 + lane];
    if (other.state == State::kDone) throw Failure("lane " + std::to_string(lane) + ", which has ended, is waited for");
    if (other.state != State::kInWarp || other.waits_in != &instruction || other.waits_for != lanes) return;
    present[count++] = &other;
  }
  Finish({present.data(), count}, thread, instruction, finish);
}

// Step goes on with the last of them.
void Block::Finish(std::span<Thread*> present, Thread& last, const Instruction& instruction, void (*finish)(std::span<Thread*>, const Instruction&)) {
  finish(present, instruction);
  for (Thread* thread : present) {
    if (thread != &last) MakeReady(*thread);
  }
  last.state = State::kReady;
  last.waits_in = nullptr;
}

void Block::MeetGroup(Thread& thread, const Instruction& instruction, void (*finish)(std::span<Thread*>, const Instruction&)) {
  constexpr uint32_t kThreads = 128;
  const uint32_t first = thread.index / kThreads * kThreads;
  if (first + kThreads > threads.size()) throw Failure("a part of a group of four warps");
  thread.state = State::kInWarp;
  thread.waits_in = &instruction;
  thread.waits_for = ~0u;
  std::array<Thread*, kThreads> present;
  for (uint32_t t = 0; t < kThreads; ++t) {
    Thread& other = threads[first + t];
    if (other.state == State::kDone) throw Failure("thread " + std::to_string(other.index) + ", which has ended, is waited for");
    if (other.state != State::kInWarp || other.waits_in != &instruction) return;
    present[t] = &other;
  }
  Finish(present, thread, instruction, finish);
}

void Block::WaitForCluster(Thread& thread, const Instruction& instruction) {
  thread.state = State::kAtCluster;
  thread.waits_in = &instruction;
  ++cluster->arrived;
  OpenCluster();
}

void Block::OpenCluster() {
  if (cluster == nullptr || cluster->arrived == 0) return;
  size_t needed = 0;
  for (const Block* block : cluster->blocks) needed += block->threads.size() - block->done_;
  if (cluster->arrived < needed) return;
  cluster->arrived = 0;
  for (Block* block : cluster->blocks)
    for (Thread& thread : block->threads)
      if (thread.state == State::kAtCluster) block->MakeReady(thread);
}

std::pair<Block*, uint32_t> Block::InCluster(uint64_t address, uint32_t bytes) {
  Block* block = this;
  if (address >> kClusterShift != 0) {
    const uint64_t number = (address >> kClusterShift) - 1;
    if (number >= cluster->blocks.size()) throw Failure("a block that the cluster does not have");
    block = cluster->blocks[number];
    address &= (1u << kClusterShift) - 1;
  }
  if (address < kSharedBegin || address - kSharedBegin + bytes > block->shared.size()) throw Failure("an address outside of shared memory");
  if (block->Done()) throw Failure("shared memory of a block that has ended");
  return {block, uint32_t(address - kSharedBegin)};
}

void Block::Arrive(Thread& thread, const Instruction& instruction, uint32_t barrier, uint32_t expected, bool waits) {
  if (barrier >= barriers.size()) throw Failure("barrier " + std::to_string(barrier));
  NamedBarrier& named = barriers[barrier];
  if (named.arrived != 0 && named.expected != expected) throw Failure("barrier " + std::to_string(barrier) + " for two numbers of threads");
  named.expected = expected;
  ++named.arrived;
  if (waits) {
    thread.state = State::kAtBarrier;
    thread.waits_in = &instruction;
    thread.waits_for = barrier;
  }
  Open(barrier);
}

void Block::Open(uint32_t barrier) {
  NamedBarrier& named = barriers[barrier];
  const size_t needed = named.expected != 0 ? named.expected : threads.size() - done_;
  if (named.arrived == 0 || named.arrived < needed) return;
  if (named.arrived > needed) throw Failure("more threads than barrier " + std::to_string(barrier) + " is for");
  named = {};
  for (Thread& thread : threads)
    if (thread.state == State::kAtBarrier && thread.waits_for == barrier) MakeReady(thread);
}

void Block::End(Thread& thread) {
  for (const auto& group : thread.groups) thread.Complete(group);
  thread.Complete(thread.copies);
  for (const auto& group : thread.store_groups) StoreBoxes(*this, group);
  StoreBoxes(*this, thread.stores);
  thread.state = State::kDone;
  ++done_;
  for (uint32_t b = 0; b < barriers.size(); ++b)
    if (barriers[b].expected == 0) Open(b);
  OpenCluster();
}

std::string Block::Stuck() const {
  for (const Thread& thread : threads) {
    if (thread.waits_in == nullptr) continue;
    return "deadlock: thread " + std::to_string(thread.index) + " waits at `" + thread.waits_in->text + "`";
  }
  return "deadlock";
}

uint64_t Thread::Constant(const Operand& operand) {
  if (operand.frame) return reinterpret_cast<uint64_t>(frame().params.data()) + operand.value;
  if (operand.local) return kLocalBegin + frame().local_begin + operand.value;
  return operand.value;
}

uint64_t Thread::Special(const Operand& operand) {
  const std::string& name = operand.name;
  const auto of = [&](std::string_view prefix, const std::array<uint32_t, 3>& values) -> std::optional<uint64_t> {
    if (name.size() != prefix.size() + 2 || !name.starts_with(prefix)) return std::nullopt;
    return values[size_t(name.back() - 'x')];
  };
  if (const auto v = of("%tid", {index, 0, 0})) return *v;
  if (const auto v = of("%ntid", {uint32_t(block->threads.size()), 1, 1})) return *v;
  if (const auto v = of("%ctaid", block->index)) return *v;
  if (const auto v = of("%nctaid", block->launch.grid)) return *v;
  if (name == "%cluster_ctarank") return block->rank;
  if (name == "%cluster_nctarank") return block->cluster->blocks.size();
  if (name == "%laneid") return Lane();
  if (name == "%warpid") return index / 32;
  if (name == "%smid") return block->index[0] % 132;
  if (name == "%nsmid") return 132;
  throw Failure("PTX: unknown register " + name);
}

std::byte* Thread::Place(Space space, uint64_t address, uint32_t bytes, uint32_t align) {
  if (align == 0) align = bytes;
  if (address % align != 0) throw Failure("an address that is no multiple of " + std::to_string(align));
  if (space == Space::kGeneric) {
    space = address < kWindow ? Space::kGlobal : address < 2 * kWindow ? Space::kShared : Space::kLocal;
    if (space != Space::kGlobal) address %= kWindow;
  }
  switch (space) {
    case Space::kShared:
      if (address < kSharedBegin || address - kSharedBegin + bytes > block->shared.size()) {
        throw Failure("address " + std::to_string(address) + " outside of shared memory");
      }
      return block->shared.data() + (address - kSharedBegin);
    case Space::kCluster: {
      const auto [owner, offset] = block->InCluster(address, bytes);
      return owner->shared.data() + offset;
    }
    case Space::kLocal:
      if (address < kLocalBegin || address - kLocalBegin + bytes > local.size()) throw Failure("an address outside of local memory");
      return local.data() + (address - kLocalBegin);
    case Space::kParam: {
      std::vector<std::byte>& params = frame().params;
      const auto begin = reinterpret_cast<uint64_t>(params.data());
      if (address < begin || address + bytes > begin + params.size()) throw Failure("an address outside of the parameters");
      return reinterpret_cast<std::byte*>(address);
    }
    default: break;
  }
  if (!IsInTensor(address, bytes)) throw Failure("an address outside of all tensors");
  return reinterpret_cast<std::byte*>(address);
}

bool Thread::IsInTensor(uint64_t address, uint32_t bytes) const {
  const std::vector<Range>& memory = block->launch.memory;
  auto range = std::ranges::upper_bound(memory, address, {}, &Range::begin);
  while (range != memory.begin()) {
    --range;
    if (address >= range->begin && address + bytes <= range->end) return true;
    if (address >= range->begin + (uint64_t{1} << 40)) break;
  }
  return false;
}

const std::byte* Thread::PlaceToRead(Space space, uint64_t address, uint32_t bytes) {
  const bool global = space == Space::kGlobal || (space == Space::kGeneric && address < kWindow);
  if (!global || bytes > around_.size() || address % bytes != 0 || IsInTensor(address, bytes)) return Place(space, address, bytes);
  bool any = false;
  for (uint32_t i = 0; i < bytes; ++i) {
    const bool inside = IsInTensor(address + i, 1);
    around_[i] = inside ? *reinterpret_cast<const std::byte*>(address + i) : std::byte{0xa5};
    any |= inside;
  }
  return any ? around_.data() : Place(space, address, bytes);
}

void Thread::Complete(const std::vector<Copy>& group) {
  for (const Copy& copy : group) {
    std::byte* to = Place(Space::kShared, copy.to, copy.bytes);
    if (copy.read > 0) std::memcpy(to, Place(Space::kGlobal, copy.from, copy.read, copy.bytes), copy.read);
    std::memset(to + copy.read, 0, copy.bytes - copy.read);
  }
}

}  // namespace kiln::ptx
