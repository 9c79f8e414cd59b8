// SPDX-License-Identifier: Apache-2.0
//
// Runs the whole life of a store (creation, puts, erasures, evictions, checkpoints, a collection, an export, an import, the close), and
// lets the disk fail at each of its write calls in turn: at that call alone, or from that call on until there is space again. What the
// store acknowledged must be there, what it serves must be right, and afterwards it must work as before.
#include <gtest/gtest.h>

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <limits>
#include <set>
#include <string>
#include <tuple>

#include "cache/bundle/bundle.h"
#include "cache/sqlite/sqlite.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/testing.h"
#include "cache/testing/disk_faults.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::disk_faults;
using testing::KeyOf;
using testing::ManualClock;
using testing::NumberedEntry;
using testing::TemporaryDirectory;

constexpr int kEntries = 7;     // that a life puts and keeps
constexpr int kPassing = 1002;  // from here on entries that are erased, or put without waiting
constexpr std::int64_t kForEver = std::numeric_limits<std::int64_t>::max();

// In memory, where there is such a place: a test of some thousand stores.
std::string Place() { return fs::is_directory("/dev/shm") ? "/dev/shm/" : ::testing::TempDir(); }

std::size_t SizeOf(int number) { return number % 3 == 0 ? 20'000 : 300; }
Entry EntryOf(int number) { return NumberedEntry(number, SizeOf(number)); }

std::set<std::string> FilesIn(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& file : fs::directory_iterator(folder)) names.insert(file.path().filename());
  return names;
}

struct Fault {
  const char* name;
  int error;
  bool lasts;
};

class SqliteDiskTest : public ::testing::TestWithParam<Fault> {
 protected:
  // One life of a store. False when the disk never failed.
  bool LiveWithFaultAt(std::int64_t call) {
    TemporaryDirectory directory(Place());
    const Fault& fault = GetParam();
    disk_faults->Arm(directory.path().native(), fault.error, call, fault.lasts ? kForEver : call);
    std::set<int> stored;
    auto tier = Open(directory.path() / "store");
    if (tier) {
      Work(*tier, directory.path(), stored);
      ExpectAllRight(*tier, stored);
      if (call % 2 == 0) {
        stored.clear();
        (void)tier->Gc(0);
        ExpectAllRight(*tier, stored);
      }
    }
    tier.reset();
    const bool failed = disk_faults->failed > 0;
    disk_faults->Heal();
    clock_.Advance(std::chrono::seconds(11));
    ExpectWorksAgain(directory.path(), stored);
    return failed;
  }

 private:
  std::unique_ptr<SqliteTier> Open(const fs::path& directory) {
    SqliteOptions options{.directory = directory, .checkpoint_bytes = 60'000, .wal_limit = 150'000};
    auto tier = SqliteTier::Open(options, clock_);
    if (tier) return std::move(*tier);
    EXPECT_TRUE(tier.error().code == ErrorCode::kFull || tier.error().code == ErrorCode::kUnreachable) << tier.error().message;
    return nullptr;
  }

  static void PutOne(SqliteTier& tier, int number, std::set<int>& stored) {
    if (PutAndWait(tier, EntryOf(number))) stored.insert(number);
  }

  void Work(SqliteTier& tier, const fs::path& directory, std::set<int>& stored) {
    for (int number = 0; number < kEntries / 2; ++number) PutOne(tier, number, stored);
    for (int number = kPassing; number < kPassing + 4; ++number) tier.Put(EntryOf(number));
    for (int number = kEntries / 2; number < kEntries; ++number) PutOne(tier, number, stored);
    (void)tier.Erase(KeyOf(kPassing));
    for (const int number : stored) EXPECT_TRUE(tier.Get(KeyOf(number))) << "a lookup fails for want of room";
    (void)tier.Flush();
    (void)tier.Gc(UINT64_MAX);  // evicts nothing, and gives back the pages of what was erased
    const bool exported = ExportBundle(tier, directory / "bundle").has_value();
    EXPECT_EQ(FilesIn(directory).contains("bundle"), exported);
    EXPECT_FALSE(FilesIn(directory).contains("bundle.partial"));
    if (auto other = Open(directory / "other"); other && exported) (void)ImportBundle(directory / "bundle", *other);
    const auto report = tier.Verify();
    EXPECT_TRUE(!report || (report->corrupt == 0 && !report->store_damaged));
  }

  // `stored` is there; of everything else, what is there is whole.
  static void ExpectAllRight(SqliteTier& tier, const std::set<int>& stored) {
    for (int number = 0; number < kPassing + 4; number += number == kEntries ? kPassing - kEntries : 1) {
      const auto found = tier.Peek(KeyOf(number));
      ASSERT_TRUE(found) << number << ": " << found.error().message;
      EXPECT_TRUE(!*found || (*found)->sealed() == EntryOf(number).sealed()) << number << " is wrong";
      EXPECT_TRUE(*found || !stored.contains(number)) << number << " was answered as stored and is gone";
    }
    EXPECT_EQ(tier.Stats().set_aside, 0u);
    EXPECT_EQ(tier.Stats().corrupt, 0u);
  }

  void ExpectWorksAgain(const fs::path& directory, const std::set<int>& stored) {
    for (int round = 0; round < 2; ++round) {
      const auto tier = Open(directory / "store");
      ASSERT_TRUE(tier) << "the store cannot be opened though there is room again";
      ExpectAllRight(*tier, stored);
      for (int number = 0; number < kEntries; ++number) EXPECT_TRUE(PutAndWait(*tier, EntryOf(number))) << number;
      const auto report = tier->Verify();
      ASSERT_TRUE(report) << report.error().message;
      EXPECT_EQ(report->corrupt, 0u);
      EXPECT_FALSE(report->store_damaged);
      EXPECT_FALSE(tier->Stats().read_only);
      EXPECT_TRUE(ExportBundle(*tier, directory / "bundle"));
    }
    auto files = FilesIn(directory / "store");
    files.erase("open");  // the mark stays if the background check of an unclosed store has not finished
    EXPECT_EQ(files, (std::set<std::string>{"kiln.db", "lock"}));
    auto db = sqlite::Connection::Open(directory / "store" / "kiln.db", sqlite::OpenMode::kWrite);
    EXPECT_EQ(db->Text("PRAGMA journal_mode"), "wal") << "readers and the writer would wait for each other";
    EXPECT_EQ(db->Integer("PRAGMA auto_vacuum"), 2) << "the file would never shrink";
    EXPECT_EQ(db->Integer("PRAGMA page_size"), 16384);
  }

  ManualClock clock_;
};

// As SQLite and the C++ library do: what a write has not written is written again, until that fails.
std::size_t WrittenUntilItFails(int file, const std::string& bytes) {
  std::size_t written = 0;
  while (written < bytes.size()) {
    const ssize_t one = ::pwrite(file, bytes.data() + written, bytes.size() - written, off_t(written));
    if (one <= 0) break;
    written += std::size_t(one);
  }
  return written;
}

TEST(DiskFaults, AFullDiskTakesHalfOfOneWrite) {
  TemporaryDirectory directory;
  const std::string page(16384, 'x');
  for (const auto& [error, last, first_takes] : {std::tuple(ENOSPC, kForEver, page.size() / 2), std::tuple(ENOSPC, std::int64_t{1}, std::size_t{0}),
                                                 std::tuple(EIO, kForEver, std::size_t{0})}) {
    const int file = ::open((directory.path() / "file").c_str(), O_RDWR | O_CREAT | O_TRUNC, 0600);
    ASSERT_GE(file, 0);
    disk_faults->Arm(directory.path().native(), error, 1, last);
    EXPECT_EQ(WrittenUntilItFails(file, page), first_takes);
    EXPECT_EQ(WrittenUntilItFails(file, page), last == 1 ? page.size() : 0u);
    disk_faults->Heal();
    ::close(file);
  }
}

TEST_P(SqliteDiskTest, EveryCallThatWrites) {
  std::int64_t call = 1;
  while (LiveWithFaultAt(call) && !HasFailure()) ++call;
  EXPECT_FALSE(HasFailure()) << "with the fault at call " << call;
  std::printf("the disk failed at each of %d calls\n", static_cast<int>(call - 1));
  EXPECT_GT(call, 100) << "is anything intercepted?";
}

// Entries used since the uses were last written must count as used even if the transaction that writes the uses, and evicts, fails.
TEST(SqliteDisk, UsesAreNotLostWithAFailedEviction) {
  TemporaryDirectory directory;
  const ManualClock clock;
  constexpr std::size_t kSize = 100'000;
  auto tier = SqliteTier::Open({.directory = directory.path(), .capacity = 1'000'000}, clock);
  ASSERT_TRUE(tier) << tier.error().message;
  int number = 0;
  while ((*tier)->Stats().bytes < 900'000) ASSERT_TRUE(PutAndWait(**tier, NumberedEntry(number++, kSize)));
  ASSERT_TRUE((*tier)->Get(KeyOf(0))->has_value());
  disk_faults->Arm(directory.path().native(), EIO, 1, kForEver);
  ASSERT_FALSE(PutAndWait(**tier, NumberedEntry(number, kSize)));
  disk_faults->Heal();
  ASSERT_TRUE(PutAndWait(**tier, NumberedEntry(number, kSize)));
  EXPECT_GT((*tier)->Stats().evictions, 0u);
  EXPECT_TRUE((*tier)->Get(KeyOf(0))->has_value()) << "the last one used was evicted first";
}

INSTANTIATE_TEST_SUITE_P(Faults, SqliteDiskTest,
                         ::testing::Values(Fault{"FullOnce", ENOSPC, false}, Fault{"FullFromThere", ENOSPC, true}, Fault{"BadOnce", EIO, false},
                                           Fault{"BadFromThere", EIO, true}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace kiln::cache
