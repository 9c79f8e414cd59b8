// SPDX-License-Identifier: Apache-2.0
#include "server/execute/gpu_energy.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "clients/runtime/timing.h"

namespace kiln::server {
namespace {

using std::chrono::duration;

constexpr duration<double> kBatch{2e-3};    // of launches, after each of which the counter is read
constexpr duration<double> kSettle{30e-3};  // power follows the load with a delay
constexpr duration<double> kPatience{1.0};  // for the counter to move
constexpr double kMostInBatch = 1000;
constexpr std::size_t kAhead = 2;  // batches that the device has to do while one is waited for

double Seconds(cache::SteadyTime::duration time) { return duration<double>(time).count(); }

// The device has launches to do at all times.
class Load {
 public:
  Load(runtime::Kernel& kernel, std::span<const runtime::Arg> args, unsigned batch) : kernel_(kernel), args_(args), batch_(batch) {}

  // Waits for the next batch to end.
  runtime::Result<void> Advance() {
    while (ends_.size() < kAhead) {
      if (auto submitted = Submit(); !submitted) return submitted;
    }
    auto ended = ends_.front().Synchronize();
    ends_.pop_front();
    launches_ += batch_;
    return ended;
  }
  std::uint64_t launches() const { return launches_; }

 private:
  runtime::Result<void> Submit() {
    for (unsigned i = 0; i < batch_; ++i) {
      if (auto launched = kernel_.Launch(args_, nullptr); !launched) return launched;
    }
    auto end = runtime::Event::Create(kernel_.shared_device());
    if (!end) return std::unexpected(std::move(end.error()));
    ends_.push_back(std::move(*end));
    return ends_.back().Record();
  }

  runtime::Kernel& kernel_;
  const std::span<const runtime::Arg> args_;
  const unsigned batch_;
  std::deque<runtime::Event> ends_;
  std::uint64_t launches_ = 0;
};

struct Movement {
  cache::SteadyTime at{};
  std::uint64_t millijoules = 0;
  std::uint64_t launches = 0;  // that had ended
};

using Moved = std::expected<Movement, std::string>;  // or why it does not move

// The counter's first movement from now on.
runtime::Result<Moved> NextMovement(Load& load, const runtime::Sensor& sensor, const cache::Clock& clock) {
  const auto first = sensor.Millijoules();
  if (!first) return Moved(std::unexpected(first.error()));
  for (const auto since = clock.SteadyNow(); clock.SteadyNow() - since < kPatience;) {
    if (auto advanced = load.Advance(); !advanced) return std::unexpected(std::move(advanced.error()));
    const auto now = sensor.Millijoules();
    if (!now) return Moved(std::unexpected(now.error()));
    if (*now != *first) return Moved(Movement{clock.SteadyNow(), *now, load.launches()});
  }
  return Moved(std::unexpected("the GPU's counter of energy does not move"));
}

runtime::Result<void> LoadFor(Load& load, duration<double> time, const cache::Clock& clock) {
  for (const auto since = clock.SteadyNow(); clock.SteadyNow() - since < time;) {
    if (auto advanced = load.Advance(); !advanced) return advanced;
  }
  return {};
}

}  // namespace

runtime::Result<std::expected<v1::LaunchEnergy, std::string>> MeasureEnergy(runtime::Kernel& kernel, std::span<const runtime::Arg> args,
                                                                            const runtime::Sensor& sensor, const cache::Clock& clock,
                                                                            duration<double> span) {
  using Told = std::expected<v1::LaunchEnergy, std::string>;
  if (const auto counter = sensor.Millijoules(); !counter) return Told(std::unexpected(counter.error()));
  const auto once = runtime::MeasureLaunches(kernel, args, nullptr, 1, 2);
  if (!once) return std::unexpected(once.error());
  const double microseconds = std::max(0.1, std::ranges::min(*once));
  Load load(kernel, args, static_cast<unsigned>(std::clamp(kBatch.count() * 1e6 / microseconds, 1.0, kMostInBatch)));
  if (auto loaded = LoadFor(load, kSettle, clock); !loaded) return std::unexpected(std::move(loaded.error()));
  auto from = NextMovement(load, sensor, clock);
  if (!from) return std::unexpected(std::move(from.error()));
  if (!*from) return Told(std::unexpected(std::move(from->error())));
  if (auto loaded = LoadFor(load, span / 2, clock); !loaded) return std::unexpected(std::move(loaded.error()));
  const runtime::GpuClocks clocks = sensor.Clocks();
  if (auto loaded = LoadFor(load, span / 2, clock); !loaded) return std::unexpected(std::move(loaded.error()));
  auto to = NextMovement(load, sensor, clock);
  if (!to) return std::unexpected(std::move(to.error()));
  if (!*to) return Told(std::unexpected(std::move(to->error())));

  if ((*to)->millijoules <= (*from)->millijoules) return Told(std::unexpected("the GPU's counter of energy was reset meanwhile"));

  const std::uint64_t launches = (*to)->launches - (*from)->launches;
  const double seconds = Seconds((*to)->at - (*from)->at), joules = static_cast<double>((*to)->millijoules - (*from)->millijoules) / 1000;
  v1::LaunchEnergy energy;
  energy.set_joules(joules / static_cast<double>(launches));
  energy.set_watts(joules / seconds);
  energy.set_microseconds(seconds * 1e6 / static_cast<double>(launches));
  energy.set_launches(static_cast<std::uint32_t>(launches));
  energy.set_compute_mhz(clocks.compute_mhz.value_or(0));
  return Told(std::move(energy));
}

}  // namespace kiln::server
