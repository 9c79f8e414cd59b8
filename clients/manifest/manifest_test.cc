// SPDX-License-Identifier: Apache-2.0
#include "clients/manifest/manifest.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/testing.h"
#include "clients/manifest/recorded_folder.h"
#include "ir/codec/decode.h"
#include "ir/codec/encode.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Text(const std::string& name, const std::string& factor = "2.0") {
  return "kiln 1\nfunc @" + name + "(%A: global f32[64]) {\n  kernel @main grid(1) threads 64 blocks(%bx) {\n    for parallel %i in 64 {\n" +
         "      store %A[%i] = %A[%i] * " + factor + "\n    }\n  }\n}\n";
}

std::string Bytes(const std::string& text) {
  ir::Diagnostics problems;
  const auto module = ir::DecodeModule(text, problems);
  EXPECT_TRUE(module) << (problems.all().empty() ? "" : problems.all()[0].message);
  return module ? ir::EncodeBytes(*module) : "";
}

v1::ManifestEntry Entry(std::string module, const std::string& target = "cuda:sm_90a", bool refused = false) {
  v1::ManifestEntry entry;
  entry.mutable_request()->set_module(std::move(module));
  entry.mutable_request()->set_target(target);
  entry.set_refused(refused);
  return entry;
}

std::vector<std::string> Names(const v1::Manifest& manifest) {
  std::vector<std::string> names;
  for (const v1::ManifestEntry& entry : manifest.entries()) names.push_back(ProgramName(entry.request().module()) + " " + entry.request().target());
  std::ranges::sort(names);
  return names;
}

TEST(Manifest, IsTheSameWhateverTheOrderOfItsRequests) {
  std::vector<v1::ManifestEntry> entries = {Entry(Bytes(Text("a"))), Entry(Bytes(Text("b", "3.0")), "hip:gfx942", true), Entry(Text("c", "4.0")),
                                            Entry("no program")};
  const std::string first = WriteManifest(MakeManifest(entries), ManifestForm::kBinary);
  while (std::ranges::next_permutation(entries, {}, [](const v1::ManifestEntry& e) { return e.SerializeAsString(); }).found) {
    EXPECT_EQ(WriteManifest(MakeManifest(entries), ManifestForm::kBinary), first);
  }
}

TEST(Manifest, HasEachRequestOnce) {
  v1::ManifestEntry fast = Entry(Bytes(Text("a")));
  fast.mutable_request()->mutable_options()->set_fast_math(true);
  const v1::Manifest manifest = MakeManifest({Entry(Text("a")), Entry(Bytes(Text("a"))), Entry(Bytes(Text("another_name"))),
                                              Entry(Bytes(Text("a", "3.0"))), Entry(Bytes(Text("a")), "hip:gfx942"), fast, fast});
  EXPECT_EQ(manifest.entries_size(), 4) << "another constant, another target and other options are others; another name and another form are not";
}

TEST(Manifest, ARefusalSurvivesAMerge) {
  for (const bool last : {false, true}) {
    const v1::Manifest manifest = MakeManifest({Entry(Text("a"), "cuda:sm_80", !last), Entry(Text("a"), "cuda:sm_80", last)});
    ASSERT_EQ(manifest.entries_size(), 1);
    EXPECT_TRUE(manifest.entries(0).refused());
  }
}

TEST(Manifest, ItsTextReadsBack) {
  v1::ManifestEntry options = Entry(Bytes(Text("b")), "cuda -arch=\"sm_90a\"\n");
  options.mutable_request()->mutable_options()->set_max_registers(64);
  options.mutable_request()->mutable_options()->set_stream_k(v1::STREAM_K_NEVER);
  const v1::Manifest manifest =
      MakeManifest({Entry(Bytes(Text("a")), "hip:gfx942", true), options, Entry(Bytes(Text("c")), ""), Entry(std::string("no \0 program\n", 13))});
  const std::string text = WriteManifest(manifest, ManifestForm::kText);
  EXPECT_EQ(FormOfManifest(text), ManifestForm::kText);
  EXPECT_THAT(text, HasSubstr("refused target: \"hip:gfx942\"\n  kiln 1\n  func @a("));
  EXPECT_THAT(text, HasSubstr("options { max_registers: 64 stream_k: STREAM_K_NEVER }"));
  const auto back = ReadManifest(text);
  ASSERT_TRUE(back) << back.error();
  EXPECT_EQ(WriteManifest(*back, ManifestForm::kText), text);
  std::vector<v1::ManifestEntry> both(manifest.entries().begin(), manifest.entries().end());
  both.insert(both.end(), back->entries().begin(), back->entries().end());
  EXPECT_EQ(MakeManifest(both).entries_size(), 4) << "they are the same requests";
}

TEST(Manifest, BothFormsAreRecognized) {
  const v1::Manifest manifest = MakeManifest({});
  EXPECT_EQ(FormOfManifest(WriteManifest(manifest, ManifestForm::kBinary)), ManifestForm::kBinary);
  EXPECT_EQ(FormOfManifest(WriteManifest(manifest, ManifestForm::kText)), ManifestForm::kText);
  for (const std::string& other : {Text("a"), Bytes(Text("a")), std::string(), std::string("\n"), std::string("kiln")}) {
    EXPECT_EQ(FormOfManifest(other), ManifestForm::kNone) << other;
  }
}

TEST(Manifest, WhatIsWrongIsToldWithItsLine) {
  const auto error = [](const std::string& text) {
    const auto read = ReadManifest(text);
    return read ? "none" : read.error();
  };
  EXPECT_THAT(error("kiln manifest 1\n\nwanted target: \"x\"\n"), HasSubstr("line 3: \"wanted\" begins no request"));
  EXPECT_THAT(error("kiln manifest 1\nrequest colour: 1\n"), HasSubstr("line 2: "));
  EXPECT_THAT(error("kiln manifest 1\n# a comment\nrequest target: \"x\"\n\nrequest\n"), HasSubstr("line 3: a request has one program"));
  EXPECT_THAT(error("kiln manifest 1\nrequest target: \"x\"\n  kiln 1\n  func @f() {\n    nonsense\n  }\n"), HasSubstr("line 5: "));
  EXPECT_THAT(error("kiln manifest 2\n"), HasSubstr("newer client"));
  v1::Manifest later = MakeManifest({Entry(Text("a"))});
  auto& options = *later.mutable_entries(0)->mutable_request()->mutable_options();
  options.GetReflection()->MutableUnknownFields(&options)->AddVarint(1000, 1);
  EXPECT_THAT(error(later.SerializeAsString()), HasSubstr("newer client")) << "an option that is left out would change the result";
  EXPECT_THAT(error(Text("a")), HasSubstr("no manifest"));
  std::string cut = WriteManifest(MakeManifest({Entry(Text("a"))}), ManifestForm::kBinary);
  cut.resize(cut.size() - 3);
  EXPECT_THAT(error(cut), HasSubstr("cut off"));
}

class RecordedFolder : public ::testing::Test {
 protected:
  v1::Manifest Read() const {
    const auto entries = ReadFolder(folder_.path());
    EXPECT_TRUE(entries) << entries.error();
    return MakeManifest(*entries);
  }

  const cache::testing::TemporaryDirectory folder_;
};

TEST_F(RecordedFolder, KeepsWhatDecidesTheResult) {
  v1::CompileRequest request = Entry(Text("a")).request();
  ASSERT_TRUE(NoteRequest(folder_.path(), request));
  request.set_priority(v1::TUNING);
  request.set_refresh(true);
  request.set_durable(true);
  request.mutable_options();
  ASSERT_TRUE(NoteRequest(folder_.path(), request));
  ASSERT_TRUE(NoteRefusal(folder_.path(), request));
  request.mutable_explain()->set_llvm(true);
  request.set_target("cuda:sm_80");
  ASSERT_TRUE(NoteRequest(folder_.path(), request)) << "an explained compile is kept nowhere, and not noted";
  const v1::Manifest manifest = Read();
  EXPECT_THAT(Names(manifest), ElementsAre("a cuda:sm_90a"));
  EXPECT_TRUE(manifest.entries(0).refused());
}

TEST_F(RecordedFolder, ManyWritersDoNotMix) {
  const std::vector<std::string> programs = {Text("a", "1.0"), Text("b", "2.0"), Text("c", "3.0"), Text("d", "4.0")};
  std::vector<std::jthread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (int round = 0; round < 50; ++round) EXPECT_TRUE(NoteRequest(folder_.path(), Entry(programs[round % 4]).request()));
    });
  }
  writers.clear();
  EXPECT_EQ(Read().entries_size(), 4);
}

TEST_F(RecordedFolder, WhatAKilledWriterLeftIsNoRequest) {
  ASSERT_TRUE(NoteRequest(folder_.path(), Entry(Text("a")).request()));
  std::ofstream(folder_ / ".1234-5678") << "half a requ";
  EXPECT_THAT(Names(Read()), ElementsAre("a cuda:sm_90a"));
  std::ofstream(folder_ / "notes.txt") << "something else";
  const auto entries = ReadFolder(folder_.path());
  ASSERT_FALSE(entries);
  EXPECT_THAT(entries.error(), HasSubstr("notes.txt is no request"));
}

TEST_F(RecordedFolder, AFolderThatIsGoneEndsTheRecordingAndOneThatCannotBeWrittenIsAnError) {
  EXPECT_TRUE(NoteRequest(folder_ / "gone", Entry(Text("a")).request()));
  EXPECT_FALSE(fs::exists(folder_ / "gone"));
  std::ofstream(folder_ / "file") << "x";
  const auto noted = NoteRequest(folder_ / "file", Entry(Text("a")).request());
  ASSERT_FALSE(noted);
  EXPECT_THAT(noted.error(), HasSubstr("cannot record into"));
}

}  // namespace
}  // namespace kiln
