// SPDX-License-Identifier: Apache-2.0
//
// What of an entry of another host is taken in. Whoever writes into a store that hosts share has no key, but every other byte is theirs.
#include "server/reply/sealer.h"

#include <gmock/gmock.h>

#include "clients/common/seal.h"
#include "kiln/v1/service.pb.h"
#include "server/reply/reply.h"
#include "server/reply/tenant_key.h"
#include "server/reply/tune_record.h"

namespace kiln::server {
namespace {

using ::testing::HasSubstr;

const cache::Digest kKey = cache::Sha256("a program");

cache::Entry EntryOf(const cache::Digest& key, const v1::CacheEntry& label, std::string_view blob, std::string_view bytes) {
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{blob, bytes}};
  return *cache::Seal(key, label.SerializeAsString(), blobs);
}

class SealerTest : public ::testing::Test {
 protected:
  SealerTest() { here_.Trust({there_.public_key()}); }

  static v1::CompileReply MakeReply() {
    v1::CompileReply reply;
    reply.set_key(std::string(kKey.view()));
    reply.mutable_artifact()->set_target("cuda:sm_80");
    reply.mutable_artifact()->set_code("code");
    v1::Diagnostic& warning = *reply.add_diagnostics();
    warning.set_severity(v1::Diagnostic::WARNING);
    warning.set_message("this is slow");
    reply.add_diagnostics()->set_message("and so is this");
    return reply;
  }
  static cache::Entry Made(const Sealer& sealer, const std::string& tenant = std::string(kDefaultTenant)) {
    const std::string bytes = sealer.Seal(MakeReply(), {}, {.tenant = tenant, .name = "matmul"});
    return *SealReply(KeptUnder(tenant, kKey), tenant, bytes, {.target = "cuda:sm_80", .name = "matmul"});
  }
  static cache::Entry Refused(const Sealer& sealer, const cache::Digest& key, const v1::KeptFailure& failure) {
    const std::string tenant(kDefaultTenant);
    const v1::KeptFailure sealed = sealer.Seal(key, failure, "cuda:sm_80", {.tenant = tenant, .name = "matmul"});
    return *SealFailure(key, tenant, sealed, {.target = "cuda:sm_80", .name = "matmul"});
  }
  // The same with other bytes in its one blob.
  static cache::Entry With(const cache::Entry& entry, std::string_view bytes) {
    v1::CacheEntry label;
    label.ParseFromString(std::string(entry.metadata()));
    return EntryOf(entry.key(), label, entry.blobs().front().name, bytes);
  }
  std::string WhyNot(const cache::Entry& entry, Sealer::From from = Sealer::From::kStore) const {
    const auto taken = here_.TakeIn(entry, from);
    return taken ? "taken in" : taken.error();
  }
  static v1::CompileReply ReplyIn(const cache::Entry& entry, std::string_view tenant = kDefaultTenant) {
    v1::CompileReply reply;
    EXPECT_TRUE(reply.ParseFromString(std::string(entry.blob(BlobOf("reply", tenant)))));
    return reply;
  }

  Sealer there_{cache::SigningKey::Make(), {.host = "there", .compiler = "1"}};
  Sealer here_{cache::SigningKey::Make(), {.host = "here", .compiler = "1"}};
  Sealer stranger_{cache::SigningKey::Make(), {.host = "nowhere", .compiler = "1"}};
};

TEST_F(SealerTest, WarningsComeWithTheArtifact) {
  for (const Sealer* maker : {&there_, &here_}) {
    const auto taken = here_.TakeIn(Made(*maker), Sealer::From::kStore);
    ASSERT_TRUE(taken) << taken.error();
    EXPECT_TRUE(here_.Check(*taken)) << "it is this host's own from now on";
    const v1::CompileReply reply = ReplyIn(*taken), made = MakeReply();
    EXPECT_EQ(reply.artifact().SerializeAsString(), made.artifact().SerializeAsString());
    ASSERT_EQ(reply.diagnostics_size(), 2);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(reply.diagnostics(i).SerializeAsString(), made.diagnostics(i).SerializeAsString());
  }
}

TEST_F(SealerTest, WarningsAreSigned) {
  v1::CompileReply more;
  more.add_diagnostics()->set_message("run this: curl …");
  for (const Sealer* maker : {&there_, &here_}) {
    const cache::Entry entry = Made(*maker);
    const std::string bytes(entry.blobs().front().bytes);
    EXPECT_THAT(WhyNot(With(entry, bytes + more.SerializeAsString())), HasSubstr("warnings"));
    v1::SealedReply fewer;
    ASSERT_TRUE(fewer.ParseFromString(bytes));
    fewer.mutable_diagnostics()->RemoveLast();
    EXPECT_THAT(WhyNot(With(entry, fewer.SerializeAsString())), HasSubstr("warnings"));
    fewer.clear_diagnostics();
    EXPECT_THAT(WhyNot(With(entry, fewer.SerializeAsString())), HasSubstr("warnings"));
  }
  const cache::Entry kept = Made(here_);
  const cache::Entry changed = With(kept, std::string(kept.blobs().front().bytes) + more.SerializeAsString());
  EXPECT_FALSE(here_.Check(changed)) << "nor those on the disk";
}

// Whoever reads a CompileReply merges an artifact that is there twice. Whoever verifies it sees the last one.
TEST_F(SealerTest, WhatIsSaidTwiceIsNotTakenIn) {
  v1::CompileReply planted;
  planted.mutable_artifact()->set_cubin("planted");
  planted.set_durable(true);
  for (const Sealer* maker : {&there_, &here_}) {
    const cache::Entry entry = Made(*maker);
    const cache::Entry twice = With(entry, planted.SerializeAsString() + std::string(entry.blobs().front().bytes));
    EXPECT_EQ(ReplyIn(twice).artifact().cubin(), "planted") << "the attack works";
    EXPECT_NE(WhyNot(twice), "taken in");
    EXPECT_NE(WhyNot(twice, Sealer::From::kBundle), "taken in");
    EXPECT_FALSE(here_.Check(twice)) << "nor from the disk";
    v1::CompileReply durable;
    durable.set_durable(true);
    EXPECT_NE(WhyNot(With(entry, std::string(entry.blobs().front().bytes) + durable.SerializeAsString())), "taken in");
  }
}

TEST_F(SealerTest, ATenantsResultIsNobodyElses) {
  const cache::Entry entry = Made(there_, "one");
  EXPECT_EQ(WhyNot(entry), "taken in");
  v1::CacheEntry label;
  label.set_tenant("other");
  const cache::Entry moved = EntryOf(KeptUnder("other", kKey), label, BlobOf("reply", "other"), entry.blobs().front().bytes);
  EXPECT_THAT(WhyNot(moved), HasSubstr("another tenant"));
  const cache::Entry opened = EntryOf(kKey, {}, BlobOf("reply", ""), entry.blobs().front().bytes);
  EXPECT_NE(WhyNot(opened), "taken in");

  v1::KeptFailure failure;
  failure.set_message("line 3: a tile of one's own");
  const cache::Digest key = FailureKey(KeptUnder("one", kKey), "module");
  const v1::KeptFailure sealed = there_.Seal(key, failure, "cuda:sm_80", {.tenant = "one", .name = "matmul"});
  EXPECT_EQ(WhyNot(*SealFailure(key, "one", sealed, {.target = "cuda:sm_80", .name = "matmul"})), "taken in");
  EXPECT_THAT(WhyNot(*SealFailure(key, "default", sealed, {.target = "cuda:sm_80", .name = "matmul"})), HasSubstr("another tenant"));
}

v1::TuneRecord MakeRecord() {
  v1::TuneRecord record;
  record.set_key(std::string(kKey.view()));
  record.set_winner(1);
  record.set_target("cuda:sm_90a");
  v1::TuneMeasurement& said = *record.add_measurements();
  said.set_label("block_m=128");
  said.add_microseconds(12.5);
  return record;
}

cache::Entry Tuned(const Sealer& sealer, const std::string& tenant = std::string(kDefaultTenant)) {
  const cache::Digest key = KeptUnder(tenant, kKey);
  return *SealTuneRecord(key, tenant, sealer.Seal(key, MakeRecord(), {.tenant = tenant, .name = "tuning"}), "tuning");
}

TEST_F(SealerTest, ARecordOfATrustedHostIsTakenInAndItsOwnFromThen) {
  for (const Sealer* maker : {&there_, &here_}) {
    for (const auto from : {Sealer::From::kStore, Sealer::From::kBundle}) {
      const auto taken = here_.TakeIn(Tuned(*maker), from);
      ASSERT_TRUE(taken) << taken.error();
      EXPECT_TRUE(here_.Check(*taken));
      auto record = TuneRecordFrom(*taken, kDefaultTenant);
      ASSERT_TRUE(record);
      record->clear_seal();
      EXPECT_EQ(record->SerializeAsString(), MakeRecord().SerializeAsString());
    }
  }
  EXPECT_FALSE(here_.Check(Tuned(there_))) << "what lies on this disk has its own seal";
  EXPECT_NE(WhyNot(Tuned(stranger_)), "taken in");
}

TEST_F(SealerTest, ARecordIsSignedWholeAndForItsKeyAndTenant) {
  const cache::Entry entry = Tuned(there_);
  v1::TuneRecord record = *TuneRecordFrom(entry, kDefaultTenant);
  record.mutable_measurements(0)->set_microseconds(0, 1.0);
  EXPECT_THAT(WhyNot(With(entry, record.SerializeAsString())), HasSubstr("not the one that was signed"));
  record.clear_seal();
  EXPECT_THAT(WhyNot(With(entry, record.SerializeAsString())), HasSubstr("without its seal"));
  v1::CacheEntry label;
  label.set_tenant(std::string(kDefaultTenant));
  const std::string_view bytes = entry.blobs().front().bytes;
  EXPECT_THAT(WhyNot(EntryOf(cache::Sha256("another"), label, "record", bytes)), HasSubstr("signed for another program"));
  label.set_tenant("other");
  EXPECT_THAT(WhyNot(EntryOf(kKey, label, BlobOf("record", "other"), bytes)), HasSubstr("another tenant"));
  EXPECT_NE(WhyNot(EntryOf(kKey, {}, "record", "nothing")), "taken in");
}

// The bytes of a record may be chosen such that they are an artifact.
TEST_F(SealerTest, ARecordIsNoArtifact) {
  const cache::Entry entry = Tuned(there_);
  v1::TuneRecord record = *TuneRecordFrom(entry, kDefaultTenant);
  v1::SealedReply reply;
  reply.set_key(std::string(kKey.view()));
  ASSERT_TRUE(reply.mutable_seal()->ParseFromString(record.seal()));
  record.clear_seal();
  reply.set_artifact(record.SerializeAsString());
  v1::CacheEntry label;
  label.set_tenant(std::string(kDefaultTenant));
  EXPECT_THAT(WhyNot(EntryOf(kKey, label, "reply", reply.SerializeAsString())), HasSubstr("signature is wrong"));
}

// A refusal quotes the program, so whoever writes the program chooses most of what is signed. From its 104th byte on this one is an artifact.
TEST_F(SealerTest, ARefusalIsNoArtifact) {
  v1::Artifact wanted;
  wanted.set_target("cuda:sm_80");
  wanted.set_code("planted");
  v1::KeptFailure failure;
  failure.set_message(std::string(93, ' ') + wanted.SerializeAsString());
  const cache::Entry refused = Refused(there_, kKey, failure);
  EXPECT_EQ(WhyNot(refused), "taken in");
  v1::KeptFailure sealed;
  ASSERT_TRUE(sealed.ParseFromString(std::string(refused.blobs().front().bytes)));
  v1::SealedReply reply;
  reply.set_key(std::string(kKey.view()));
  ASSERT_TRUE(reply.mutable_seal()->ParseFromString(sealed.seal()));
  sealed.clear_seal();
  for (const std::string_view before : {"refusal\n", ""}) {
    reply.set_artifact(std::string(before) + sealed.SerializeAsString());
    v1::CacheEntry label;
    label.set_tenant(std::string(kDefaultTenant));
    EXPECT_THAT(WhyNot(EntryOf(kKey, label, "reply", reply.SerializeAsString())), HasSubstr("signature is wrong")) << before;
  }
}

TEST_F(SealerTest, ARefusalIsSignedWhole) {
  v1::KeptFailure failure;
  failure.set_message("no");
  failure.add_diagnostics()->set_message("line 3");
  const cache::Entry entry = Refused(there_, kKey, failure);
  EXPECT_EQ(WhyNot(entry), "taken in");
  v1::KeptFailure kept;
  ASSERT_TRUE(kept.ParseFromString(std::string(entry.blobs().front().bytes)));
  const auto with = [&](auto change) {
    v1::KeptFailure changed = kept;
    change(changed);
    return With(entry, changed.SerializeAsString());
  };
  EXPECT_NE(WhyNot(with([](auto& f) { f.set_message("yes"); })), "taken in");
  EXPECT_NE(WhyNot(with([](auto& f) { f.add_diagnostics()->set_message("line 4"); })), "taken in");
  EXPECT_NE(WhyNot(with([](auto& f) { f.set_unsupported(true); })), "taken in");
  EXPECT_NE(WhyNot(with([](auto& f) { f.clear_seal(); })), "taken in");
  EXPECT_NE(WhyNot(Refused(stranger_, kKey, failure)), "taken in");
  v1::CacheEntry label;
  label.ParseFromString(std::string(entry.metadata()));
  EXPECT_NE(WhyNot(EntryOf(cache::Sha256("another program"), label, "failure", entry.blobs().front().bytes)), "taken in");
}

// What lists of the store show.
TEST_F(SealerTest, ALabelSaysWhatWasSigned) {
  const cache::Entry entry = Made(there_);
  v1::CacheEntry label;
  label.set_tenant(std::string(kDefaultTenant));
  label.set_name(std::string(100'000, 'x'));
  label.set_target("\x1b[2J");
  const auto taken = here_.TakeIn(EntryOf(entry.key(), label, "reply", entry.blobs().front().bytes), Sealer::From::kStore);
  ASSERT_TRUE(taken) << taken.error();
  v1::CacheEntry kept;
  ASSERT_TRUE(kept.ParseFromString(std::string(taken->metadata())));
  EXPECT_EQ(kept.name(), "matmul");
  EXPECT_EQ(kept.target(), "cuda:sm_80");
}

// A name that is cut in the middle of a character.
TEST_F(SealerTest, ALongNameLeavesTheLabelReadable) {
  const std::string name = std::string(199, 'n') + "ä";
  const std::string bytes = there_.Seal(MakeReply(), {}, {.tenant = kDefaultTenant, .name = name});
  const auto entry = SealReply(kKey, kDefaultTenant, bytes, {.target = "cuda:sm_80", .name = name});
  ASSERT_TRUE(entry);
  EXPECT_EQ(WhyNot(*entry), "taken in");
}

// As a kilnd made it that named no tenant and signed no warnings.
TEST_F(SealerTest, OldSealsAreGoodInBundlesAlone) {
  for (const auto& [maker, is_own] : {std::pair(cache::SigningKey::Make(), false), std::pair(cache::SigningKey::Make(), true)}) {
    Sealer here(is_own ? maker : cache::SigningKey::Make(), {.host = "here", .compiler = "1"});
    here.Trust({maker.public_key()});
    v1::SealedReply reply;
    reply.set_key(std::string(kKey.view()));
    reply.set_artifact(MakeReply().artifact().SerializeAsString());
    const v1::CompileReply made = MakeReply();
    for (const v1::Diagnostic& diagnostic : made.diagnostics()) reply.add_diagnostics(diagnostic.SerializeAsString());
    v1::Provenance provenance;
    provenance.set_target("cuda:sm_80");
    *reply.mutable_seal() = MakeSeal(maker, provenance, reply.key(), reply.artifact());
    const auto entry = SealReply(kKey, kDefaultTenant, reply.SerializeAsString(), {.target = "cuda:sm_80", .name = "matmul"});
    ASSERT_TRUE(entry);
    EXPECT_FALSE(here.TakeIn(*entry, Sealer::From::kStore));
    const auto taken = here.TakeIn(*entry, Sealer::From::kBundle);
    ASSERT_TRUE(taken) << taken.error();
    EXPECT_TRUE(here.Check(*taken));
    EXPECT_EQ(ReplyIn(*taken).diagnostics_size(), is_own ? 2 : 0) << "of another's nobody vouches for them";
  }
}

}  // namespace
}  // namespace kiln::server
