// SPDX-License-Identifier: Apache-2.0
//
// Elements in memory that a statement says it writes, against those that its threads wrote. One of the threads says which they are; when the
// last of them has done its part, or the block has ended, every one must have been written. Threads come to a statement at different
// times: the n-th time of one belongs to the n-th of the others. Used by one block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

namespace kiln::emulator {

class Block;

class Claims {
 public:
  Claims(Block& block, uint32_t threads) : block_(block), current_(threads) {}
  void Clear();

  // The thread comes to the statement at `site`, which `threads` of the block do together. True: it shall say what they write.
  bool Begin(uint32_t thread, uint32_t threads, uint32_t site, uint32_t location);
  void Add(uint32_t thread, const std::byte* data, uint32_t bytes, bool shared);
  void End(uint32_t thread);
  // Anything that a thread writes.
  void Wrote(uint32_t thread, const std::byte* data, uint32_t bytes);
  // All threads of the block have ended.
  void Finish();

 private:
  struct Element {
    const std::byte* data;
    uint32_t bytes;
    bool shared, written = false;
  };
  struct Claim {
    uint32_t location, thread, threads;  // thread: the first to come
    uint32_t ended = 0;
    bool sorted = false;
    std::vector<Element> elements = {};
  };
  using Key = std::pair<uint32_t, uint32_t>;  // site, how often the threads came there before

  void Look(const Claim& claim);

  Block& block_;
  std::map<Key, Claim> claims_;
  std::unordered_map<uint32_t, std::vector<uint32_t>> came_;       // by site: how often each thread did; looked up, never walked
  std::vector<std::map<Key, Claim>::iterator> current_;            // of each thread
  std::vector<bool> within_ = std::vector<bool>(current_.size());  // whether it has one
};

}  // namespace kiln::emulator
