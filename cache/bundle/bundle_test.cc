// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle/bundle.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "cache/memory_tier.h"
#include "cache/testing/store.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;
using testing::KeyOf;
using testing::NumberedEntry;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteFile(const fs::path& path, std::string_view bytes) { std::ofstream(path, std::ios::binary) << bytes; }

class BundleTest : public testing::StoreTest {
 protected:
  std::unique_ptr<SqliteTier> Store(const char* name, int entries) {
    auto tier = OpenStore({.directory = directory / name});
    for (int i = 0; tier && i < entries; ++i) tier->Put(NumberedEntry(i, 2'000));
    EXPECT_TRUE(tier && tier->Flush());
    return tier;
  }
};

TEST_F(BundleTest, RoundTrip) {
  auto from = Store("from", 600);
  const auto exported = ExportBundle(*from, directory / "bundle");
  ASSERT_TRUE(exported) << exported.error().message;
  EXPECT_EQ(exported->entries, 600u);
  auto into = Store("into", 0);
  const auto imported = ImportBundle(directory / "bundle", *into);
  ASSERT_TRUE(imported) << imported.error().message;
  EXPECT_EQ(imported->entries, 600u);
  EXPECT_EQ(imported->bytes, exported->bytes);
  for (int i = 0; i < 600; ++i) {
    ASSERT_EQ((**into->Get(KeyOf(i))).sealed(), NumberedEntry(i, 2'000).sealed());
  }
  ASSERT_TRUE(ExportBundle(*into, directory / "again"));
  EXPECT_EQ(ReadFile(directory / "again"), ReadFile(directory / "bundle")) << "same entries, same bytes";
  EXPECT_FALSE(fs::exists(directory / "again.partial"));
}

TEST_F(BundleTest, Filter) {
  auto from = Store("from", 100);
  const auto exported = ExportBundle(*from, directory / "bundle", [](const EntryInfo& info) { return info.metadata.ends_with("5"); });
  EXPECT_EQ(exported->entries, 10u);
}

TEST_F(BundleTest, ADamagedBundleGivesWhatIsWholeAndNothingWrong) {
  auto from = Store("from", 20);
  ASSERT_TRUE(ExportBundle(*from, directory / "bundle"));
  const std::string whole = ReadFile(directory / "bundle");
  for (std::size_t cut = 0; cut < whole.size(); cut += 997) {
    WriteFile(directory / "cut", whole.substr(0, cut));
    MemoryTier into({});
    BundleReport report;
    const auto imported = ImportBundle(directory / "cut", into, &report);
    ASSERT_FALSE(imported);
    EXPECT_EQ(imported.error().code, ErrorCode::kCorrupt);
    EXPECT_EQ(into.Stats().entries, report.entries);
  }
  for (std::size_t at = 0; at < whole.size(); at += 61) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x40);
    WriteFile(directory / "damaged", damaged);
    MemoryTier into({});
    ASSERT_FALSE(ImportBundle(directory / "damaged", into)) << at;
    for (int i = 0; i < 20; ++i) {
      const auto found = into.Get(KeyOf(i));
      if (*found) {
        ASSERT_EQ((*found)->sealed(), NumberedEntry(i, 2'000).sealed());
      }
    }
  }
}

TEST_F(BundleTest, AnythingElseIsRefused) {
  MemoryTier into({});
  EXPECT_EQ(ImportBundle(directory / "missing", into).error().code, ErrorCode::kUnreachable);
  WriteFile(directory / "other", "PK\003\004 something else entirely");
  EXPECT_EQ(ImportBundle(directory / "other", into).error().code, ErrorCode::kCorrupt);
  std::string newer("KILNBUN\n\2\0\0\0", 12);
  WriteFile(directory / "newer", newer);
  EXPECT_EQ(ImportBundle(directory / "newer", into).error().code, ErrorCode::kInvalid);
  std::string liar("KILNBUN\n\1\0\0\0\377\377\377\377\377\377\377\377", 20);
  WriteFile(directory / "liar", liar);
  EXPECT_EQ(ImportBundle(directory / "liar", into).error().code, ErrorCode::kCorrupt);
}

TEST_F(BundleTest, AnExportThatCannotBeWrittenSaysSo) {
  auto from = Store("from", 3);
  EXPECT_FALSE(ExportBundle(*from, directory / "no such folder" / "bundle"));
}

}  // namespace
}  // namespace kiln::cache
