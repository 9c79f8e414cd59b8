// SPDX-License-Identifier: Apache-2.0
//
// Who touched which byte, so that clashes show whatever order the threads happened to run in. Two accesses are ordered where they
// are one thread's or synchronisation lies between; nothing orders gangs of one launch. A byte remembers its last writer and the
// readers since; that is enough, because what clashes with an older access was reported when it came or is ordered behind it.
//
// Launches whose threads meet only at barriers of whole blocks need no clocks: two accesses are ordered where they lie in different
// epochs (barriers passed), and of the readers of one epoch it is enough to know whether there were several. Where Who has an Order,
// times are those of runtime/clock.h.
//
// Gangs that run in parallel touch a cell in any order, and no report may depend on it. As long as none of them writes what another
// touches, it does not; where one does, GlobalShadow says so and puts the memory back, so that they can run again one after another.
//
// Concurrency: a SharedShadow belongs to one block. A GlobalShadow is used by all blocks at once; cells are touched under one of
// kLocks spin locks, chosen by address.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "compiler/emulator/runtime/check/lives.h"
#include "compiler/emulator/runtime/check/pages.h"
#include "compiler/emulator/runtime/check/tenants.h"
#include "compiler/emulator/runtime/clock.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {

enum class Touch : uint8_t { kRead, kWrite, kAtomic };

inline constexpr uint32_t kNoAgent = ~0u;

// What comes before an access.
struct Order {
  std::span<const View> views;  // of each of those who started it
  uint32_t self = kNoAgent;     // the thread that started it alone
  uint32_t threads = 0;         // agents below are threads
  bool async = false;           // by the asynchronous proxy

  bool After(uint32_t agent, uint32_t time) const;
  bool Fenced(uint32_t agent, uint32_t time) const;  // a generic access

  // Neighbouring bytes ask the same.
  struct Answer {
    uint32_t agent = kNoAgent, time = 0;
    bool value = false;
  };
  mutable Answer after{}, fenced{};
};

struct Who {
  uint64_t block;  // the gang, from 1
  uint32_t time;   // barriers passed, or the agent's
  uint32_t agent;  // thread, or what acts for one
  uint32_t location;
  const Order* order = nullptr;
  const std::set<uint64_t>* ahead = nullptr;  // gangs, from 1, that handed on what they did
};

struct Clash {
  enum Kind : uint8_t { kNone, kRace, kPending, kUninitialized, kOutlived, kUnfenced } kind = kNone;
  bool other_writes = false;
  Who other{};
  uint32_t byte = 0;  // of the access, the first that clashes
};

// Accesses of one kind to one byte by one gang that are not ordered among themselves, beside the last.
class Accesses {
 public:
  struct Node {
    uint32_t agent, time, location;
    uint32_t next;
  };
  // Takes out those that come before `who` and adds one. `list`: 0 is empty.
  void Add(uint32_t& list, const Who& who, const Node& access);
  void Drop(uint32_t& list, const Who& who);
  // The first that does not come before `who`.
  std::optional<Node> Find(uint32_t list, const Who& who) const;
  void Free(uint32_t& list);

 private:
  std::vector<Node> nodes_{{}};
  uint32_t free_ = 0;
};

// The last access of a kind by another gang than the last one's.
struct Abroad {
  uint32_t block = 0, agent = 0, location = 0;  // block 0: none
};

// The accesses of other gangs to one element of global memory.
struct OfOthers {
  Abroad reader, atomic;
};

struct Cell {
  uint32_t writer_block = 0, writer_time = 0, writer_location = 0;  // block 0: nobody
  uint32_t reader_block = 0, reader_time = 0, reader_location = 0;
  uint32_t writer = 0, reader = 0;       // agents
  uint32_t peer = 0, peer_location = 0;  // where many_readers: one of the others
  uint32_t readers = 0;                  // others, of Accesses; where there are clocks
  uint32_t atomics = 0;                  // others, of Accesses, beside the writer
  bool many_readers = false;             // several threads of the last reader's block in its epoch
  bool many_blocks = false;              // read by several
  bool writer_atomic = false;
  bool pending = false;  // the writer's asynchronous copy has not been waited for

  // Notes the access and says what it clashes with. `of_others`: null where one gang alone comes.
  Clash Note(const Who& who, Touch touch, Accesses& accesses, OfOthers* of_others);
  // The same for most accesses where there are no clocks. False: nothing is noted, and Note must be asked.
  bool NotePlain(const Who& who, Touch touch);

 private:
  Clash WriterClash(const Who& who, Touch touch, const Accesses& accesses, const OfOthers* of_others) const;
  Clash AtomicsClash(const Who& who, const Accesses& accesses, const OfOthers* of_others) const;
  Clash ReadersClash(const Who& who, const Accesses& accesses, const OfOthers* of_others) const;
  void NoteRead(const Who& who, Accesses& accesses, OfOthers* of_others);
  void NoteAtomic(const Who& who, Accesses& accesses, OfOthers* of_others);
  void NoteWriter(const Who& who, Touch touch);
};

inline bool Cell::NotePlain(const Who& who, Touch touch) {
  if (pending || writer_atomic || touch == Touch::kAtomic) return false;
  if (writer_block != 0 && (writer_block != who.block || (writer != who.agent && writer_time == who.time))) return false;
  if (reader_block != 0 && reader_block != who.block) return false;
  const bool again = reader_block != 0 && reader_time == who.time;
  if (touch == Touch::kRead) {
    if (again) {
      if (reader == who.agent) return true;
      many_readers = true;
      peer = who.agent;
      peer_location = who.location;
      return true;
    }
    many_readers = false;
    reader_block = uint32_t(who.block);
    reader_time = who.time;
    reader = who.agent;
    reader_location = who.location;
    return true;
  }
  if (many_blocks || (again && (many_readers || reader != who.agent))) return false;
  writer_block = uint32_t(who.block);
  writer_time = who.time;
  writer = who.agent;
  writer_location = who.location;
  return true;
}

class SharedShadow {
 public:
  SharedShadow(uint32_t bytes, uint32_t block_threads, std::span<const SharedSlot> slots)
      : cells_(bytes),
        block_threads_(block_threads),
        sharing_(ShareBytes(slots) ? slots : std::span<const SharedSlot>()),
        lives_(slots, block_threads) {}
  void Enter();
  Lives& lives() { return lives_; }
  uint32_t bytes() const { return uint32_t(cells_.size()); }

  // `thread`: that does it, or started it.
  Clash Note(const Who& who, uint32_t thread, uint32_t offset, uint32_t bytes, Touch touch, const std::byte* before, const std::byte* after);
  // A copy to these bytes begins, ends.
  Clash Start(const Who& who, uint32_t thread, uint32_t offset, uint32_t bytes);
  void Land(const Who& who, uint32_t offset, uint32_t bytes);

 private:
  using Statements = std::pair<uint32_t, uint32_t>;  // who reads, who wrote
  bool IsLeft(const Statements& statements, uint32_t byte);
  // What a byte holds that was written, but not for this access to find; none: it may.
  Clash::Kind Leftover(const Who& who, uint32_t thread, uint32_t byte, Touch touch);

  std::vector<Cell> cells_;
  Accesses accesses_;
  const uint32_t block_threads_;
  std::span<const SharedSlot> sharing_;  // the buffers, where some share bytes
  Lives lives_;
  std::map<Statements, std::vector<SharedRange>> left_;  // asked so far
  Statements asked_{};
  const std::vector<SharedRange>* answer_ = nullptr;  // to that
};

struct Memory;

class GlobalShadow {
 public:
  GlobalShadow(std::span<const Memory> memory, uint32_t block_threads);
  GlobalShadow(const GlobalShadow&) = delete;
  GlobalShadow& operator=(const GlobalShadow&) = delete;

  // The allocation one of whose tensors holds all of these bytes; absent: none.
  std::optional<size_t> Find(const void* data, uint32_t bytes) const;
  Clash Note(const Who& who, size_t allocation, const std::byte* data, uint32_t bytes, Touch touch, const std::byte* after);
  // Has a gang written what another touched, but for atomics?
  bool crossed() const { return crossed_.load(std::memory_order_relaxed); }
  // Memory and cells as they were before the first access; nothing runs meanwhile.
  void Restore();
  // "A[2, 17]", or "A[2, 17] or B[1]" where tensors overlap; of an address in none, the nearest and how far it is away.
  NamedPlace NameOf(const void* data) const;

 private:
  struct GlobalCell : Cell {
    OfOthers of_others;
  };
  struct Tensor {
    std::byte* data;
    uint64_t bytes;
    uint32_t element;
    std::string name;
    std::vector<int64_t> shape, strides;  // in elements; empty: counted as one row

    bool Holds(uintptr_t at, uint64_t count) const;
    std::string ElementText(uint64_t number) const;
  };
  // The memory of one tensor, or of several that overlap, which count as one.
  struct Storage {
    std::byte* data;
    uint64_t bytes;
    uint32_t element;  // bytes of a cell: each element of the tensors has cells of its own
    std::vector<Tensor> tensors;
  };
  struct Allocation : Storage {
    Pages cells;   // one for each element
    Pages before;  // what elements held that were written

    uint64_t elements() const { return bytes / element; }
    // Null: accesses are bounded, but races are not seen.
    GlobalCell* Cells() const { return before.data() == nullptr ? nullptr : reinterpret_cast<GlobalCell*>(cells.data()); }
  };
  static std::vector<Storage> Gather(std::span<const Memory> memory);
  // `after`: what will be written to the element; null: unknown, or a part of it.
  Clash NoteElement(const Who& who, const Allocation& allocation, uint64_t number, Touch touch, const std::byte* after, Accesses& accesses);
  static constexpr size_t kLocks = 1024;

  const uint32_t block_threads_;
  std::vector<Allocation> allocations_;  // which do not overlap
  struct Stripe {                        // of cells
    std::atomic_flag lock;
    Accesses accesses;
  };
  std::array<Stripe, kLocks> stripes_;
  std::atomic<bool> crossed_ = false;
};

}  // namespace kiln::emulator
