// SPDX-License-Identifier: Apache-2.0
//
// A day of a busy cluster, five requests a second, seventy-two times as fast: mostly hits, some new programs, some that are
// refused, streams whose clients lose patience, clients that come and go. They are of several tenants: most of one without limits, some of
// one with a small share of the store and some that may only read there, some of one with a quota of requests, and one that nobody knows.
// The stores are small, so that they are full soon and evict from then on; what still grows after the first quarter grows without bound.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/caller.h"
#include "server/tokens.h"
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

struct Role {
  const char* tenant;  // null: the local user, of the tenant default
  std::uint8_t scopes;
  unsigned clients;
  std::vector<grpc::StatusCode> may;  // end a call of it besides what ought to
};

constexpr auto kRead = static_cast<std::uint8_t>(server::Scope::kRead), kCompile = static_cast<std::uint8_t>(server::Scope::kCompile);
constexpr std::uint64_t kShare = std::uint64_t{4} << 20;  // of the store
const Role kRoles[] = {{nullptr, 0, 18, {}},
                       {"sharing", kRead | kCompile, 6, {}},
                       {"sharing", kRead, 4, {grpc::StatusCode::PERMISSION_DENIED}},
                       {"counted", kRead | kCompile, 3, {grpc::StatusCode::RESOURCE_EXHAUSTED}},
                       {"nobody", 0, 1, {grpc::StatusCode::UNAUTHENTICATED}}};

// Writes who is who; the token of each role.
std::vector<std::string> MakeTokens(const std::filesystem::path& access, const std::filesystem::path& tokens) {
  std::ofstream(access) << fmt::format("[[tenant]]\nname = \"sharing\"\nstore-bytes = {}\n[[tenant]]\nname = \"counted\"\nrequests = 2\n", kShare);
  std::filesystem::permissions(access, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::vector<std::string> secrets;
  std::vector<server::Token> rows;
  for (const Role& role : kRoles) {
    secrets.push_back(role.tenant == nullptr ? "" : server::NewSecret());
    if (role.scopes != 0) {
      rows.push_back({fmt::format("role-{}", rows.size()), role.tenant, role.scopes, server::HashToken(secrets.back()), {}});
    }
  }
  std::filesystem::create_directories(tokens.parent_path());
  if (const auto written = server::WriteTokens(tokens, rows); !written) throw std::runtime_error(written.error());
  return secrets;
}

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
  Client(const Setup& setup, const Daemon& daemon, unsigned number, std::atomic<unsigned>& fresh, const Role& role, std::string secret)
      : variant_(setup), daemon_(daemon), random_(number), fresh_(fresh), role_(role), secret_(std::move(secret)), stub_(daemon.Connect()) {}

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

  void Sign(grpc::ClientContext& context) const {
    if (!secret_.empty()) context.AddMetadata("authorization", "Bearer " + secret_);
  }

  bool IsStranger() const { return role_.tenant != nullptr && role_.scopes == 0; }
  bool MayEndWith(grpc::StatusCode code) const { return std::ranges::find(role_.may, code) != role_.may.end(); }

  bool Compile(std::string module, grpc::StatusCode expected) {
    grpc::ClientContext context;
    Sign(context);
    v1::CompileReply reply;
    const auto code = stub_->Compile(&context, RequestOf(std::move(module)), &reply).error_code();
    return (code == expected && !IsStranger()) || MayEndWith(code);
  }

  bool LosePatience() {
    grpc::ClientContext context;
    Sign(context);
    const auto reader = stub_->CompileStream(&context, RequestOf(variant_(fresh_++)));
    v1::CompileProgress progress;
    const bool let_in = reader->Read(&progress);
    if (let_in) context.TryCancel();  // else its end says why: a call that is cancelled has no other
    const auto code = reader->Finish().error_code();
    const bool ended = code == grpc::StatusCode::CANCELLED || code == grpc::StatusCode::OK;
    if (let_in && IsStranger()) return false;  // however it ended
    return (let_in && ended) || MayEndWith(code);
  }

  bool ComeAndGo() {
    stub_ = daemon_.Connect();
    return daemon_.Stats().state() == "serving";
  }

  const Variants variant_;
  const Daemon& daemon_;
  std::mt19937 random_;
  std::atomic<unsigned>& fresh_;
  const Role& role_;
  const std::string secret_;
  std::shared_ptr<v1::Kiln::Stub> stub_;
};

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
  const std::filesystem::path access = setup.scratch / "soak-access.toml";
  const std::vector<std::string> secrets = MakeTokens(access, setup.scratch / "soak-store" / "tokens");
  const Daemon daemon(setup, "soak-store", {"--memory-cache=8MiB", "--disk-cache=24MiB", "--access=" + access.string()});
  std::atomic<unsigned> fresh = 1'000'000;
  std::atomic<std::uint64_t> sent = 0;
  std::atomic<std::uint64_t> wrong = 0;
  const auto began = Clock::now();
  const auto end = began + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(setup.minutes * 60));
  std::vector<std::jthread> threads;
  std::vector<std::size_t> roles;  // of each client
  for (std::size_t role = 0; role < std::size(kRoles); ++role) roles.insert(roles.end(), kRoles[role].clients, role);
  for (unsigned number = 0; number < kClients; ++number) {
    threads.emplace_back([&, number] {
      Client client(setup, daemon, number, fresh, kRoles[roles.at(number)], secrets[roles.at(number)]);
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
  const double shared = SharedMiB(daemon);
  const v1::StatsReply stats = daemon.Stats();
  std::uint64_t evicted = 0;
  for (const v1::TierStats& tier : stats.tiers()) evicted += tier.evictions();
  return {Growth(samples, "memory", "MiB", 5, &Sample::resident_mib), Growth(samples, "descriptors", "", 4, &Sample::descriptors),
          {.name = "soak: the largest log of the store", .value = std::ranges::max(samples, {}, &Sample::wal_mib).wal_mib, .unit = "MiB",
           .bar = kMaxLogMiB, .note = fmt::format("slope {:+.1f} an hour", Slope(samples, &Sample::wal_mib))},
          {.name = "soak: what the tenant with a share of the store holds at the end", .value = shared, .unit = "MiB",
           .bar = static_cast<double>(kShare) / (1 << 20), .note = ""},
          {.name = "soak: requests without the answer they should get", .value = static_cast<double>(wrong), .unit = "", .bar = 0,
           .note = fmt::format("of {} in {:.1f} min; {} compiles, {} hits, {} evictions", sent.load(), setup.minutes, stats.compiles(),
                               stats.hits(), evicted)}};
}

}  // namespace kiln::bench
