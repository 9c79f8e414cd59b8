// SPDX-License-Identifier: Apache-2.0
//
// A process that writes is killed at some moment; whatever it had been told is stored must be there afterwards.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cache/sqlite/sqlite_tier.h"
#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::ManualClock;
using testing::NumberedEntry;
using testing::TemporaryDirectory;

constexpr std::size_t kSize = 30'000;

SqliteOptions OptionsFor(const std::filesystem::path& directory) {
  SqliteOptions options;
  options.directory = directory;
  options.checkpoint_bytes = 200'000;  // so that checkpoints are among what is interrupted
  options.wal_limit = 400'000;
  return options;
}

// Writes entries from `first` on and reports each number once it is committed, for ever.
[[noreturn]] void WriteForEver(const std::filesystem::path& directory, int first, int report) {
  const ManualClock clock;
  auto tier = SqliteTier::Open(OptionsFor(directory), clock);
  if (!tier) _exit(1);
  for (int number = first;; ++number) {
    (*tier)->Put(NumberedEntry(1'000'000 + number, kSize));  // company in the group commit
    if (!PutAndWait(**tier, NumberedEntry(number, kSize))) _exit(2);
    if (write(report, &number, sizeof number) != sizeof number) _exit(3);
  }
}

// Kills the writer after `commits` reports, somewhere in the following one; the last number it reported.
int WriteAndKill(const std::filesystem::path& directory, int first, int commits) {
  int pipes[2];
  if (pipe(pipes) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) WriteForEver(directory, first, pipes[1]);
  close(pipes[1]);
  int last = first - 1;
  int number = 0;
  while (read(pipes[0], &number, sizeof number) == sizeof number) {
    last = number;
    if (number == first + commits) {
      usleep(static_cast<useconds_t>(37 * commits % 500));  // paces the kills: each finds the child at another place
      kill(child, SIGKILL);
    }
  }
  close(pipes[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself: " << WEXITSTATUS(status);
  return last;
}

TEST(SqliteTierKill, NothingCommittedIsLost) {
  TemporaryDirectory directory;
  int next = 0;
  for (const int commits : {3, 17, 29, 40, 61}) {
    const int last = WriteAndKill(directory.path(), next, commits);
    ASSERT_GE(last, next + commits);
    next = last + 1;

    const ManualClock clock;
    auto tier = SqliteTier::Open(OptionsFor(directory.path()), clock);
    ASSERT_TRUE(tier) << tier.error().message;
    for (int number = 0; number < next; ++number) {
      const auto found = (*tier)->Get(KeyOf(number));
      ASSERT_TRUE(found) << found.error().message;
      ASSERT_TRUE(*found) << "entry " << number << " of " << next;
    }
    const auto report = (*tier)->Verify();
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_EQ(report->corrupt, 0u);
    EXPECT_FALSE(report->store_damaged);
    EXPECT_EQ((*tier)->Stats().set_aside, 0u);
  }
}

}  // namespace
}  // namespace kiln::cache
