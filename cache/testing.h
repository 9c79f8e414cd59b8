// SPDX-License-Identifier: Apache-2.0
//
// For the tests of the cache only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <utility>

#include "cache/clock.h"
#include "cache/entry.h"

namespace kiln::cache::testing {

// Stands still until it is moved. Both times move together, until somebody sets the clock.
class ManualClock final : public Clock {
 public:
  WallTime WallNow() const override { return WallTime(std::chrono::microseconds(micros_ + set_)); }
  SteadyTime SteadyNow() const override { return SteadyTime(std::chrono::microseconds(micros_.load())); }
  void Advance(std::chrono::microseconds by) { micros_ += by.count(); }
  void Set(std::chrono::microseconds by) { set_ += by.count(); }

 private:
  std::atomic<std::int64_t> micros_{1'700'000'000'000'000};
  std::atomic<std::int64_t> set_{0};
};

// A directory of its own, gone afterwards.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& in = ::testing::TempDir()) {
    std::string name = in + "kiln-cache-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string Numbered(std::string text, int number) { return text += std::to_string(number); }

inline Digest KeyOf(int number) { return Sha256(Numbered("key ", number)); }

// The same bytes for the same seed; they do not compress and do not repeat.
inline std::string RandomBytes(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; i += 8) {
    const std::uint64_t word = random();
    bytes.replace(i, std::min<std::size_t>(8, size - i), reinterpret_cast<const char*>(&word), std::min<std::size_t>(8, size - i));
  }
  return bytes;
}

inline Entry MakeEntry(const Digest& key, std::string_view blob, std::string_view metadata = "metadata") {
  const BlobView blobs[] = {{"ptx", blob}, {"info", "launch info"}};
  return *Seal(key, metadata, blobs);
}

// Entry `number`, with a body that no other number has.
inline Entry NumberedEntry(int number, std::size_t size = 1000) {
  return MakeEntry(KeyOf(number), RandomBytes(size, static_cast<std::uint64_t>(number)), Numbered("metadata of ", number));
}

}  // namespace kiln::cache::testing
