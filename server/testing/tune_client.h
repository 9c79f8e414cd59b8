// SPDX-License-Identifier: Apache-2.0
//
// A Tune of programs that scale a matrix, as a client makes it.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "server/testing/run_fixture.h"

namespace kiln::server::testing {

// Twice its input; blocks of `rows` rows. `factor` 2 is right.
inline std::string Scale(unsigned rows, double factor = 2.0) {
  return fmt::format(R"(kiln 1
func @scale(%A: global f32[256, 64], %B: global f32[256, 64]) outputs(1) {{
  kernel @main grid({0}) threads 128 blocks(%bx) {{
    %t = alloc fragment f32[{1}, 64]
    copy %A[%bx * {1}, 0; {1}, 64] -> %t[0, 0; {1}, 64]
    for parallel %i, %j in {1}, 64 {{
      store %t[%i, %j] = %t[%i, %j] * {2:.1f}
    }}
    copy %t[0, 0; {1}, 64] -> %B[%bx * {1}, 0; {1}, 64]
  }}
}}
)",
                     256 / rows, rows, factor);
}

inline constexpr const char* kHangs = R"(kiln 1
func @scale(%A: global f32[256, 64], %B: global f32[256, 64]) outputs(1) {
  kernel @main grid(1) threads 128 blocks(%bx) {
    while %A[0, 0] < 10.0 {
      store %B[0, 0] = %A[0, 0] + 1.0
    }
  }
}
)";

struct TuneAnswer {
  grpc::Status status;
  std::vector<v1::TuneProgress> told;

  const v1::TuneRecord& record() const { return told.back().record(); }
  std::vector<std::uint32_t> Choices() const {
    if (told.empty()) return {};
    return {told.back().choices().begin(), told.back().choices().end()};
  }
  v1::Origin origin() const { return told.empty() ? v1::ORIGIN_UNSPECIFIED : told.back().origin(); }
  std::vector<v1::TuneOutcome> Outcomes() const {
    std::vector<v1::TuneOutcome> outcomes;
    for (const auto& said : record().measurements()) outcomes.push_back(said.outcome());
    return outcomes;
  }
};

// What a Watch of that key tells.
inline TuneAnswer Watched(Daemon& daemon, const std::string& key, const std::string& secret = {}) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(100));
  if (!secret.empty()) context.AddMetadata("authorization", "Bearer " + secret);
  v1::WatchRequest request;
  request.set_key(key);
  TuneAnswer answer;
  const auto reader = daemon.stub().Watch(&context, request);
  for (v1::TuneProgress progress; reader->Read(&progress);) answer.told.push_back(progress);
  answer.status = reader->Finish();
  return answer;
}

class TuneClient {
 public:
  explicit TuneClient(const std::vector<std::string>& programs, const std::string& device = "emu:sm_80") {
    start_.set_device(device);
    start_.set_measure_on_emulator(true);
    start_.set_candidates(static_cast<std::uint32_t>(programs.size()));
    v1::TuneArgument& argument = *start_.add_arguments();
    argument.mutable_tensor()->set_dtype(v1::F32);
    for (const std::int64_t extent : {256, 64}) argument.mutable_tensor()->add_shape(extent);
    argument.mutable_tensor()->set_bytes(256 * 64 * 4);
    argument.set_fill(v1::TUNE_FILL_RANDOM);
    for (const std::string& program : programs) {
      v1::TuneCandidate& candidate = candidates_.emplace_back();
      candidate.mutable_program()->set_module(program);
      candidate.set_label(fmt::format("number {}", candidates_.size()));
    }
  }

  v1::TuneStart& start() { return start_; }
  v1::TuneCandidate& candidate(std::size_t which) { return candidates_[which]; }
  std::string& data() { return data_; }
  void SetToken(const std::string& secret) { secret_ = secret; }

  TuneAnswer Run(Daemon& daemon) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(100));
    return Run(daemon, context);
  }
  TuneAnswer Run(Daemon& daemon, grpc::ClientContext& context) const {
    TuneAnswer answer;
    if (!secret_.empty()) context.AddMetadata("authorization", "Bearer " + secret_);
    const auto stream = daemon.stub().Tune(&context);
    v1::TuneRequest request;
    *request.mutable_start() = start_;
    bool open = stream->Write(request);
    for (const v1::TuneCandidate& candidate : candidates_) {
      *request.mutable_candidate() = candidate;
      open = open && stream->Write(request);
    }
    if (!data_.empty()) {
      request.set_data(data_);
      open = open && stream->Write(request);
    }
    stream->WritesDone();
    for (v1::TuneProgress progress; stream->Read(&progress);) answer.told.push_back(progress);
    answer.status = stream->Finish();
    return answer;
  }

 private:
  v1::TuneStart start_;
  std::vector<v1::TuneCandidate> candidates_;
  std::string data_;
  std::string secret_;  // a bearer token; empty: whoever owns the socket
};

}  // namespace kiln::server::testing
