// SPDX-License-Identifier: Apache-2.0
//
// The worker executable with a compile function that misbehaves on order, for the tests of the daemon: zygote, sandbox and
// protocol are those of kiln-worker. What it does is in CompileOptions.max_registers (thousands: what; rest: how much), which
// is part of the key and means nothing to this worker otherwise.
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "compiler/key.h"
#include "server/testing/escape.h"
#include "server/testing/fake_orders.h"
#include "server/testing/hanging_lister.h"
#include "server/worker/worker_process.h"

namespace {

using kiln::server::WorkerProgram;
using kiln::server::testing::Escape;
using kiln::server::testing::Escapes;
using kiln::server::testing::kBadPtx;
using kiln::server::testing::kLong;
using kiln::server::testing::Order;
namespace v1 = kiln::v1;

void Sleep(uint32_t milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }  // late, as the order asks

void SleepUnlessWoken(std::chrono::milliseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec wanted{seconds.count(), std::chrono::nanoseconds(time - seconds).count()};
  ::nanosleep(&wanted, nullptr);  // late, as the order asks; a signal ends it
}

void UseAllMemory() {
  std::vector<std::unique_ptr<char[]>> blocks;
  for (;;) {
    constexpr std::size_t kBlock = std::size_t{16} << 20;
    blocks.push_back(std::make_unique<char[]>(kBlock));
    for (std::size_t i = 0; i < kBlock; i += 4096) blocks.back()[i] = 1;
  }
}

v1::WorkerResult Diagnose(v1::Diagnostic::Kind kind, uint32_t more = 0) {
  v1::WorkerResult result;
  for (uint32_t i = 0; i <= more; ++i) {
    v1::Diagnostic& diagnostic = *result.add_diagnostics();
    diagnostic.set_kind(kind);
    diagnostic.set_message("the fake worker was told to refuse this");
    diagnostic.set_hint("send another order");
  }
  return result;
}

v1::WorkerResult Answer(const v1::CompileRequest& request, std::size_t bytes) {
  v1::WorkerResult result;
  v1::Artifact& artifact = *result.mutable_artifact();
  artifact.set_target(request.target());
  artifact.set_kind(v1::PTX);
  artifact.set_code(std::string(bytes, 'k'));
  artifact.set_compiler(std::string(kiln::compiler::BuildId()));
  return result;
}

v1::WorkerResult Say(const v1::CompileRequest& request, const char* what) {
  v1::WorkerResult result = Answer(request, 1);
  result.mutable_artifact()->set_code(what);
  return result;
}

v1::WorkerResult Expect(uint32_t microseconds) {
  v1::WorkerResult result;
  result.mutable_estimate()->set_microseconds(microseconds);
  return result;
}

// What the fake ptxas makes of the fake PTX.
v1::WorkerResult Assembled(const v1::Artifact& artifact, const WorkerProgram::JobHooks& hooks) {
  v1::WorkerResult result;
  hooks.on_stage("ptxas");
  result.mutable_assembled()->set_cubin("a cubin of " + artifact.code());
  result.mutable_assembled()->add_warnings()->set_severity(v1::Diagnostic::WARNING);
  result.mutable_assembled()->mutable_warnings(0)->set_message("ptxas: it is fake");
  result.add_timings()->set_stage("ptxas");
  return result;
}

v1::WorkerResult Obey(const v1::CompileRequest& request, const WorkerProgram::JobHooks& hooks) {
  const uint32_t order = request.options().max_registers();
  const uint32_t amount = order % 1000;
  const auto began = std::chrono::steady_clock::now();
  hooks.on_stage("decode");
  switch (static_cast<Order>(order / 1000)) {
    case Order::kAnswer: break;
    case Order::kSleep: SleepUnlessWoken(amount < kLong ? std::chrono::milliseconds(amount * 10) : std::chrono::hours(1)); break;
    case Order::kAbort: ::abort();
    case Order::kFault:
      ::signal(SIGSEGV, SIG_DFL);  // a sanitizer would take it
      ::raise(SIGSEGV);
      break;
    case Order::kHang:
      for (;;) Sleep(1000);
    case Order::kEatMemory: UseAllMemory(); break;
    case Order::kRefuse: return Diagnose(v1::Diagnostic::INVALID, amount);
    case Order::kUnsupported: return Diagnose(v1::Diagnostic::UNSUPPORTED);
    case Order::kDefect: return Diagnose(v1::Diagnostic::INTERNAL);
    case Order::kEscape: return Say(request, Escapes(static_cast<Escape>(amount), hooks.ptxas) ? "escaped" : "refused");
    case Order::kGarbage: {
      for (int fd = 3; fd < 16; ++fd) ::send(fd, "\xff\xff\xff\xff garbage", 12, MSG_NOSIGNAL);
      Sleep(10'000);
      break;
    }
    case Order::kExit: std::_Exit(5);
    case Order::kUnavailable: {
      v1::WorkerResult result;
      result.set_unavailable("ptxas: it was killed");
      return result;
    }
    case Order::kHuge: return Answer(request, std::size_t{amount} << 20);
    case Order::kFailToRank:
      if (request.explain().has_estimate()) ::abort();
      break;
  }
  if (request.explain().has_estimate()) return Expect(amount);
  hooks.on_stage("emit");
  v1::WorkerResult result = Answer(request, 1 + amount * 100);
  v1::Timing& timing = *result.add_timings();
  timing.set_stage("decode");
  timing.set_milliseconds(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
  return result;
}

v1::WorkerResult Compile(const v1::WorkerJob& job, const WorkerProgram::JobHooks& hooks) {
  if (job.has_portable() && job.request().options().max_registers() % 1000 == kBadPtx) return Diagnose(v1::Diagnostic::INTERNAL);
  if (job.has_portable()) return Assembled(job.portable(), hooks);
  v1::WorkerResult result = Obey(job.request(), hooks);
  if (result.has_artifact() && !hooks.ptxas.empty()) result.MergeFrom(Assembled(result.artifact(), hooks));
  return result;
}

// There is no GPU, and nothing is emulated. Who asks for GPUs waits for ever where the worker's own name is kHangingLister.
class NoDevice final : public WorkerProgram::Device {
 public:
  explicit NoDevice(bool hangs) : hangs_(hangs) {}

  v1::DeviceList List() override {
    while (hangs_) Sleep(1000);
    v1::DeviceList list;
    list.add_problems("the fake worker has none");
    return list;
  }
  v1::DeviceResult Run(const v1::DeviceRun&, int, const WorkerProgram::OnStage&) override {
    v1::DeviceResult result;
    result.set_refusal("the fake worker runs nothing");
    return result;
  }
  v1::DeviceResult Measure(const v1::DeviceMeasure& measure, int memory, const WorkerProgram::OnStage& on_stage) override {
    return Run(measure.run(), memory, on_stage);
  }

 private:
  const bool hangs_;
};

}  // namespace

int main(int argc, char** argv) {
  const bool hangs = std::string_view(argv[0]).ends_with(kiln::server::testing::kHangingLister);
  return kiln::server::WorkerMain(argc, argv,
                                  {.build_id = kiln::compiler::BuildId(),
                                   .passes = {"decode", "emit"},
                                   .initialize = [] { ::signal(SIGUSR1, [](int) {}); },
                                   .compile = Compile,
                                   .make_device = [hangs](kiln::server::WorkerRole) { return std::make_unique<NoDevice>(hangs); }});
}
