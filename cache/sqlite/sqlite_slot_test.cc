// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite_slot.h"

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "cache/memory_tier.h"
#include "cache/testing/store.h"
#include "cache/tiered.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::KeyOf;
using testing::NumberedEntry;

class SqliteSlotTest : public testing::StoreTest {
 protected:
  void SetUp() override {
    options.store.directory = directory / "store";
    options.store.on_event = [this](const Error&) { ++events; };
    options.on_open = [this] { opened.set_value(); };
    options.between_tries = std::chrono::milliseconds(20);
    fs::create_directories(options.store.directory / "lock");  // a folder cannot be locked
  }
  void Mend() { fs::remove(options.store.directory / "lock"); }
  static bool Reaches(const std::atomic<int>& count, int wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (count < wanted && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(std::chrono::milliseconds(5));  // between looks
    return count >= wanted;
  }
  bool WaitForOpen() { return opened.get_future().wait_for(std::chrono::seconds(30)) == std::future_status::ready; }

  std::atomic<int> events = 0;
  std::promise<void> opened;
  SqliteSlot::Options options;
};

TEST_F(SqliteSlotTest, AStoreThatCannotBeOpenedIsDownAndComesLater) {
  auto slot = std::make_shared<SqliteSlot>(options, clock);
  ASSERT_FALSE(slot->Open());
  TieredCache cache({std::make_shared<MemoryTier>(MemoryTier::Options{}), slot}, clock, {});
  slot->KeepTrying();
  cache.Put(NumberedEntry(1));
  EXPECT_TRUE(cache.Get(KeyOf(1))) << "memory serves";
  EXPECT_FALSE(cache.Get(KeyOf(2)));
  EXPECT_FALSE(cache.Erase(KeyOf(2))) << "what could not be asked may still be there";
  ASSERT_EQ(cache.Report().size(), 2u);
  EXPECT_EQ(cache.Report()[1].name, "sqlite");
  EXPECT_FALSE(cache.Report()[1].enabled);
  ASSERT_TRUE(Reaches(events, 1)) << "why";

  Mend();
  ASSERT_TRUE(WaitForOpen());
  EXPECT_TRUE(cache.Report()[1].enabled) << "at once, though nobody asked it for anything";
  cache.Put(NumberedEntry(3));
  ASSERT_TRUE(slot->store()->Flush());
  EXPECT_TRUE(slot->Get(KeyOf(3))->has_value());
}

TEST_F(SqliteSlotTest, AStoreThatMayNotBeUsedIsLeftClosed) {
  std::atomic<bool> may = false;
  std::atomic<int> asked = 0;
  options.may_use = [&]() -> std::expected<void, Error> {
    ++asked;
    if (!may) return Fail(ErrorCode::kRefused, "not yet");
    return {};
  };
  SqliteSlot slot(options, clock);
  ASSERT_FALSE(slot.Open());
  Mend();
  slot.KeepTrying();
  ASSERT_TRUE(Reaches(asked, 3));
  EXPECT_FALSE(slot.available());
  EXPECT_EQ(events, 1) << "the same reason is told once";
  may = true;
  EXPECT_TRUE(WaitForOpen());
}

TEST_F(SqliteSlotTest, EndsWhileItTries) {
  options.between_tries = std::chrono::hours(1);
  SqliteSlot slot(options, clock);
  ASSERT_FALSE(slot.Open());
  slot.KeepTrying();
}

}  // namespace
}  // namespace kiln::cache
