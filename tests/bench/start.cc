// SPDX-License-Identifier: Apache-2.0
//
// Starting kilnd over a full store, and what it keeps in memory when nobody asks for anything.
#include <random>
#include <thread>

#include <fmt/format.h>

#include "cache/sqlite/sqlite_tier.h"
#include "server/system/system_clock.h"
#include "tests/bench/figures.h"

namespace kiln::bench {
namespace {

// Entries of 200 KB that have nothing in common, until the store holds `bytes`.
void Fill(const std::filesystem::path& directory, std::uint64_t bytes) {
  constexpr std::size_t kEntry = 200'000;
  const server::SystemClock clock;
  auto store = cache::SqliteTier::Open({.directory = directory}, clock);
  if (!store) throw std::runtime_error(store.error().message);
  std::mt19937_64 engine(7);
  std::string blob(kEntry, '\0');
  for (std::uint64_t i = 0; i * kEntry < bytes; ++i) {
    for (std::size_t at = 0; at + 8 <= blob.size(); at += 8) {
      const std::uint64_t word = engine();
      blob.replace(at, 8, reinterpret_cast<const char*>(&word), 8);
    }
    const cache::BlobView view{"reply", blob};
    auto entry = cache::Seal(cache::Sha256(std::to_string(i)), "", {&view, 1});
    if (!entry) throw std::runtime_error(entry.error().message);
    const auto put = cache::PutAndWait(**store, std::move(*entry));
    if (!put) throw std::runtime_error(put.error().message);
  }
}

}  // namespace

std::vector<Figure> MeasureStart(const Setup& setup) {
  const std::uint64_t bytes = std::uint64_t{1} << (setup.quick ? 26 : 30);
  const std::string size = setup.quick ? "64 MiB" : "1 GiB";
  Fill(setup.scratch / "full-store", bytes);
  std::vector<double> starts;
  double resident = 0;
  for (int i = 0; i < (setup.quick ? 3 : 9); ++i) {
    const Daemon daemon(setup, "full-store");
    starts.push_back(daemon.start_milliseconds());
    if (i > 0) continue;
    std::this_thread::sleep_for(std::chrono::seconds(2));
    resident = daemon.ResidentMiB();
  }
  return {{.name = fmt::format("start to first answer, store of {}", size), .value = Median(starts), .unit = "ms", .bar = 150},
          {.name = fmt::format("idle memory of kilnd, store of {}", size), .value = resident, .unit = "MiB", .bar = 60}};
}

}  // namespace kiln::bench
