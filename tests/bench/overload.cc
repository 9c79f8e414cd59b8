// SPDX-License-Identifier: Apache-2.0
//
// Ten times more compiles than the workers can do, for a while: what is refused and how fast, what is still done, what it costs.
#include <algorithm>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include "tests/bench/calls.h"
#include "tests/bench/programs.h"

namespace kiln::bench {
namespace {

std::atomic<unsigned> next_program = 200'000;

v1::CompileRequest Fresh(const Variants& variant) {
  v1::CompileRequest request;
  request.set_module(variant(next_program++));
  request.set_target("cuda:sm_80");
  return request;
}

struct Capacity {
  double per_second = 0;
  double kilnd_ms = 0;  // of its processor time for each
};

// Compiles with always so many under way.
Capacity MeasureCapacity(const Setup& setup, const Variants& variant, const Daemon& daemon, std::chrono::milliseconds span) {
  const auto stub = daemon.Connect();
  Pending pending;
  std::size_t done = 0;
  const double cpu = daemon.CpuSeconds();
  const auto began = Clock::now();
  while (Clock::now() - began < span) {
    pending.WaitUntilAtMost(2 * setup.workers() - 1);
    pending.Add();
    ++done;
    CompileAsync(*stub, Fresh(variant), [&](const Answer&) { pending.Done(); });
  }
  pending.WaitUntilAtMost(0);
  const auto count = static_cast<double>(done);
  return {.per_second = 1000 * count / Milliseconds(Clock::now() - began), .kilnd_ms = 1000 * (daemon.CpuSeconds() - cpu) / count};
}

struct Flood {
  std::mutex mutex;
  std::vector<double> refused_ms;
  std::size_t without_retry_info = 0;
  std::size_t failed = 0;
  std::uint64_t compiles = 0;  // of the daemon at the end of the flood, when the queue is still full
  std::vector<double> hit_ms;
  double resident_mib = 0;
  double cpu_seconds = 0;  // of kilnd
  std::size_t sent = 0;
  double seconds = 0;

  void Note(const Answer& answer) {
    std::lock_guard lock(mutex);
    if (answer.ok()) return;
    failed += !answer.refused();
    if (!answer.refused()) return;
    refused_ms.push_back(answer.milliseconds);
    without_retry_info += !answer.has_retry_info;
  }
};

// A call every so often whatever becomes of the others; hits and the memory are looked at beside it.
void Send(const Variants& variant, const Daemon& daemon, double per_second, std::chrono::milliseconds span, Flood& flood) {
  std::vector<std::unique_ptr<v1::Kiln::Stub>> stubs;
  for (int i = 0; i < 16; ++i) stubs.push_back(daemon.Connect());
  const v1::CompileRequest known = Fresh(variant);
  grpc::ClientContext context;
  v1::CompileReply reply;
  stubs[0]->Compile(&context, known, &reply);
  std::atomic<bool> stop = false;
  std::jthread look([&] {
    const auto stub = daemon.Connect();
    while (!stop) {
      grpc::ClientContext hit_context;
      v1::CompileReply hit;
      const auto from = Clock::now();
      const bool ok = stub->Compile(&hit_context, known, &hit).ok() && hit.origin() == v1::MEMORY;
      {
        std::lock_guard lock(flood.mutex);
        if (ok) flood.hit_ms.push_back(Milliseconds(Clock::now() - from));
        flood.failed += !ok;
        flood.resident_mib = std::max(flood.resident_mib, daemon.ResidentMiB());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  Pending pending;
  const double cpu = daemon.CpuSeconds();
  const auto began = Clock::now();
  const std::chrono::duration<double> pause(1 / per_second);
  for (std::size_t i = 0; Clock::now() - began < span; ++i) {
    std::this_thread::sleep_until(began + std::chrono::duration_cast<Clock::duration>(pause * static_cast<double>(i)));
    pending.Add();
    ++flood.sent;
    CompileAsync(*stubs[i % stubs.size()], Fresh(variant), [&](const Answer& answer) {
      flood.Note(answer);
      pending.Done();
    });
  }
  flood.seconds = Milliseconds(Clock::now() - began) / 1000;
  flood.compiles = daemon.Stats().compiles();
  flood.cpu_seconds = daemon.CpuSeconds() - cpu;
  stop = true;
  look.join();
  pending.WaitUntilAtMost(0);
}

}  // namespace

std::vector<Figure> MeasureOverload(const Setup& setup) {
  const Variants variant(setup);
  const Daemon daemon(setup, "overload-store");
  const std::chrono::milliseconds span(setup.quick ? 2000 : 15'000);
  MeasureCapacity(setup, variant, daemon, std::chrono::milliseconds(500));  // the workers are warm then
  const Capacity before = MeasureCapacity(setup, variant, daemon, span / 3);
  const std::uint64_t compiled = daemon.Stats().compiles();
  Flood flood;
  Send(variant, daemon, 10 * before.per_second, span, flood);
  const double goodput = static_cast<double>(flood.compiles - compiled) / flood.seconds;
  const Capacity after = MeasureCapacity(setup, variant, daemon, span / 3);
  const double capacity = (before.per_second + after.per_second) / 2;
  const auto compiles = static_cast<double>(flood.compiles - compiled);
  const double refusal_ms =
      (1000 * flood.cpu_seconds - compiles * (before.kilnd_ms + after.kilnd_ms) / 2) / (static_cast<double>(flood.sent) - compiles);
  std::optional<double> refused;  // none: the flood was no overload
  if (!flood.refused_ms.empty()) refused = Quantile(flood.refused_ms, 0.99);
  return {{.name = "10 × overload: memory of kilnd", .value = flood.resident_mib, .unit = "MiB", .bar = 300},
          {.name = "10 × overload: refusals, p99",
           .value = refused,
           .unit = "ms",
           .bar = 5,
           .note = fmt::format("{} refused, {} without RetryInfo, {} failed otherwise; p50 {:.1f} ms", flood.refused_ms.size(),
                               flood.without_retry_info, flood.failed, Quantile(flood.refused_ms, 0.5))},
          {.name = "10 × overload: refused without RetryInfo, or failed",
           .value = static_cast<double>(flood.without_retry_info + flood.failed),
           .unit = "",
           .bar = 0},
          {.name = "10 × overload: hits served",
           .value = static_cast<double>(flood.hit_ms.size()),
           .unit = "",
           .bar = 100,
           .at_most = false,
           .note = fmt::format("p50 {:.2f} ms, p99 {:.2f} ms", Quantile(flood.hit_ms, 0.5), Quantile(flood.hit_ms, 0.99))},
          {.name = "10 × overload: goodput over capacity",
           .value = goodput / capacity,
           .unit = "×",
           .bar = 0.9,
           .at_most = false,
           .note = fmt::format("{:.0f} compiles a second; capacity {:.0f} before, {:.0f} after; {:.2f} ms of kilnd a compile, "
                               "{:.2f} ms a refusal",
                               goodput, before.per_second, after.per_second, (before.kilnd_ms + after.kilnd_ms) / 2, refusal_ms)}};
}

}  // namespace kiln::bench
