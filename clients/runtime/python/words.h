// SPDX-License-Identifier: Apache-2.0
//
// Keys of what Python calls were made before: words, found without an allocation.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

namespace kiln::runtime::py {

using Words = std::span<const uint64_t>;

struct HashOfWords {
  using is_transparent = void;
  size_t operator()(Words words) const {
    uint64_t hash = words.size();
    for (uint64_t word : words) hash = std::rotl((hash ^ word) * 0x9E3779B97F4A7C15u, 29);
    return size_t(hash);
  }
};

struct SameWords {
  using is_transparent = void;
  bool operator()(Words a, Words b) const { return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0; }
};

// Whoever uses a value holds it: Python may run meanwhile, and forget it.
template <typename Value>
using ByWords = std::unordered_map<std::vector<uint64_t>, std::shared_ptr<const Value>, HashOfWords, SameWords>;

constexpr size_t kMostWords = 256;

// A key that is being read. Add is false where it grows too long.
class Key {
 public:
  bool Add(uint64_t word) {
    if (used_ == kMostWords) return false;
    words_[used_++] = word;
    return true;
  }
  template <typename Kind>
  bool Add(Kind kind, uint64_t word) {
    return Add(uint64_t(kind)) && Add(word);
  }
  // The bytes of a text, behind their number.
  bool AddText(const char* text, size_t size) {
    if (!Add(uint64_t(size))) return false;
    for (size_t at = 0; at < size; at += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text + at, size - at < 8 ? size - at : 8);
      if (!Add(word)) return false;
    }
    return true;
  }
  Words words() const { return {words_, used_}; }
  std::vector<uint64_t> Copy() const { return {words_, words_ + used_}; }

 private:
  uint64_t words_[kMostWords];
  size_t used_ = 0;
};

}  // namespace kiln::runtime::py
