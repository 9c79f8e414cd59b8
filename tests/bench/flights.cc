// SPDX-License-Identifier: Apache-2.0
//
// Many who want the same: one key for 2,000 requests, and the start of a job in which 64 ranks ask for the same 500 kernels, call
// by call and as a manifest.
#include <atomic>
#include <cmath>
#include <set>
#include <thread>

#include <fmt/format.h>

#include "tests/bench/calls.h"
#include "tests/bench/programs.h"

namespace kiln::bench {
namespace {

constexpr const char* kTarget = "cuda:sm_80";

v1::CompileRequest RequestOf(std::string module) {
  v1::CompileRequest request;
  request.set_module(std::move(module));
  request.set_target(kTarget);
  return request;
}

}  // namespace

std::vector<Figure> MeasureOneKey(const Setup& setup) {
  constexpr std::size_t kConnections = 200;
  constexpr std::size_t kRequests = 2000;
  const Daemon daemon(setup, "flight-store");
  std::vector<std::unique_ptr<v1::Kiln::Stub>> stubs;
  for (std::size_t i = 0; i < kConnections; ++i) stubs.push_back(daemon.Connect());
  for (const auto& stub : stubs) {
    grpc::ClientContext context;
    v1::StatsReply reply;
    if (!stub->Stats(&context, {}, &reply).ok()) throw std::runtime_error("a connection of many failed");
  }
  const auto request = RequestOf(Multiply(Variants(setup)(1), 16).value_or(""));
  Pending pending;
  std::mutex mutex;
  std::set<std::string> codes;
  std::size_t failed = 0;
  std::size_t compiled = 0;
  const auto began = Clock::now();
  pending.Add(kRequests);
  for (std::size_t i = 0; i < kRequests; ++i) {
    CompileAsync(*stubs[i % kConnections], request, [&](Answer answer) {
      {
        std::lock_guard lock(mutex);
        failed += !answer.ok();
        compiled += answer.reply.origin() == v1::COMPILED;
        codes.insert(answer.reply.artifact().SerializeAsString());
      }
      pending.Done();
    });
  }
  pending.WaitUntilAtMost(0);
  const double took = Milliseconds(Clock::now() - began);
  return {{.name = "2,000 requests, one key: compiles",
           .value = static_cast<double>(daemon.Stats().compiles()),
           .unit = "",
           .bar = 1,
           .note = fmt::format("{} failed, {} say they compiled, the last answer after {:.0f} ms", failed, compiled, took)},
          {.name = "2,000 requests, one key: different answers", .value = static_cast<double>(codes.size() + failed), .unit = "", .bar = 1}};
}

namespace {

struct Start {
  double last_ms = 0;
  double compile_ms = 0;  // all compiles together
  std::uint64_t compiles = 0;
  std::size_t failed = 0;
  std::string failure;  // one of them
};

// Each rank asks for all kernels in the same order, 16 at a time.
Start StartRanks(const Setup& setup, std::size_t ranks, std::size_t kernels) {
  const Daemon daemon(setup, "ranks-store");
  const Variants variant(setup);
  std::vector<v1::CompileRequest> requests;
  for (std::size_t i = 0; i < kernels; ++i) requests.push_back(RequestOf(variant(static_cast<unsigned>(i))));
  Start start;
  std::mutex mutex;
  std::vector<std::jthread> threads;
  const auto began = Clock::now();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&] {
      const auto stub = daemon.Connect();
      Pending pending;
      for (const v1::CompileRequest& request : requests) {
        pending.WaitUntilAtMost(15);
        pending.Add();
        CompilePatiently(*stub, request, [&](Answer answer) {
          {
            std::lock_guard lock(mutex);
            start.failed += !answer.ok();
            if (!answer.ok()) start.failure = answer.status.error_message();
            if (answer.reply.origin() == v1::COMPILED) start.compile_ms += answer.compile_ms();
          }
          pending.Done();
        });
      }
      pending.WaitUntilAtMost(0);
    });
  }
  threads.clear();
  start.last_ms = Milliseconds(Clock::now() - began);
  start.compiles = daemon.Stats().compiles();
  return start;
}

}  // namespace

std::vector<Figure> MeasureRanks(const Setup& setup) {
  const std::size_t kernels = setup.quick ? 60 : 500;
  const Start start = StartRanks(setup, 64, kernels);
  const double ideal = start.compile_ms / setup.workers();
  return {{.name = fmt::format("64 ranks, {} kernels: compiles", kernels),
           .value = static_cast<double>(start.compiles),
           .unit = "",
           .bar = static_cast<double>(kernels),
           .note = fmt::format("{} requests failed {}", start.failed, start.failure)},
          {.name = fmt::format("64 ranks, {} kernels: last over ideal", kernels),
           .value = start.last_ms / ideal,
           .unit = "×",
           .bar = 1.15,
           .note = fmt::format("{:.1f} s; compile times / workers {:.1f} s", start.last_ms / 1000, ideal / 1000)}};
}

namespace {

// Programs of very different cost.
v1::EnsureRequest MixedManifest(const Setup& setup, unsigned kernels) {
  const Variants variant(setup);
  v1::EnsureRequest manifest;
  for (unsigned i = 0; i < kernels; ++i) {
    const std::string program = variant(10'000 + i);
    *manifest.add_requests() = RequestOf(i % 3 == 0 ? program : Multiply(program, 1 + i % 8).value_or(program));
  }
  return manifest;
}

struct Estimate {
  double told = 0;
  double elapsed = 0;
};

}  // namespace

std::vector<Figure> MeasureManifest(const Setup& setup) {
  const unsigned kernels = setup.quick ? 60 : 400;
  const v1::EnsureRequest manifest = MixedManifest(setup, kernels);
  const Daemon daemon(setup, "manifest-store");
  std::atomic<std::size_t> failed = 0;
  std::mutex mutex;
  std::string failure;
  std::optional<Estimate> tenth;
  double total = 0;
  const auto ensure = [&](bool first) {
    const auto stub = daemon.Connect();
    grpc::ClientContext context;
    const auto reader = stub->EnsureKernels(&context, manifest);
    for (v1::EnsureProgress progress; reader->Read(&progress);) {
      const bool a_tenth = progress.compiled() * 10 >= progress.total();
      if (first && a_tenth && !tenth) tenth = Estimate{progress.remaining_seconds(), progress.elapsed_seconds()};
      if (first) total = progress.elapsed_seconds();
    }
    const grpc::Status status = reader->Finish();
    if (status.ok()) return;
    ++failed;
    std::lock_guard lock(mutex);
    failure = status.error_message();
  };
  {
    std::vector<std::jthread> ranks;
    for (int rank = 0; rank < 64; ++rank) ranks.emplace_back(ensure, rank == 0);
  }
  const double actual = tenth ? total - tenth->elapsed : 0;
  Figure eta{.name = "EnsureKernels: error of the estimate at a tenth", .unit = "%", .bar = 25};
  if (tenth && actual > 0) eta.value = 100 * std::abs(tenth->told - actual) / actual;
  eta.note = fmt::format("told {:.1f} s, were {:.1f} s", tenth ? tenth->told : 0.0, actual);
  return {{.name = fmt::format("EnsureKernels, 64 ranks, {} kernels: compiles", kernels),
           .value = static_cast<double>(daemon.Stats().compiles()),
           .unit = "",
           .bar = static_cast<double>(kernels),
           .note = fmt::format("{} calls failed {}, {:.1f} s", failed.load(), failure, total)},
          eta};
}

}  // namespace kiln::bench
