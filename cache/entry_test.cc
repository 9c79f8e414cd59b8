// SPDX-License-Identifier: Apache-2.0
#include "cache/entry.h"

#include <gtest/gtest.h>

#include "cache/little_endian.h"
#include "cache/testing.h"

namespace kiln::cache {
namespace {

using testing::KeyOf;
using testing::MakeEntry;

TEST(Entry, RoundTrip) {
  const Entry sealed = MakeEntry(KeyOf(1), "the code", "about it");
  const auto entry = Unseal(std::string(sealed.sealed()));
  ASSERT_TRUE(entry) << entry.error().message;
  EXPECT_EQ(entry->key(), KeyOf(1));
  EXPECT_EQ(entry->metadata(), "about it");
  EXPECT_EQ(entry->blob("ptx"), "the code");
  EXPECT_EQ(entry->blob("info"), "launch info");
  EXPECT_EQ(entry->blob("cubin").data(), nullptr);
  EXPECT_EQ(entry->digest(), sealed.digest());
  EXPECT_EQ(entry->body_digest(), sealed.body_digest());
  EXPECT_EQ(std::string(entry->head()) + std::string(entry->body()), sealed.sealed());
}

TEST(Entry, EmptyAndZeroSizedPartsAreFine) {
  EXPECT_TRUE(Unseal(std::string(Seal(KeyOf(1), "", {})->sealed())));
  const BlobView blobs[] = {{"empty", ""}};
  const auto entry = Unseal(std::string(Seal(KeyOf(1), "", blobs)->sealed()));
  ASSERT_TRUE(entry);
  EXPECT_NE(entry->blob("empty").data(), nullptr) << "there, and empty";
}

TEST(Entry, ACopySharesTheBytes) {
  const Entry entry = MakeEntry(KeyOf(1), "code");
  const Entry copy = entry;
  EXPECT_EQ(copy.sealed().data(), entry.sealed().data());
  EXPECT_EQ(entry.shared_sealed()->data(), entry.sealed().data());
}

TEST(Entry, SealingIsDeterministic) { EXPECT_EQ(MakeEntry(KeyOf(1), "code").sealed(), MakeEntry(KeyOf(1), "code").sealed()); }

TEST(Entry, BodyDigestIgnoresKeyAndMetadata) {
  EXPECT_EQ(MakeEntry(KeyOf(1), "code", "a").body_digest(), MakeEntry(KeyOf(2), "code", "b").body_digest());
  EXPECT_NE(MakeEntry(KeyOf(1), "code").body_digest(), MakeEntry(KeyOf(1), "kode").body_digest());
  // Where one blob ends and the next begins matters.
  const BlobView one[] = {{"a", "xy"}, {"b", "z"}};
  const BlobView two[] = {{"a", "x"}, {"b", "yz"}};
  EXPECT_NE(Seal(KeyOf(1), "", one)->body_digest(), Seal(KeyOf(1), "", two)->body_digest());
}

TEST(Entry, EveryFlippedBitIsFound) {
  const std::string sealed(MakeEntry(KeyOf(1), "the code", "about it").sealed());
  for (std::size_t i = 0; i < sealed.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string damaged = sealed;
      damaged[i] = static_cast<char>(damaged[i] ^ 1 << bit);
      const auto entry = Unseal(std::move(damaged));
      ASSERT_FALSE(entry) << "byte " << i << " bit " << bit;
      EXPECT_EQ(entry.error().code, ErrorCode::kCorrupt);
    }
  }
}

TEST(Entry, EveryTruncationAndAnyTailIsFound) {
  const std::string sealed(MakeEntry(KeyOf(1), "the code").sealed());
  for (std::size_t size = 0; size < sealed.size(); ++size) ASSERT_FALSE(Unseal(sealed.substr(0, size))) << size;
  EXPECT_FALSE(Unseal(sealed + "x"));
}

// Somebody who can compute digests can make any head agree with itself.
std::string Reseal(std::string head) { return head + std::string(Sha256(head).view()); }

std::string ForgedHead(std::uint32_t blobs, std::uint32_t metadata, std::uint32_t names, std::uint64_t body, std::string rest) {
  std::string head = "KILNENT\n";
  for (const std::uint32_t field : {1u, blobs, metadata, names}) AppendLittleEndian(head, field);
  AppendLittleEndian(head, body);
  head += KeyOf(1).view();
  return Reseal(head + rest);
}

std::string ForgedPart(std::uint64_t size, std::uint32_t name_size) {
  std::string part;
  AppendLittleEndian(part, size);
  AppendLittleEndian(part, name_size);
  return part + std::string(Sha256("").view());
}

TEST(Entry, ForgedHeads) {
  EXPECT_TRUE(Unseal(ForgedHead(0, 0, 0, 0, ""))) << "the forger's baseline is sound";
  EXPECT_TRUE(Unseal(ForgedHead(1, 0, 1, 0, ForgedPart(0, 1) + "a")));
  EXPECT_FALSE(Unseal(ForgedHead(UINT32_MAX, 0, 0, 0, "")));
  EXPECT_FALSE(Unseal(ForgedHead(0, UINT32_MAX, 0, 0, "")));
  EXPECT_FALSE(Unseal(ForgedHead(1, 0, UINT32_MAX, 0, ForgedPart(0, 1))));
  EXPECT_FALSE(Unseal(ForgedHead(0, 0, 0, UINT64_MAX, "")));
  EXPECT_FALSE(Unseal(ForgedHead(0, 0, 0, 1, "")));
  EXPECT_FALSE(Unseal(ForgedHead(1, 0, 1, 0, ForgedPart(UINT64_MAX, 1) + "a"))) << "size beyond the body";
  EXPECT_FALSE(Unseal(ForgedHead(1, 0, 1, 0, ForgedPart(0, 2) + "a"))) << "name beyond the names";
  EXPECT_FALSE(Unseal(ForgedHead(1, 0, 1, 0, ForgedPart(0, 0) + "a"))) << "empty name";
  EXPECT_FALSE(Unseal(ForgedHead(2, 0, 2, 0, ForgedPart(0, 1) + ForgedPart(0, 1) + "aa"))) << "two of one name";
  EXPECT_FALSE(Unseal(ForgedHead(2, 0, 2, 0, ForgedPart(UINT64_MAX, 1) + ForgedPart(1, 1) + "ab"))) << "sum wraps";
}

TEST(Entry, HeadAlone) {
  const Entry entry = MakeEntry(KeyOf(1), "the code", "about it");
  const auto head = UnsealHead(entry.head());
  ASSERT_TRUE(head);
  EXPECT_EQ(head->key, KeyOf(1));
  EXPECT_EQ(head->digest, entry.digest());
  EXPECT_EQ(head->body_digest, entry.body_digest());
  EXPECT_EQ(head->metadata, "about it");
  EXPECT_EQ(head->sealed_size, entry.sealed().size());
  ASSERT_EQ(head->blobs.size(), 2u);
  EXPECT_EQ(head->blobs[0].name, "ptx");
  EXPECT_EQ(head->blobs[0].size, 8u);
  EXPECT_EQ(head->blobs[0].digest, Sha256("the code"));
  EXPECT_FALSE(UnsealHead(entry.sealed())) << "nothing may follow";
}

TEST(Entry, LimitsOfSealing) {
  const auto code = [](std::string_view metadata, std::span<const BlobView> blobs) { return Seal(KeyOf(1), metadata, blobs).error().code; };
  const BlobView twice[] = {{"a", "1"}, {"a", "2"}};
  EXPECT_EQ(code("", twice), ErrorCode::kInvalid);
  const BlobView nameless[] = {{"", "1"}};
  EXPECT_EQ(code("", nameless), ErrorCode::kInvalid);
  const std::string long_name(Entry::kMaxNameSize + 1, 'n');
  const BlobView long_named[] = {{long_name, "1"}};
  EXPECT_EQ(code("", long_named), ErrorCode::kInvalid);
  EXPECT_EQ(code(std::string(Entry::kMaxMetadataSize + 1, 'm'), {}), ErrorCode::kInvalid);
  std::vector<std::string> names;
  for (std::size_t i = 0; i <= Entry::kMaxBlobs; ++i) names.push_back(std::to_string(i));
  std::vector<BlobView> many;
  for (const auto& name : names) many.push_back({name, ""});
  EXPECT_EQ(code("", many), ErrorCode::kInvalid);
  many.pop_back();
  const auto most = Seal(KeyOf(1), "", many);
  ASSERT_TRUE(most);
  EXPECT_TRUE(Unseal(std::string(most->sealed())));
}

}  // namespace
}  // namespace kiln::cache
