// SPDX-License-Identifier: Apache-2.0
//
// What a client of a recording notes, with a service that compiles nothing.
#include "clients/cpp/recording.h"

#include <algorithm>
#include <fstream>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <google/protobuf/any.pb.h>
#include <gtest/gtest.h>

#include "clients/cpp/manifest_file.h"
#include "clients/cpp/run.h"
#include "clients/cpp/testing.h"
#include "kiln/rpc/status.pb.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

grpc::Status Refused() {
  v1::CompileFailure failure;
  failure.add_diagnostics()->set_message("too large");
  rpc::Status details;
  details.add_details()->PackFrom(failure);
  return {grpc::StatusCode::INVALID_ARGUMENT, "too large", details.SerializeAsString()};
}

struct Service final : v1::Kiln::Service {
  grpc::Status Capabilities(grpc::ServerContext*, const v1::CapabilitiesRequest*, v1::CapabilitiesReply* reply) override {
    reply->set_signing_key(std::string(32, 'k'));
    v1::DeviceInfo& device = *reply->add_devices();
    device.set_name("cuda:0");
    device.set_target("cuda:sm_90a");
    return grpc::Status::OK;
  }
  grpc::Status Compile(grpc::ServerContext*, const v1::CompileRequest* request, v1::CompileReply*) override {
    return request->module() == "large" ? Refused() : grpc::Status(grpc::StatusCode::INTERNAL, "a crash");
  }
  grpc::Status CompileStream(grpc::ServerContext*, const v1::CompileRequest*, grpc::ServerWriter<v1::CompileProgress>*) override { return Refused(); }
  grpc::Status EnsureKernels(grpc::ServerContext*, const v1::EnsureRequest*, grpc::ServerWriter<v1::EnsureProgress>* writer) override {
    v1::EnsureProgress news;
    v1::EnsuredKernel& kernel = *news.add_kernels();
    kernel.set_target("cuda:sm_80");
    kernel.set_code(grpc::StatusCode::INVALID_ARGUMENT);
    kernel.mutable_failure()->add_diagnostics()->set_message("too large");
    writer->Write(news);
    return grpc::Status::OK;
  }
};

class RecordingTest : public testing::ServedTest<Service> {
 protected:
  Recording Begin() { return *Recording::Begin(file_); }
  Client ConnectTo(const Recording& recording) { return *Client::Connect({.address = served_.address(), .record = recording.folder()}); }

  std::vector<std::string> Recorded() const {
    std::vector<std::string> lines;
    const auto entries = ReadManifestFile(file_);
    EXPECT_TRUE(entries) << entries.error().message;
    for (const v1::ManifestEntry& entry : *entries) {
      lines.push_back(entry.request().module() + " " + entry.request().target() + (entry.refused() ? " refused" : ""));
    }
    std::ranges::sort(lines);
    return lines;
  }

  const fs::path file_ = folder_ / "app.manifest";
};

TEST_F(RecordingTest, HasEachKindOfRequestWhateverBecameOfIt) {
  Recording recording = Begin();
  Client client = ConnectTo(recording);
  EXPECT_FALSE(client.Compile({.module = "crash", .target = "cuda:sm_80"}));
  EXPECT_FALSE(client.Compile({.module = "large", .target = "cuda:sm_80"}));
  EXPECT_FALSE(client.Compile({.module = "streamed", .target = "cuda:sm_80"}, [](std::string_view) {}));
  EXPECT_FALSE(client.Lookup({.module = "looked up", .target = "hip:gfx942"}));
  EXPECT_FALSE(client.LookupKey(std::string(32, 'a')));
  EXPECT_TRUE(client.Ensure({.requests = {{.module = "ensured"}}, .targets = {"cuda:sm_80", "hip:gfx942"}}));
  EXPECT_TRUE(client.Ensure({.requests = {{.module = "for its own", .target = "cuda:sm_75"}}}));
  EXPECT_FALSE(client.Run({.program = {.module = "emulated"}, .device = "emu:sm_90a"}));
  EXPECT_FALSE(client.Run({.program = {.module = "on a GPU"}, .device = "cuda:0"}));
  EXPECT_FALSE(client.Run({.program = {.module = "on another"}, .device = "cuda:7"}));
  EXPECT_FALSE(client.Run({.key = std::string(32, 'a'), .device = "cuda:0"}));
  EXPECT_FALSE(client.Compile({.module = "explained", .target = "cuda:sm_80", .explain = Explain{.llvm = true}}));
  EXPECT_EQ(recording.End(), 10u);
  EXPECT_THAT(Recorded(),
              ElementsAre("crash cuda:sm_80", "emulated emu:sm_90a", "ensured cuda:sm_80 refused", "ensured hip:gfx942", "for its own cuda:sm_75",
                          "large cuda:sm_80 refused", "looked up hip:gfx942", "on a GPU cuda:sm_90a", "on another ", "streamed cuda:sm_80 refused"));
  EXPECT_FALSE(fs::exists(recording.folder()));
  EXPECT_FALSE(client.Compile({.module = "afterwards", .target = "cuda:sm_80"})) << "and not because of the recording:";
  EXPECT_EQ(client.Compile({.module = "afterwards", .target = "cuda:sm_80"}).error().message, "a crash");
}

TEST_F(RecordingTest, AddsToAManifestThatKeepsItsForm) {
  for (const ManifestForm form : {ManifestForm::kBinary, ManifestForm::kText}) {
    v1::ManifestEntry before;
    before.mutable_request()->set_module("before");
    ASSERT_TRUE(WriteManifestFile(file_, MakeManifest({before}), form));
    fs::permissions(file_, fs::perms::owner_read | fs::perms::owner_write);
    Recording recording = Begin();
    EXPECT_FALSE(ConnectTo(recording).Compile({.module = "new", .target = "cuda:sm_80"}));
    EXPECT_EQ(recording.End(), 2u);
    EXPECT_THAT(Recorded(), ElementsAre("before ", "new cuda:sm_80"));
    std::ifstream file(file_);
    std::string line;
    std::getline(file, line);
    EXPECT_EQ(FormOfManifest(line) == ManifestForm::kText, form == ManifestForm::kText) << line;
    EXPECT_EQ(fs::status(file_).permissions(), fs::perms::owner_read | fs::perms::owner_write);
    EXPECT_FALSE(recording.End()) << "it has ended";
  }
}

TEST_F(RecordingTest, WhatIsNotEndedIsDropped) {
  std::string folder;
  {
    Recording recording = Begin();
    folder = recording.folder();
    EXPECT_FALSE(ConnectTo(recording).Compile({.module = "new", .target = "cuda:sm_80"}));
    EXPECT_TRUE(fs::exists(folder));
    Recording moved = std::move(recording);
    EXPECT_EQ(moved.folder(), folder);
  }
  EXPECT_FALSE(fs::exists(folder));
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(RecordingTest, AFileThatIsNoManifestIsLeftAlone) {
  std::ofstream(file_) << "notes";
  const auto recording = Recording::Begin(file_);
  ASSERT_FALSE(recording);
  EXPECT_THAT(recording.error().message, HasSubstr("no manifest"));
  EXPECT_FALSE(Recording::Begin(folder_ / "nowhere" / "app.manifest"));
}

TEST_F(RecordingTest, ARequestThatCannotBeNotedIsNotMade) {
  std::ofstream(folder_ / "file") << "x";
  Client client = *Client::Connect({.address = served_.address(), .record = (folder_ / "file").string()});
  const auto compiled = client.Compile({.module = "crash", .target = "cuda:sm_80"});
  ASSERT_FALSE(compiled);
  EXPECT_THAT(compiled.error().message, HasSubstr("cannot record into"));
}

TEST_F(RecordingTest, TwoAtOnceHaveTheirOwnAndBothReachOneFile) {
  Recording one = Begin(), other = Begin();
  Client both = *Client::Connect({.address = served_.address(), .record = one.folder() + ":" + other.folder()});
  EXPECT_FALSE(both.Compile({.module = "both", .target = "cuda:sm_80"}));
  EXPECT_FALSE(ConnectTo(other).Compile({.module = "other", .target = "cuda:sm_80"}));
  EXPECT_EQ(one.End(), 1u);
  EXPECT_EQ(other.End(), 2u);
}

}  // namespace
}  // namespace kiln
