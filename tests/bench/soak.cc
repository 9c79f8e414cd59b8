// SPDX-License-Identifier: Apache-2.0
//
// A day of a busy cluster, five requests a second, seventy-two times as fast: mostly hits, and some of every other call. There are new
// programs, refused ones, streams, manifests and runs whose clients lose patience, results put from elsewhere, lookups, runs whose outputs are
// compared, an admin's lists, exports, imports, verifications and metrics, and clients that come and go (SoakClient::Kinds has the shares). They
// are of several tenants: most of one without limits, some of one with a small share of the store and some that may only read there, some of one
// with a quota of requests, and one that nobody knows. What is answered is compared with what this role must get for this call.
//
// The stores are small, so that they are full soon and evict from then on; what still grows after the first quarter grows without bound.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <regex>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/bench/soak_client.h"

namespace kiln::bench {
namespace {

constexpr double kPerSecond = 5 * 72;
constexpr double kLogLimitMiB = 24;  // SqliteOptions::wal_limit
// SqliteOptions: the log is looked at after each checkpoint_bytes of commits, the last of which may be a batch. So it is cut off at 24 + 4 + 8, or
// once more as much where a reader stays (Checkpointer::Truncate adds what the log has then to the limit).
constexpr double kMaxLogMiB = 2 * (kLogLimitMiB + 4 + 8);

struct Sample {
  double minutes = 0;
  double resident_mib = 0;
  double descriptors = 0;
  double processes = 0;
  double wal_mib = 0;
  double sent = 0;  // until then
};

double WalMiB(const std::filesystem::path& state) {
  std::uintmax_t bytes = 0;
  std::error_code error;
  for (const auto& file : std::filesystem::recursive_directory_iterator(state, error)) {
    if (file.path().filename() == "kiln.db-wal") bytes += file.file_size(error);
  }
  return static_cast<double>(bytes) / (1 << 20);
}

// Bytes of the store that the tenant with a share of it holds, once what was put last has been made room for.
double SharedMiB(const Daemon& daemon) {
  double bytes = 0;
  for (int attempt = 0; attempt < 100; ++attempt) {
    bytes = 0;
    grpc::ClientContext context;
    const auto reader = daemon.Connect()->CacheList(&context, {});
    for (v1::CacheEntry entry; reader->Read(&entry);) bytes += entry.tenant() == "sharing" ? static_cast<double>(entry.bytes()) : 0;
    if (reader->Finish().ok() && bytes <= kShare) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return bytes / (1 << 20);
}

double MedianOf(const std::vector<Sample>& samples, std::size_t from, std::size_t to, double Sample::* field) {
  std::vector<double> values;
  for (std::size_t i = from; i < to; ++i) values.push_back(samples[i].*field);
  return Median(std::move(values));
}

// Per hour, over the last three quarters.
double Slope(const std::vector<Sample>& samples, double Sample::* field) {
  double n = 0, x = 0, y = 0, xx = 0, xy = 0;
  for (std::size_t i = samples.size() / 4; i < samples.size(); ++i) {
    const double hours = samples[i].minutes / 60;
    const double value = samples[i].*field;
    n += 1, x += hours, y += value, xx += hours * hours, xy += hours * value;
  }
  return (n * xy - x * y) / (n * xx - x * x);
}

Figure Growth(const std::vector<Sample>& samples, const char* what, const char* unit, double bar, double Sample::* field) {
  const std::size_t n = samples.size();
  const double before = MedianOf(samples, n / 4, n / 2, field);
  const double after = MedianOf(samples, 3 * n / 4, n, field);
  return {.name = fmt::format("soak: growth of {} from the second to the last quarter", what),
          .value = after - before,
          .unit = unit,
          .bar = bar,
          .note = fmt::format("{:.1f} to {:.1f}; slope {:+.1f} an hour", before, after, Slope(samples, field))};
}

// The log rises by some MiB a second and is cut off to nothing, above its limit or, where a reader stays, twice that: a saw, of which a quarter's
// median is where the quarter happens to end, and the largest is one reader's chance. Its mean is half of its teeth's height, so from one limit's
// half to two limits' half, whatever readers do. Teeth that grow by more than lies between are no longer cut off where they should be.
Figure GrowthOfLog(const std::vector<Sample>& samples) {
  const auto quarter = [&](std::size_t which) { return std::span(samples).subspan(which * samples.size() / 4, samples.size() / 4); };
  const auto mean = [](std::span<const Sample> some) {
    double sum = 0;
    for (const Sample& sample : some) sum += sample.wal_mib;
    return sum / static_cast<double>(some.size());
  };
  const auto largest = [](std::span<const Sample> some) { return std::ranges::max(some, {}, &Sample::wal_mib).wal_mib; };
  const double before = mean(quarter(1));
  const double after = mean(quarter(3));
  return {.name = "soak: growth of the mean log from the second to the last quarter",
          .value = after - before,
          .unit = "MiB",
          .bar = kLogLimitMiB / 2,
          .note = fmt::format("{:.1f} to {:.1f}; the largest of each {:.1f}, {:.1f}", before, after, largest(quarter(1)), largest(quarter(3)))};
}

// What was sent, and what was answered wrongly. The first wrong answers are told at once.
class Tally {
 public:
  static constexpr std::uint64_t kShown = 20;

  void Add(std::size_t kind, std::size_t role, const Wrong& wrong) {
    ++sent_[kind];
    if (wrong.empty() || wrong_++ >= kShown) return;
    fmt::print(stderr, "soak: {}, role {} of the tenant {}: {}\n", SoakClient::Kinds()[kind].name, role, kRoles[role].tenant, wrong);
  }

  std::uint64_t sent() const { return std::accumulate(sent_.begin(), sent_.end(), std::uint64_t{0}); }
  std::uint64_t wrong() const { return wrong_; }
  std::string ByKind() const {
    std::string text;
    for (std::size_t kind = 0; kind < sent_.size(); ++kind) {
      text += fmt::format("{}{} {}", kind == 0 ? "" : ", ", SoakClient::Kinds()[kind].name, sent_[kind].load());
    }
    return text;
  }

 private:
  std::vector<std::atomic<std::uint64_t>> sent_ = std::vector<std::atomic<std::uint64_t>>(SoakClient::Kinds().size());
  std::atomic<std::uint64_t> wrong_ = 0;
};

// Where kilnd tells its metrics, by its log.
unsigned short MetricsPort(const Setup& setup) {
  std::ostringstream log;
  log << std::ifstream(setup.scratch / "kilnd.log").rdbuf();
  std::smatch found;
  const std::string text = log.str();
  if (!std::regex_search(text, found, std::regex(R"re(event=monitoring listen="127\.0\.0\.1:(\d+)")re"))) {
    throw std::runtime_error("kilnd's log tells no port of its metrics");
  }
  return static_cast<unsigned short>(std::stoul(found[1]));
}

// All clients, until `end`. Who was late sends at once until it has caught up.
std::vector<std::jthread> StartClients(SoakWorld& world, const std::vector<std::string>& secrets, Tally& tally, Clock::time_point end) {
  std::vector<std::size_t> roles;  // of each client
  for (std::size_t role = 0; role < kRoles.size(); ++role) roles.insert(roles.end(), kRoles[role].clients, role);
  const std::chrono::duration<double> pause(static_cast<double>(roles.size()) / kPerSecond);
  std::vector<std::jthread> threads;
  for (unsigned number = 0; number < roles.size(); ++number) {
    const std::size_t role = roles[number];
    threads.emplace_back([&world, &tally, &secret = secrets[role], pause, end, number, role, began = Clock::now()] {
      SoakClient client(world, number, kRoles[role], secret);
      for (std::size_t i = 0; Clock::now() < end; ++i) {
        std::this_thread::sleep_until(began + std::chrono::duration_cast<Clock::duration>(pause * static_cast<double>(i)));
        const std::size_t kind = client.Draw();
        tally.Add(kind, role, client.Call(kind));
      }
    });
  }
  return threads;
}

std::vector<Sample> Watch(const Setup& setup, const Daemon& daemon, const Tally& tally, Clock::time_point end) {
  const auto began = Clock::now();
  std::vector<Sample> samples;
  while (Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    samples.push_back({Milliseconds(Clock::now() - began) / 60'000, daemon.ResidentMiB(), static_cast<double>(daemon.Descriptors()),
                       static_cast<double>(daemon.Processes()), WalMiB(setup.scratch / "soak-store"), static_cast<double>(tally.sent())});
  }
  return samples;
}

// How fast, at the end as well: at first all programs have to be compiled.
Figure Answers(const Setup& setup, const Tally& tally, const std::vector<Sample>& samples, const v1::StatsReply& stats) {
  std::uint64_t evicted = 0;
  for (const v1::TierStats& tier : stats.tiers()) evicted += tier.evictions();
  const auto sent = static_cast<double>(tally.sent());
  const auto percent = [](double requests, double minutes) { return 100 * requests / (kPerSecond * 60 * minutes); };
  const Sample& late = samples[3 * samples.size() / 4];
  const double at_the_end = percent(samples.back().sent - late.sent, samples.back().minutes - late.minutes);
  return {
      .name = "soak: requests without the answer they should get",
      .value = static_cast<double>(tally.wrong()),
      .unit = "",
      .bar = 0,
      .note = fmt::format("of {} in {:.1f} min, {:.0f} % of the pace, {:.0f} % in the last quarter; {} compiles, {} hits, {} evictions; "
                          "sent: {}",
                          sent, setup.minutes, percent(sent, setup.minutes), at_the_end, stats.compiles(), stats.hits(), evicted, tally.ByKind())};
}

}  // namespace

std::vector<Figure> MeasureSoak(const Setup& setup) {
  const std::filesystem::path access = setup.scratch / "soak-access.toml";
  const std::vector<std::string> secrets = MakeTokens(access, setup.scratch / "soak-store" / "tokens");
  const Daemon daemon(setup, "soak-store",
                      {"--memory-cache=8MiB", "--disk-cache=24MiB", "--metrics-listen=127.0.0.1:0", "--access=" + access.string()});
  SoakWorld world(setup, daemon, MetricsPort(setup));
  Tally tally;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(setup.minutes * 60));
  std::vector<std::jthread> clients = StartClients(world, secrets, tally, end);
  const std::vector<Sample> samples = Watch(setup, daemon, tally, end);
  clients.clear();
  const double shared = SharedMiB(daemon);
  return {Growth(samples, "memory", "MiB", 5, &Sample::resident_mib),
          Growth(samples, "descriptors", "", 4, &Sample::descriptors),
          Growth(samples, "processes", "", 2, &Sample::processes),
          {.name = "soak: the largest log of the store",
           .value = std::ranges::max(samples, {}, &Sample::wal_mib).wal_mib,
           .unit = "MiB",
           .bar = kMaxLogMiB,
           .note = ""},
          GrowthOfLog(samples),
          {.name = "soak: what the tenant with a share of the store holds at the end",
           .value = shared,
           .unit = "MiB",
           .bar = static_cast<double>(kShare) / (1 << 20),
           .note = ""},
          Answers(setup, tally, samples, daemon.Stats())};
}

}  // namespace kiln::bench
