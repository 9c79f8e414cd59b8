// SPDX-License-Identifier: Apache-2.0
//
// One bit of the database or of its log is flipped: whatever is then served is what was put, and what is not served can be put
// anew. KILN_FLIPS (120) is how many bits, each in a store of its own; KILN_SEED which.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <random>
#include <utility>

#include "cache/sqlite/sqlite_tier.h"
#include "cache/testing/store.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::KeyOf;
using testing::NumberedEntry;

constexpr int kEntries = 24;

std::uint64_t Setting(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

std::size_t SizeOf(int number) { return number % 3 == 0 ? 500 : 20'000; }

class SqliteFlipTest : public testing::StoreTest {
 protected:
  // Half of the entries are in the database, half in the log of a process that was killed.
  void SetUp() override {
    const fs::path living = directory / "living";
    OpenAndPut(living, 0, kEntries / 2).reset();
    const auto tier = OpenAndPut(living, kEntries / 2, kEntries);
    fs::create_directories(directory / "template");
    for (const char* name : {"kiln.db", "kiln.db-wal", "open"}) fs::copy_file(living / name, directory / "template" / name);
  }

  std::unique_ptr<SqliteTier> OpenAndPut(const fs::path& where, int first, int end) {
    auto tier = OpenStore({.directory = where});
    for (int i = first; tier && i < end; ++i) EXPECT_TRUE(PutAndWait(*tier, NumberedEntry(i, SizeOf(i))));
    return tier;
  }

  // Flips one bit of a fresh copy of the template; says which.
  std::string Flip(const fs::path& where, const char* name, std::optional<std::uint64_t> chosen) {
    fs::remove_all(where);
    fs::copy(directory / "template", where);
    const fs::path file = where / name;
    const std::uint64_t bit = chosen.value_or(random() % (8 * fs::file_size(file)));
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(bit / 8));
    const int byte = stream.get();
    stream.seekp(static_cast<std::streamoff>(bit / 8));
    stream.put(static_cast<char>(byte ^ 1 << bit % 8));
    return file.filename().string() + ", bit " + std::to_string(bit);
  }

  // How many entries are there; each is what was put.
  int CountRight(SqliteTier& tier) {
    int there = 0;
    for (int i = 0; i < kEntries; ++i) {
      const auto found = tier.Get(KeyOf(i));
      if (!found || !*found) continue;
      EXPECT_EQ((*found)->sealed(), NumberedEntry(i, SizeOf(i)).sealed()) << "entry " << i << " is wrong";
      ++there;
    }
    return there;
  }

  void PutAll(SqliteTier& tier) {
    for (int i = 0; i < kEntries; ++i) {
      bool kept = false;
      for (int attempt = 0; attempt < 5 && !kept; ++attempt) kept = PutAndWait(tier, NumberedEntry(i, SizeOf(i))).has_value();
      EXPECT_TRUE(kept) << "entry " << i << " cannot be put anew";
    }
  }

  // Whether all was there; what was not can be put anew, and all is there then.
  bool IsServedAndMended(const fs::path& where) {
    const auto tier = OpenStore({.directory = where});
    if (!tier) return false;
    const bool all = CountRight(*tier) == kEntries;
    PutAll(*tier);
    EXPECT_EQ(CountRight(*tier), kEntries) << "after all were put anew";
    EXPECT_TRUE(tier->Verify());
    return all;
  }

  std::mt19937_64 random{Setting("KILN_SEED", std::random_device{}())};
};

TEST_F(SqliteFlipTest, AFlippedBitIsInvisibleOrDetected) {
  const std::uint64_t seed = Setting("KILN_SEED", std::random_device{}());
  random.seed(seed);
  int invisible = 0;
  const std::uint64_t flips = Setting("KILN_FLIPS", 120);
  for (std::uint64_t flip = 0; flip < flips && !HasFailure(); ++flip) {
    const fs::path where = directory / "flipped";
    const char* file = random() % 2 == 0 ? "kiln.db" : "kiln.db-wal";
    SCOPED_TRACE(Flip(where, file, std::nullopt) + ", flip " + std::to_string(flip) + " of KILN_SEED=" + std::to_string(seed));
    invisible += IsServedAndMended(where);
  }
  std::printf("%d of %d flips changed nothing that is read\n", invisible, static_cast<int>(flips));
}

// Where few bits mean much: a random one is hardly ever among them.
TEST_F(SqliteFlipTest, AFlippedBitOfAHeaderIsInvisibleOrDetected) {
  const std::uint64_t step = Setting("KILN_FLIPS", 120) >= 1000 ? 1 : 13;
  for (const auto& [file, bytes] : {std::pair{"kiln.db", 112}, std::pair{"kiln.db-wal", 56}}) {
    for (std::uint64_t bit = 0; bit < static_cast<std::uint64_t>(8 * bytes); bit += step) {
      const fs::path where = directory / "flipped";
      SCOPED_TRACE(Flip(where, file, bit));
      IsServedAndMended(where);
    }
  }
}

}  // namespace
}  // namespace kiln::cache
