// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle/bundle_tier.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <thread>

#include "cache/bundle/bundle.h"
#include "cache/memory_tier.h"
#include "cache/testing/store.h"
#include "cache/tiered.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::KeyOf;
using testing::MakeEntry;
using testing::NumberedEntry;

constexpr std::size_t kBody = 10'000;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class BundleTierTest : public testing::StoreTest {
 protected:
  // A bundle of the entries [first, last).
  fs::path Bundle(const char* name, int first, int last) {
    auto store = OpenStore({.directory = directory / "of" / name});
    for (int i = first; store && i < last; ++i) store->Put(NumberedEntry(i, kBody));
    EXPECT_TRUE(store && store->Flush() && ExportBundle(*store, directory / name));
    return directory / name;
  }
  // Another file in its place, as a package manager would put it there.
  void Replace(const fs::path& file, std::string_view bytes) {
    const fs::path fresh = file.native() + ".new";
    std::ofstream(fresh, std::ios::binary) << bytes;
    fs::rename(fresh, file);
  }
  std::expected<std::unique_ptr<BundleTier>, Error> TryOpen(std::vector<fs::path> files) {
    BundleOptions options{.files = std::move(files)};
    options.take_in = [this](const Entry& entry) -> std::expected<Entry, std::string> {
      ++offered;
      if (refuses && refuses(entry)) return std::unexpected("nobody trusts it");
      return entry;
    };
    options.on_damage = [this](const Error& error) { damage.push_back(error.message); };
    options.on_refused = [this](const fs::path& file, const Digest& key, std::string_view why) {
      refusals.push_back(file.filename().string() + ": " + std::string(why));
      EXPECT_NE(key, Digest());
    };
    return BundleTier::Open(std::move(options));
  }
  std::unique_ptr<BundleTier> Open(std::vector<fs::path> files) {
    auto tier = TryOpen(std::move(files));
    if (!tier) ADD_FAILURE() << tier.error().message;
    return tier ? std::move(*tier) : nullptr;
  }
  static void ExpectServes(BundleTier& tier, int first, int last) {
    for (int i = first; i < last; ++i) {
      const auto found = tier.Get(KeyOf(i));
      ASSERT_TRUE(found) << found.error().message;
      ASSERT_TRUE(*found) << i;
      ASSERT_EQ((*found)->sealed(), NumberedEntry(i, kBody).sealed());
    }
  }

  std::atomic<int> offered = 0;
  std::function<bool(const Entry&)> refuses;
  std::vector<std::string> damage, refusals;
};

TEST_F(BundleTierTest, ServesWhatIsThere) {
  auto tier = Open({Bundle("bundle", 0, 200)});
  EXPECT_EQ(offered, 0) << "no body is read before somebody asks";
  ExpectServes(*tier, 0, 200);
  EXPECT_EQ(offered, 200);
  EXPECT_FALSE(tier->Get(KeyOf(200))->has_value());
  const TierStats stats = tier->Stats();
  EXPECT_EQ(stats.entries, 200u);
  std::uint64_t bytes = 0;
  for (int i = 0; i < 200; ++i) bytes += NumberedEntry(i, kBody).sealed().size();
  EXPECT_EQ(stats.bytes, bytes);
  EXPECT_EQ(stats.hits, 200u);
  EXPECT_EQ(stats.misses, 1u);
  EXPECT_EQ(stats.corrupt + stats.errors + stats.refused, 0u);
  EXPECT_FALSE(stats.read_only) << "no disk is full";
  EXPECT_TRUE(tier->available());
  EXPECT_TRUE(damage.empty());
}

TEST_F(BundleTierTest, TakesAndLosesNothing) {
  const fs::path file = Bundle("bundle", 0, 3);
  const std::string before = ReadFile(file);
  auto tier = Open({file});
  const auto put = PutAndWait(*tier, NumberedEntry(7));
  ASSERT_FALSE(put);
  EXPECT_EQ(put.error().code, ErrorCode::kInvalid);
  const auto erased = tier->Erase(KeyOf(1));
  ASSERT_FALSE(erased);
  EXPECT_EQ(erased.error().code, ErrorCode::kInvalid);
  ExpectServes(*tier, 0, 3);
  EXPECT_EQ(ReadFile(file), before);
}

TEST_F(BundleTierTest, AnEmptyBundleIsOne) {
  auto tier = Open({Bundle("bundle", 0, 0)});
  EXPECT_FALSE(tier->Get(KeyOf(0))->has_value());
  EXPECT_FALSE(tier->Sample(0)->has_value());
  EXPECT_TRUE(damage.empty());
}

TEST_F(BundleTierTest, AFileThatOthersCouldChangeIsRefused) {
  const auto code = [this](const fs::path& file) {
    const auto open = TryOpen({file});
    EXPECT_TRUE(open || open.error().message.find(file.native()) != std::string::npos) << open.error().message;
    return open ? ErrorCode::kClosed : open.error().code;
  };
  const fs::path file = Bundle("bundle", 0, 3);
  EXPECT_EQ(code(directory / "missing"), ErrorCode::kUnreachable);
  EXPECT_EQ(code(directory / "of"), ErrorCode::kRefused) << "a folder";
  fs::create_symlink(file, directory / "link");
  EXPECT_EQ(code(directory / "link"), ErrorCode::kRefused);
  ASSERT_EQ(::mkfifo((directory / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(code(directory / "pipe"), ErrorCode::kRefused);
  ASSERT_EQ(::chmod(file.c_str(), 0646), 0);
  EXPECT_EQ(code(file), ErrorCode::kRefused);
  ASSERT_EQ(::chmod(file.c_str(), 0664), 0);
  EXPECT_TRUE(Open({file}));
  if (::geteuid() != 0) return;  // only root can give it away
  ASSERT_EQ(::chown(file.c_str(), 4242, 4242), 0);
  EXPECT_EQ(code(file), ErrorCode::kRefused);
}

TEST_F(BundleTierTest, AnythingElseIsRefused) {
  std::ofstream(directory / "other") << "PK\003\004 something else entirely";
  EXPECT_EQ(TryOpen({directory / "other"}).error().code, ErrorCode::kCorrupt);
  std::ofstream(directory / "nothing") << "";
  EXPECT_EQ(TryOpen({directory / "nothing"}).error().code, ErrorCode::kCorrupt);
  std::ofstream(directory / "newer") << std::string("KILNBUN\n\2\0\0\0", 12);
  EXPECT_EQ(TryOpen({directory / "newer"}).error().code, ErrorCode::kInvalid);
}

TEST_F(BundleTierTest, TheFirstFileGivesWhatItHas) {
  const fs::path one = Bundle("one", 0, 3), two = Bundle("two", 2, 5);
  auto tier = Open({one, two});
  ExpectServes(*tier, 0, 5);
  const auto files = tier->Files();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[1].path, two);
  EXPECT_EQ(files[1].entries, 3u);
  const Entry other = MakeEntry(KeyOf(2), "other");
  auto store = OpenStore({.directory = directory / "store"});
  ASSERT_TRUE(PutAndWait(*store, other));
  ASSERT_TRUE(ExportBundle(*store, directory / "other"));
  EXPECT_EQ((*Open({directory / "other", one})->Get(KeyOf(2)))->digest(), other.digest());
  EXPECT_NE((*Open({one, directory / "other"})->Get(KeyOf(2)))->digest(), other.digest());
}

TEST_F(BundleTierTest, WhatIsRefusedIsCountedAndToldOnceOfEachFile) {
  const fs::path one = Bundle("one", 0, 4), two = Bundle("two", 3, 5);
  refuses = [this](const Entry&) { return offered != 5; };
  auto tier = Open({one, two});
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(tier->Get(KeyOf(i))->has_value());
  EXPECT_EQ(tier->Stats().refused, 3u);
  EXPECT_EQ(refusals, std::vector<std::string>{"one: nobody trusts it"});
  EXPECT_TRUE(tier->Get(KeyOf(3))->has_value()) << "that of the other file is trusted";
  EXPECT_EQ(tier->Stats().refused, 4u);
  EXPECT_FALSE(tier->Get(KeyOf(4))->has_value());
  EXPECT_EQ(refusals, (std::vector<std::string>{"one: nobody trusts it", "two: nobody trusts it"}));
  refuses = {};
  ExpectServes(*tier, 0, 5);
  EXPECT_EQ(tier->Stats().corrupt, 0u);
  BundleOptions nobody{.files = {one}};
  EXPECT_FALSE((*BundleTier::Open(std::move(nobody)))->Get(KeyOf(0))->has_value()) << "without take_in";
}

TEST_F(BundleTierTest, ASampleIsTakenInAndTellsEarly) {
  const fs::path file = Bundle("bundle", 0, 4);
  auto tier = Open({file});
  const auto sample = tier->Sample(0);
  ASSERT_TRUE(sample && *sample);
  EXPECT_EQ(tier->Stats().hits, 0u);
  refuses = [](const Entry&) { return true; };
  EXPECT_FALSE(tier->Sample(0)->has_value());
  EXPECT_EQ(refusals.size(), 1u);
}

TEST_F(BundleTierTest, EachCutIsServedInPart) {
  const fs::path file = Bundle("bundle", 0, 20);
  const std::string whole = ReadFile(file);
  std::size_t most = 0;
  for (std::size_t cut = 12; cut < whole.size(); cut = cut + 997 < whole.size() || cut + 1 == whole.size() ? cut + 997 : whole.size() - 1) {
    Replace(file, whole.substr(0, cut));
    damage.clear();
    auto tier = Open({file});
    EXPECT_EQ(damage.size(), 1u) << cut;
    std::size_t served = 0;
    for (int i = 0; i < 20; ++i) {
      const auto found = tier->Get(KeyOf(i));
      ASSERT_TRUE(found) << found.error().message;
      if (!*found) continue;
      ASSERT_EQ((*found)->sealed(), NumberedEntry(i, kBody).sealed());
      ++served;
    }
    EXPECT_EQ(served, tier->Stats().entries);
    EXPECT_GE(served, most);
    most = served;
  }
  EXPECT_EQ(most, 20u);
}

TEST_F(BundleTierTest, NoDamageIsServed) {
  const fs::path file = Bundle("bundle", 0, 6);
  const std::string whole = ReadFile(file);
  for (std::size_t at = 0; at < whole.size(); at += 61) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    Replace(file, damaged);
    damage.clear();
    auto open = TryOpen({file});
    if (!open) {
      EXPECT_LT(at, 12u);
      continue;
    }
    BundleTier& tier = **open;
    int lost = 0, corrupt = 0;
    for (int i = 0; i < 6; ++i) {
      const auto found = tier.Get(KeyOf(i));
      if (!found) {
        EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
        EXPECT_NE(found.error().message.find(file.native()), std::string::npos);
        EXPECT_FALSE(tier.Get(KeyOf(i))->has_value()) << "left out";
        ++corrupt;
      }
      if (!found || !*found) ++lost;
      else ASSERT_EQ((*found)->sealed(), NumberedEntry(i, kBody).sealed());
    }
    // Each byte but those of the end's digest is noticed: at the start, or by who asks for the entry.
    EXPECT_TRUE(lost > 0 || !damage.empty() || at >= whole.size() - Digest::kSize) << at;
    EXPECT_EQ(tier.Stats().entries, 6u - static_cast<unsigned>(lost)) << at;
    EXPECT_TRUE(tier.available());
    EXPECT_EQ(corrupt > 0, tier.Stats().corrupt > tier.Files().front().damaged);
  }
}

TEST_F(BundleTierTest, AFileThatIsCutWhileItIsServed) {
  const fs::path file = Bundle("bundle", 0, 20);
  auto tier = Open({file, Bundle("other", 20, 22)});
  ExpectServes(*tier, 0, 3);
  fs::resize_file(file, 100);
  const auto found = tier->Get(KeyOf(4));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(found.error().message.find("was changed"), std::string::npos) << found.error().message;
  for (int i = 0; i < 20; ++i) EXPECT_FALSE(tier->Get(KeyOf(i))->has_value()) << "told once, and no entry of it is asked for again";
  EXPECT_EQ(tier->Stats().corrupt, 1u);
  EXPECT_EQ(tier->Stats().entries, 2u);
  EXPECT_EQ(tier->losses(), 1u);
  EXPECT_TRUE(tier->available());
  ExpectServes(*tier, 20, 22);
  fs::resize_file(directory / "other", 0);
  EXPECT_FALSE(tier->Get(KeyOf(20)));
  EXPECT_FALSE(tier->available());
}

// Reads fail as from a disk that is gone: the descriptor is another's meanwhile, one that cannot be read.
TEST_F(BundleTierTest, AnErrorOfTheDiskLosesNothing) {
  const fs::path file = Bundle("bundle", 0, 5);
  auto tier = Open({file});
  int descriptor = -1;
  for (const auto& open : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    if (fs::read_symlink(open, gone) == fs::canonical(file)) descriptor = std::stoi(open.path().filename());
  }
  ASSERT_GE(descriptor, 0);
  const int kept = ::dup(descriptor), other = ::open("/dev/null", O_WRONLY);
  ASSERT_EQ(::dup2(other, descriptor), descriptor);
  const auto found = tier->Get(KeyOf(1));
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code, ErrorCode::kUnreachable);
  EXPECT_EQ(tier->Stats().errors, 1u);
  EXPECT_EQ(tier->Stats().corrupt, 0u);
  ASSERT_EQ(::dup2(kept, descriptor), descriptor);
  ExpectServes(*tier, 0, 5);
  ::close(kept);
  ::close(other);
}

TEST_F(BundleTierTest, AFileThatIsReplacedIsServedAsItWas) {
  const fs::path file = Bundle("bundle", 0, 20);
  auto tier = Open({file});
  Replace(file, ReadFile(Bundle("next", 30, 50)));
  ExpectServes(*tier, 0, 20);
  fs::remove(file);
  ExpectServes(*tier, 0, 20);
}

TEST_F(BundleTierTest, ManyReadWhileItIsCut) {
  const fs::path file = Bundle("bundle", 0, 100);
  auto tier = Open({file});
  std::atomic<int> hits = 0, wrong = 0;
  std::atomic<bool> stop = false;
  std::vector<std::thread> readers;
  for (int t = 0; t < 4; ++t) {
    readers.emplace_back([&, t] {
      for (int i = t; !stop; ++i) {
        const auto found = tier->Get(KeyOf(i % 100));
        if (!found || !*found) continue;
        if ((*found)->sealed() == NumberedEntry(i % 100, kBody).sealed()) ++hits;
        else ++wrong;
      }
    });
  }
  while (hits < 200) std::this_thread::yield();
  for (std::uintmax_t size = fs::file_size(file); size > 0; size = size > 50'000 ? size - 50'000 : 0) fs::resize_file(file, size);
  while (tier->available()) std::this_thread::yield();
  stop = true;
  for (auto& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0);
}

TEST_F(BundleTierTest, InACacheItComesBehindWhatIsWritten) {
  const std::shared_ptr<SqliteTier> disk = OpenStore({.directory = directory / "store"});
  auto memory = std::make_shared<MemoryTier>(MemoryTier::Options{});
  std::shared_ptr<BundleTier> bundle = Open({Bundle("bundle", 0, 5)});
  TieredCache cache({memory, disk, bundle}, clock, {.accept = [](const Entry&) { return false; }});
  const auto hit = cache.Get(KeyOf(1));
  ASSERT_TRUE(hit) << "only what is written here is asked for this host's seal";
  EXPECT_TRUE(hit->read_only);
  EXPECT_TRUE(hit->durable);
  EXPECT_FALSE(hit->outside);
  EXPECT_TRUE(cache.GetWithoutBlocking(KeyOf(1))->durable);
  EXPECT_EQ(offered, 1);
  ASSERT_TRUE(disk->Flush());
  EXPECT_EQ(disk->Stats().entries, 0u) << "it is on this host already";

  const Entry newer = MakeEntry(KeyOf(2), "newer");
  std::promise<bool> kept;
  cache.Put(newer, [&](std::expected<void, Error> outcome) { kept.set_value(outcome.has_value()); });
  EXPECT_TRUE(kept.get_future().get()) << "the bundle is no part of a put";
  TieredCache next_start({std::make_shared<MemoryTier>(MemoryTier::Options{}), disk, bundle}, clock, {});
  EXPECT_EQ(next_start.Get(KeyOf(2))->entry.digest(), newer.digest());
  EXPECT_EQ(next_start.Erase(KeyOf(2)), true);
  EXPECT_EQ(next_start.Get(KeyOf(2))->entry.digest(), NumberedEntry(2, kBody).digest());
  EXPECT_EQ(next_start.Erase(KeyOf(3)), false) << "a bundle's is not erased, and nothing fails";
}

}  // namespace
}  // namespace kiln::cache
