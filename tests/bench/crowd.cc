// SPDX-License-Identifier: Apache-2.0
//
// Hits of 64 connections against empty calls that return as many bytes, side by side; and hits beside a storm of compiles.
#include <atomic>
#include <functional>
#include <thread>

#include <fmt/format.h>

#include "tests/bench/calls.h"
#include "tests/bench/programs.h"

namespace kiln::bench {
namespace {

constexpr int kConnections = 64;
constexpr std::size_t kBytes = 50'000;

void Check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error("kilnd: " + status.error_message());
}

struct Rate {
  double per_second = 0;
  std::vector<double> milliseconds;
};

// One thread each, one call after the other.
Rate Drive(std::chrono::milliseconds span, const std::vector<std::function<void()>>& calls) {
  std::atomic<bool> stop = false;
  std::mutex mutex;
  Rate rate;
  const auto began = Clock::now();
  {
    std::vector<std::jthread> threads;
    for (const auto& call : calls) {
      threads.emplace_back([&] {
        std::vector<double> mine;
        while (!stop) {
          const auto from = Clock::now();
          call();
          mine.push_back(Milliseconds(Clock::now() - from));
        }
        std::lock_guard lock(mutex);
        rate.milliseconds.insert(rate.milliseconds.end(), mine.begin(), mine.end());
      });
    }
    std::this_thread::sleep_for(span);
    stop = true;
  }
  rate.per_second = static_cast<double>(rate.milliseconds.size()) / (Milliseconds(Clock::now() - began) / 1000);
  return rate;
}

v1::CompileRequest Plant(const Daemon& daemon, const Setup& setup) {
  v1::CompileRequest request;
  request.set_module(Variants(setup)(1));
  request.set_target("cuda:sm_80");
  v1::PutRequest put;
  *put.mutable_request() = request;
  put.mutable_artifact()->set_target(request.target());
  put.mutable_artifact()->set_compiler(daemon.build_id());
  put.mutable_artifact()->set_code(std::string(kBytes - 200, 'c'));
  grpc::ClientContext context;
  v1::PutReply reply;
  Check(daemon.Connect()->Put(&context, put, &reply));
  return request;
}

std::vector<std::function<void()>> Hits(const Daemon& daemon, const v1::CompileRequest& request, int connections) {
  std::vector<std::function<void()>> calls;
  for (int i = 0; i < connections; ++i) {
    calls.push_back([stub = std::shared_ptr<v1::Kiln::Stub>(daemon.Connect()), &request] {
      grpc::ClientContext context;
      v1::CompileReply reply;
      Check(stub->Compile(&context, request, &reply));
      if (reply.origin() != v1::MEMORY) throw std::runtime_error("what was put was not found: this would time no hit");
    });
    calls.back()();
  }
  return calls;
}

std::vector<Figure> SideBySide(const Setup& setup, const Peer& peer, const std::vector<std::function<void()>>& hits) {
  std::vector<std::function<void()>> empty;
  for (int i = 0; i < kConnections; ++i) empty.push_back([channel = peer.Connect()] { Peer::Call(*channel, kBytes); });
  for (const auto& call : empty) call();
  std::vector<double> throughput;
  std::vector<double> tail;
  double rate = 0;
  for (int round = 0; round < (setup.quick ? 3 : 9); ++round) {
    const std::chrono::milliseconds span(setup.quick ? 300 : 1500);
    const Rate theirs = Drive(span, empty);
    const Rate ours = Drive(span, hits);
    rate = ours.per_second;
    throughput.push_back(ours.per_second / theirs.per_second);
    tail.push_back(Quantile(ours.milliseconds, 0.99) / Quantile(theirs.milliseconds, 0.99));
  }
  return {{.name = "hits of 64 connections, 50 KB: throughput",
           .value = Median(throughput),
           .unit = "×",
           .bar = 0.7,
           .at_most = false,
           .note = fmt::format("{:.0f} calls a second", rate)},
          {.name = "hits of 64 connections, 50 KB: p99", .value = Median(tail), .unit = "×", .bar = 2}};
}

// Hits of 8 connections with pauses, so that the processors are free for the storm: without and with it, in turns.
Figure BesideAStorm(const Setup& setup, const Daemon& daemon, std::vector<std::function<void()>> hits) {
  for (auto& hit : hits) {
    hit = [hit] {
      hit();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    };
  }
  const auto stub = daemon.Connect();
  std::atomic<unsigned> next = 100'000;
  std::vector<double> ratios;
  const Variants variant(setup);
  double quiet_ms = 0;
  double storm_ms = 0;
  for (int round = 0; round < (setup.quick ? 2 : 7); ++round) {
    const std::chrono::milliseconds span(setup.quick ? 500 : 2000);
    const auto p99 = [&] {
      std::vector<double> times = Drive(span, hits).milliseconds;
      for (double& time : times) time -= 2;
      return Quantile(std::move(times), 0.99);
    };
    quiet_ms = p99();
    std::atomic<bool> stop = false;
    Pending pending;
    std::jthread storm([&] {
      while (!stop) {
        v1::CompileRequest request;
        request.set_module(variant(next++));
        request.set_target("cuda:sm_80");
        pending.WaitUntilAtMost(15);
        pending.Add();
        CompileAsync(*stub, request, [&](const Answer&) { pending.Done(); });
      }
    });
    storm_ms = p99();
    stop = true;
    storm.join();
    pending.WaitUntilAtMost(0);
    ratios.push_back(storm_ms / quiet_ms);
  }
  return {.name = "p99 of hits beside a compile storm over without",
          .value = Median(ratios),
          .unit = "×",
          .bar = 2,
          .note = fmt::format("{:.2f} ms against {:.2f} ms in the last round", storm_ms, quiet_ms)};
}

}  // namespace

std::vector<Figure> MeasureCrowd(const Setup& setup, const Peer& peer) {
  const Daemon daemon(setup, "crowd-store");
  const v1::CompileRequest request = Plant(daemon, setup);
  auto figures = SideBySide(setup, peer, Hits(daemon, request, kConnections));
  figures.push_back(BesideAStorm(setup, daemon, Hits(daemon, request, 8)));
  return figures;
}

}  // namespace kiln::bench
