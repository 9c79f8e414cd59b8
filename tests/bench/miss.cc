// SPDX-License-Identifier: Apache-2.0
//
// A compile in a warm worker, from the request to the reply with the PTX.
#include <fmt/format.h>

#include "tests/bench/figures.h"
#include "tests/bench/programs.h"

namespace kiln::bench {
namespace {

constexpr const char* kTarget = "cuda:sm_80";

struct Measured {
  double median_ms = 0;
  std::string error;
};

Measured CompileRepeatedly(v1::Kiln::Stub& stub, const std::string& module, int rounds) {
  v1::CompileRequest request;
  request.set_module(module);
  request.set_target(kTarget);
  request.set_refresh(true);
  std::vector<double> times;
  for (int i = -2; i < rounds; ++i) {
    grpc::ClientContext context;
    v1::CompileReply reply;
    const auto began = Clock::now();
    const grpc::Status status = stub.Compile(&context, request, &reply);
    if (!status.ok()) return {.error = status.error_message()};
    if (reply.origin() != v1::COMPILED) return {.error = "it was not compiled but found"};
    if (i >= 0) times.push_back(Milliseconds(Clock::now() - began));
  }
  return {.median_ms = Median(times)};
}

Figure Miss(const Setup& setup, v1::Kiln::Stub& stub, const std::string& word, double bar) {
  Figure figure{.name = fmt::format("compile {} to PTX, p50", word), .unit = "ms", .bar = bar};
  const auto program = FindProgram(setup, word);
  if (!program) {
    figure.note = fmt::format("NO PROGRAM: no *{}*.kiln in {}", word, setup.programs.string());
    return figure;
  }
  const Measured measured = CompileRepeatedly(stub, *program, setup.quick ? 5 : 25);
  figure.note = measured.error.empty() ? kTarget : "FAILED: " + measured.error;
  if (measured.error.empty()) figure.value = measured.median_ms;
  return figure;
}

// Linear growth with any constant beside it at most doubles from 8 to 16 times.
Figure Growth(const Setup& setup, v1::Kiln::Stub& stub) {
  Figure figure{.name = "compile cost, 16× over 8× the tile statements", .unit = "×", .bar = 2.0};
  const auto program = FindProgram(setup, "gemm");
  if (!program) {
    figure.note = fmt::format("NO PROGRAM: no *gemm*.kiln in {}", setup.programs.string());
    return figure;
  }
  double previous = 0;
  for (unsigned times = 1; times <= 16; times *= 2) {
    const auto larger = Multiply(*program, times);
    const Measured measured = larger ? CompileRepeatedly(stub, *larger, setup.quick ? 3 : 9) : Measured{.error = "the program cannot be read"};
    if (!measured.error.empty()) {
      figure.note = fmt::format("FAILED at {}×: {}", times, measured.error);
      return figure;
    }
    figure.note += fmt::format("{}{}×: {:.1f} ms", times == 1 ? "" : ", ", times, measured.median_ms);
    if (times == 16) figure.value = measured.median_ms / previous;
    previous = measured.median_ms;
  }
  return figure;
}

}  // namespace

std::vector<Figure> MeasureMisses(const Setup& setup) {
  const Daemon daemon(setup, "miss-store");
  const auto stub = daemon.Connect();
  std::vector<Figure> figures;
  figures.push_back(Miss(setup, *stub, "attention", 60));
  figures.push_back(Miss(setup, *stub, "gemm", 30));
  figures.push_back(Growth(setup, *stub));
  return figures;
}

}  // namespace kiln::bench
