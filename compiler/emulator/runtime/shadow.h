// SPDX-License-Identifier: Apache-2.0
//
// Who touched which byte, so that clashes show whatever order the threads happened to run in. Within a block a barrier orders all
// its threads: two accesses are ordered where they are one thread's, or lie in different epochs (barriers passed). Nothing orders
// blocks of one launch. A byte remembers its last writer and its last readers; that is enough, because what clashes with an older
// access than those was reported when it came or is ordered behind a barrier.
//
// Concurrency: a SharedShadow belongs to one block. A GlobalShadow is used by all blocks at once; cells are touched under one of
// kLocks spin locks, chosen by address.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kiln::emulator {

enum class Touch : uint8_t { kRead, kWrite, kAtomic };

struct Who {
  uint64_t block;  // linear, from 1
  uint32_t epoch;
  uint32_t thread;
  uint32_t location;
};

struct Clash {
  enum Kind : uint8_t { kNone, kRace, kPending, kUninitialized, kUnfenced } kind = kNone;
  bool other_writes = false;
  Who other{};
};

struct Cell {
  uint32_t writer_block = 0, writer_epoch = 0, writer_location = 0;  // block 0: nobody
  uint32_t reader_block = 0, reader_epoch = 0, reader_location = 0;
  uint16_t writer_thread = 0, reader_thread = 0;
  uint32_t writer_fences = 0;  // proxy fences the writer had executed then
  bool many_readers = false;  // several threads of the last reader's block in its epoch
  bool many_blocks = false;   // readers of several blocks
  bool writer_atomic = false;
  bool pending = false;       // the writer's asynchronous copy has not been waited for

  // Notes the access and says what it clashes with. `same`: it writes the value that is there, which hurts nobody.
  Clash Note(const Who& who, Touch touch, bool same);
};

class SharedShadow {
 public:
  explicit SharedShadow(uint32_t bytes) : cells_(bytes) {}
  void Enter(uint64_t block);
  uint32_t bytes() const { return uint32_t(cells_.size()); }

  Clash Note(const Who& who, uint32_t offset, uint32_t bytes, Touch touch, const std::byte* before, const std::byte* after);
  // A copy to these bytes begins, ends.
  Clash Start(const Who& who, uint32_t offset, uint32_t bytes);
  void Land(const Who& who, uint32_t offset, uint32_t bytes);
  // A read by the asynchronous proxy (wgmma), and a thread's fence that orders its writes before such.
  Clash NoteAsyncProxy(const Who& who, uint32_t offset, uint32_t bytes);
  void Fence(uint32_t thread) { ++fences_[thread]; }

 private:
  std::vector<Cell> cells_;
  std::array<uint32_t, 1024> fences_{};  // of each thread
};

struct Memory;

class GlobalShadow {
 public:
  explicit GlobalShadow(std::span<const Memory> memory);
  ~GlobalShadow();
  GlobalShadow(const GlobalShadow&) = delete;
  GlobalShadow& operator=(const GlobalShadow&) = delete;

  // The allocation that holds all of these bytes; absent: none.
  std::optional<size_t> Find(const void* data, uint32_t bytes) const;
  Clash Note(const Who& who, size_t allocation, const std::byte* data, uint32_t bytes, Touch touch, const std::byte* after);
  // "A[17]"; of an address in none, the nearest and how far it is away.
  std::string Describe(const void* data) const;

 private:
  struct Allocation {
    const std::byte* data;
    uint64_t bytes;
    uint32_t element;
    std::string name;
    Cell* cells;  // one for each element
    size_t mapped;
  };
  static constexpr size_t kLocks = 1024;

  std::vector<Allocation> allocations_;
  std::array<std::atomic_flag, kLocks> locks_{};
};

}  // namespace kiln::emulator
