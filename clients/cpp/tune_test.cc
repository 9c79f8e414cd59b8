// SPDX-License-Identifier: Apache-2.0
//
// Tunings of a client against a server in this process.
#include "clients/cpp/tune.h"

#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

#include "clients/cpp/testing.h"

namespace kiln {
namespace {

class Service final : public v1::Kiln::Service {
 public:
  v1::TuneStart tune_start;  // the last one
  v1::WatchRequest watch_request;
  std::vector<v1::TuneProgress> tuned;  // what a Tune and a Watch tell
  grpc::Status Tune(grpc::ServerContext*, grpc::ServerReaderWriter<v1::TuneProgress, v1::TuneRequest>* stream) override {
    for (v1::TuneRequest request; stream->Read(&request);) {
      if (request.has_start()) tune_start = request.start();
    }
    for (const v1::TuneProgress& progress : tuned) stream->Write(progress);
    return grpc::Status::OK;
  }
  grpc::Status Watch(grpc::ServerContext*, const v1::WatchRequest* request, grpc::ServerWriter<v1::TuneProgress>* writer) override {
    watch_request = *request;
    for (const v1::TuneProgress& progress : tuned) writer->Write(progress);
    return grpc::Status::OK;
  }
};

class TuneTest : public testing::ServedTest<Service> {};

TEST_F(TuneTest, ATuningThatIsNotWaitedForGivesChoicesAndThenItsRecord) {
  v1::TuneProgress& chosen = service_.tuned.emplace_back();
  chosen.add_choices(2);
  chosen.add_choices(1);
  chosen.set_basis(v1::TUNE_BASIS_PLANNER);
  chosen.set_watch("a key");
  const TuneRequest request{.candidates = {{{.module = "a"}, "one"}, {{.module = "b"}, "two"}},
                            .device = "cuda:0",
                            .arguments = {},
                            .budget_candidates = 7,
                            .mode = TuneMode::kBackground};
  const auto choice = Connect().Tune(request);
  ASSERT_TRUE(choice) << choice.error().message;
  EXPECT_EQ(service_.tune_start.mode(), v1::TUNE_BACKGROUND);
  EXPECT_EQ(service_.tune_start.budget_candidates(), 7u);
  EXPECT_FALSE(choice->has_record());
  EXPECT_EQ(choice->winner, 1u);
  EXPECT_EQ(choice->choices, (std::vector<std::size_t>{1, 0}));
  EXPECT_EQ(choice->basis, TuneBasis::kPlanner);

  service_.tuned.front() = {};
  service_.tuned.front().set_ranked(2);
  v1::TuneRecord& record = *service_.tuned.emplace_back().mutable_record();
  for (const char* label : {"one", "two"}) record.add_measurements()->set_label(label);
  record.mutable_measurements(0)->mutable_estimate()->set_microseconds(5);
  record.set_winner(1);
  std::uint32_t ranked = 0;
  const auto tuned = Connect().WatchTune(choice->watch, [&](const TuneProgress& news) { ranked = news.ranked; });
  ASSERT_TRUE(tuned) << tuned.error().message;
  EXPECT_EQ(service_.watch_request.key(), "a key");
  EXPECT_EQ(ranked, 2u);
  EXPECT_EQ(tuned->winner, 0u);
  EXPECT_EQ(tuned->measurements.front().estimate->microseconds, 5);
  EXPECT_FALSE(tuned->measurements.back().estimate);

  service_.tuned = {v1::TuneProgress()};
  service_.tuned.front().add_choices(3);
  EXPECT_FALSE(Connect().Tune(request)) << "there is no third";
}

}  // namespace
}  // namespace kiln
