// SPDX-License-Identifier: Apache-2.0
//
// A hit against an empty unary call that returns as many bytes: the two interleaved, call by call, on one connection each.
#include <atomic>
#include <functional>
#include <thread>

#include <fmt/format.h>

#include "server/testing/minimal_module.h"
#include "tests/bench/figures.h"
#include "tests/bench/programs.h"

namespace kiln::bench {
namespace {

constexpr int kClients = 16;

struct Size {
  const char* name;
  std::size_t bytes;
  int rounds;
};
constexpr Size kSizes[] = {{"64 B", 64, 4000}, {"50 KB", 50'000, 2000}, {"500 KB", 500'000, 400}};

v1::CompileRequest RequestFor(const Setup& setup, std::size_t bytes) {
  v1::CompileRequest request;
  request.set_module(FindProgram(setup, "gemm").value_or(server::testing::MinimalModule()));
  request.set_target("cuda:sm_80");
  request.mutable_options()->set_max_registers(static_cast<std::uint32_t>(bytes % 1000));
  return request;
}

void Check(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error("kilnd: " + status.error_message());
}

// Puts an artifact whose reply has about so many bytes; its key.
std::string Plant(v1::Kiln::Stub& stub, const v1::CompileRequest& request, const std::string& build_id, std::size_t bytes) {
  v1::PutRequest put;
  *put.mutable_request() = request;
  put.mutable_artifact()->set_target(request.target());
  put.mutable_artifact()->set_compiler(build_id);
  put.mutable_artifact()->set_code(std::string(bytes > 200 ? bytes - 200 : 0, 'c'));
  grpc::ClientContext context;
  v1::PutReply reply;
  Check(stub.Put(&context, put, &reply));
  return reply.key();
}

double MicrosecondsOf(const std::function<void()>& call) {
  const auto began = Clock::now();
  call();
  return Milliseconds(Clock::now() - began) * 1000;
}

Figure Ratio(const std::string& name, int rounds, const std::function<void()>& ours, const std::function<void()>& theirs) {
  std::vector<double> our_times;
  std::vector<double> their_times;
  for (int i = -rounds / 10; i < rounds; ++i) {
    const double t = MicrosecondsOf(theirs);
    const double o = MicrosecondsOf(ours);
    if (i < 0) continue;
    their_times.push_back(t);
    our_times.push_back(o);
  }
  const double our_p50 = Median(our_times);
  const double their_p50 = Median(their_times);
  return {.name = name,
          .value = our_p50 / their_p50,
          .unit = "×",
          .bar = 1.5,
          .note = fmt::format("p50 {:.0f} µs against {:.0f} µs", our_p50, their_p50)};
}

// Calls per second of kClients threads, each with what `make` gives it.
double CallsPerSecond(std::chrono::milliseconds span, const std::function<std::function<void()>()>& make) {
  std::vector<std::function<void()>> calls;
  for (int i = 0; i < kClients; ++i) calls.push_back(make());
  for (const auto& call : calls) call();
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> done = 0;
  std::vector<std::jthread> threads;
  const auto began = Clock::now();
  for (const auto& call : calls) {
    threads.emplace_back([&] {
      std::uint64_t mine = 0;
      for (; !stop; ++mine) call();
      done += mine;
    });
  }
  std::this_thread::sleep_for(span);
  stop = true;
  threads.clear();
  return static_cast<double>(done) / (Milliseconds(Clock::now() - began) / 1000);
}

Figure Throughput(const Setup& setup, const Peer& peer, const Daemon& daemon, const Size& size, const v1::CompileRequest& request,
                  std::size_t reply_bytes) {
  const auto make_ours = [&]() -> std::function<void()> {
    std::shared_ptr<v1::Kiln::Stub> stub = daemon.Connect();
    return [stub, &request] {
      grpc::ClientContext context;
      v1::CompileReply reply;
      Check(stub->Compile(&context, request, &reply));
    };
  };
  const auto make_theirs = [&]() -> std::function<void()> { return [channel = peer.Connect(), reply_bytes] { Peer::Call(*channel, reply_bytes); }; };
  const std::chrono::milliseconds span(setup.quick ? 200 : 500);
  std::vector<double> ratios;
  double rate = 0;
  for (int i = 0; i < (setup.quick ? 3 : 7); ++i) {
    const double theirs = CallsPerSecond(span, make_theirs);
    rate = CallsPerSecond(span, make_ours);
    ratios.push_back(rate / theirs);
  }
  return {.name = fmt::format("hit throughput, {} clients, {}", kClients, size.name),
          .value = Median(ratios),
          .unit = "×",
          .bar = 0.6,
          .at_most = false,
          .note = fmt::format("{:.0f} calls a second", rate)};
}

}  // namespace

std::vector<Figure> MeasureHits(const Setup& setup, const Peer& peer) {
  const Daemon daemon(setup, "hit-store");
  const auto stub = daemon.Connect();
  const auto channel = peer.Connect();
  std::vector<Figure> figures;
  for (const Size& size : kSizes) {
    const v1::CompileRequest request = RequestFor(setup, size.bytes);
    v1::LookupRequest lookup;
    lookup.set_key(Plant(*stub, request, daemon.build_id(), size.bytes));
    v1::CompileReply reply;
    const auto compile = [&] {
      grpc::ClientContext context;
      Check(stub->Compile(&context, request, &reply));
    };
    const auto look_up = [&] {
      grpc::ClientContext context;
      Check(stub->Lookup(&context, lookup, &reply));
    };
    compile();
    if (reply.origin() != v1::MEMORY) throw std::runtime_error("what was put was not found: this would time no hit");
    const std::size_t bytes = reply.ByteSizeLong();
    const auto empty = [&] { Peer::Call(*channel, bytes); };
    const int rounds = setup.quick ? size.rounds / 10 : size.rounds;
    figures.push_back(Ratio(fmt::format("Compile hit, {}", size.name), rounds, compile, empty));
    figures.push_back(Ratio(fmt::format("Lookup hit, {}", size.name), rounds, look_up, empty));
    figures.push_back(Throughput(setup, peer, daemon, size, request, bytes));
  }
  return figures;
}

}  // namespace kiln::bench
