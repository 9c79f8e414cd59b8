// SPDX-License-Identifier: Apache-2.0
//
// A tuning of programs that cost the emulator little: from the request to the record, and what the record costs when it is asked for again.
#include <stdexcept>

#include <fmt/format.h>

#include "tests/bench/figures.h"

namespace kiln::bench {
namespace {

constexpr unsigned kCandidates = 32;
constexpr const char* kDevice = "emu:sm_80";

// Each is another program.
std::string Program(unsigned number) {
  return fmt::format(R"(kiln 1
func @scale(%A: global f32[64, 64], %B: global f32[64, 64]) outputs(1) {{
  kernel @main grid(1) threads 128 blocks(%bx) {{
    %t = alloc fragment f32[64, 64]
    copy %A[0, 0; 64, 64] -> %t[0, 0; 64, 64]
    for parallel %i, %j in 64, 64 {{
      store %t[%i, %j] = %t[%i, %j] * 1.0{:04}
    }}
    copy %t[0, 0; 64, 64] -> %B[0, 0; 64, 64]
  }}
}}
)",
                     number);
}

// Milliseconds; throws what the daemon refuses.
double Tune(v1::Kiln::Stub& stub, bool known_only) {
  const auto began = Clock::now();
  grpc::ClientContext context;
  const auto stream = stub.Tune(&context);
  v1::TuneRequest request;
  v1::TuneStart& start = *request.mutable_start();
  start.set_device(kDevice);
  start.set_measure_on_emulator(true);
  start.set_known_only(known_only);
  start.set_candidates(kCandidates);
  v1::TuneArgument& argument = *start.add_arguments();
  argument.mutable_tensor()->set_dtype(v1::F32);
  for (const std::int64_t extent : {64, 64}) argument.mutable_tensor()->add_shape(extent);
  argument.mutable_tensor()->set_bytes(64 * 64 * 4);
  argument.set_fill(v1::TUNE_FILL_RANDOM);
  stream->Write(request);
  for (unsigned i = 0; i < kCandidates; ++i) {
    request.mutable_candidate()->mutable_program()->set_module(Program(i));
    stream->Write(request);
  }
  stream->WritesDone();
  v1::TuneProgress progress;
  while (stream->Read(&progress)) {
  }
  if (const grpc::Status status = stream->Finish(); !status.ok()) throw std::runtime_error("kilnd: " + status.error_message());
  return Milliseconds(Clock::now() - began);
}

double Compile(v1::Kiln::Stub& stub, unsigned number) {
  v1::CompileRequest request;
  request.set_module(Program(number));
  request.set_target(kDevice);
  const auto began = Clock::now();
  grpc::ClientContext context;
  v1::CompileReply reply;
  if (const grpc::Status status = stub.Compile(&context, request, &reply); !status.ok()) {
    throw std::runtime_error("kilnd: " + status.error_message());
  }
  return Milliseconds(Clock::now() - began);
}

}  // namespace

std::vector<Figure> MeasureTuning(const Setup& setup) {
  const Daemon daemon(setup, "tuning");
  const auto stub = daemon.Connect();
  const int rounds = setup.quick ? 5 : 50;
  const double whole = Tune(*stub, false);
  std::vector<double> records, results;
  for (int i = -2; i < rounds; ++i) {
    const double record = Tune(*stub, true);
    double all = 0;
    for (unsigned number = 0; number < kCandidates; ++number) all += Compile(*stub, number);
    if (i < 0) continue;
    records.push_back(record);
    results.push_back(all);
  }
  const double record = Median(records), hits = Median(results);
  return {{.name = fmt::format("tuning of {} small programs, request to record", kCandidates),
           .value = whole / 1000,
           .unit = "s",
           .bar = 5,
           .note = fmt::format("on {}", kDevice)},
          {.name = fmt::format("a record of {} candidates, over a hit of each", kCandidates),
           .value = record / hits,
           .unit = "×",
           .bar = 1,
           .note = fmt::format("{:.2f} ms against {:.2f} ms", record, hits)}};
}

}  // namespace kiln::bench
