// SPDX-License-Identifier: Apache-2.0
//
// A day of a busy cluster, five requests a second, seventy-two times as fast: mostly hits, some new programs, some that are
// refused, streams whose clients lose patience, clients that come and go. The stores are small, so that they are full soon and
// evict from then on; what still grows after the first quarter grows without bound.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <fstream>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "tests/bench/calls.h"
#include "tests/bench/programs.h"

namespace kiln::bench {
namespace {

constexpr double kPerSecond = 5 * 72;
constexpr unsigned kKnown = 400;  // programs that are asked for again and again
constexpr int kClients = 32;
constexpr double kMaxLogMiB = 2 * 24 + 8;  // SqliteOptions: cut off above wal_limit, or twice that where a reader stays; one batch

struct Sample {
  double minutes = 0;
  double resident_mib = 0;
  double descriptors = 0;
  double wal_mib = 0;
};

double WalMiB(const std::filesystem::path& state) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::recursive_directory_iterator(state, error)) {
    if (file.path().filename() == "kiln.db-wal") bytes += file.file_size(error);
  }
  return static_cast<double>(bytes) / (1 << 20);
}

class Client {
 public:
  Client(const Setup& setup, const Daemon& daemon, unsigned number, std::atomic<unsigned>& fresh)
      : variant_(setup), daemon_(daemon), random_(number), fresh_(fresh), stub_(daemon.Connect()) {}

  // True when the answer is what such a request should get.
  bool Request() {
    const unsigned dice = random_() % 1000;
    if (dice < 940) return Compile(variant_(Popular()), grpc::StatusCode::OK);
    if (dice < 970) return Compile(variant_(fresh_++), grpc::StatusCode::OK);
    if (dice < 985) return Compile("kiln 1\nnonsense " + std::to_string(random_() % 100), grpc::StatusCode::INVALID_ARGUMENT);
    if (dice < 995) return LosePatience();
    return ComeAndGo();
  }

 private:
  // The lower the number the more popular.
  unsigned Popular() {
    const double u = static_cast<double>(random_()) / static_cast<double>(std::mt19937::max());
    return static_cast<unsigned>(std::pow(kKnown, u));
  }

  v1::CompileRequest RequestOf(std::string module) const {
    v1::CompileRequest request;
    request.set_module(std::move(module));
    request.set_target("cuda:sm_80");
    return request;
  }

  bool Compile(std::string module, grpc::StatusCode expected) {
    grpc::ClientContext context;
    v1::CompileReply reply;
    return stub_->Compile(&context, RequestOf(std::move(module)), &reply).error_code() == expected;
  }

  bool LosePatience() {
    grpc::ClientContext context;
    const auto reader = stub_->CompileStream(&context, RequestOf(variant_(fresh_++)));
    v1::CompileProgress progress;
    reader->Read(&progress);
    context.TryCancel();
    const auto code = reader->Finish().error_code();
    return code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::OK;
  }

  bool ComeAndGo() {
    stub_ = daemon_.Connect();
    return daemon_.Stats().state() == "serving";
  }

  const Variants variant_;
  const Daemon& daemon_;
  std::mt19937 random_;
  std::atomic<unsigned>& fresh_;
  std::shared_ptr<v1::Kiln::Stub> stub_;
};

double MedianOf(const std::vector<Sample>& samples, std::size_t from, std::size_t to, double Sample::*field) {
  std::vector<double> values;
  for (std::size_t i = from; i < to; ++i) values.push_back(samples[i].*field);
  return Median(std::move(values));
}

// Per hour, over the last three quarters.
double Slope(const std::vector<Sample>& samples, double Sample::*field) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t i = samples.size() / 4; i < samples.size(); ++i) {
    const double hours = samples[i].minutes / 60;
    const double value = samples[i].*field;
    n += 1, x += hours, y += value, xx += hours * hours, xy += hours * value;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

Figure Growth(const std::vector<Sample>& samples, const char* what, const char* unit, double bar, double Sample::*field) {
  const std::size_t n = samples.size();
  const double before = MedianOf(samples, n / 4, n / 2, field);
  const double after = MedianOf(samples, 3 * n / 4, n, field);
  return {.name = fmt::format("soak: growth of {} from the second to the last quarter", what), .value = after - before, .unit = unit,
          .bar = bar, .note = fmt::format("{:.1f} to {:.1f}; slope {:+.1f} an hour", before, after, Slope(samples, field))};
}

}  // namespace

std::vector<Figure> MeasureSoak(const Setup& setup) {
  const Daemon daemon(setup, "soak-store", {"--memory-cache=8MiB", "--disk-cache=24MiB"});
  std::atomic<unsigned> fresh = 1'000'000;
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> wrong = 0;
  const auto began = Clock::now();
  const auto end = began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(setup.minutes * 60));
  std::vector<std::jthread> threads;
  for (unsigned number = 0; number < kClients; ++number) {
    threads.emplace_back([&, number] {
      Client client(setup, daemon, number, fresh);
      const std::chrono::duration<double> pause(kClients / kPerSecond);
      for (std::size_t i = 0; Clock::now() < end; ++i) {
        std::this_thread::sleep_until(began + std::chrono::duration_cast<Clock::duration>(pause * static_cast<double>(i)));
        wrong += !client.Request();
        ++sent;
      }
    });
  }
  std::vector<Sample> samples;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    samples.push_back({Milliseconds(Clock::now() - began) / 60'000, daemon.ResidentMiB(), static_cast<double>(daemon.Descriptors()),
                       WalMiB(setup.scratch / "soak-store")});
  }
  threads.clear();
  const v1::StatsReply stats = daemon.Stats();
  std::uint64_t evicted = 0;
  for (const v1::TierStats& tier : stats.tiers()) evicted += tier.evictions();
  return {Growth(samples, "memory", "MiB", 5, &Sample::resident_mib), Growth(samples, "descriptors", "", 4, &Sample::descriptors),
          {.name = "soak: the largest log of the store", .value = std::ranges::max(samples, {}, &Sample::wal_mib).wal_mib, .unit = "MiB",
           .bar = kMaxLogMiB, .note = fmt::format("slope {:+.1f} an hour", Slope(samples, &Sample::wal_mib))},
          {.name = "soak: requests without the answer they should get", .value = static_cast<double>(wrong), .unit = "", .bar = 0,
           .note = fmt::format("of {} in {:.1f} min; {} compiles, {} hits, {} evictions", sent.load(), setup.minutes, stats.compiles(),
                               stats.hits(), evicted)}};
}

}  // namespace kiln::bench
