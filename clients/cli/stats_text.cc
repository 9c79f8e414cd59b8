// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/stats_text.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "clients/cli/terminal.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;
constexpr int kBar = 20;

Json ToJson(const std::vector<NamedCount>& counts) {
  std::vector<std::pair<std::string_view, Json>> members;
  for (const NamedCount& c : counts) members.emplace_back(c.name, c.count);
  return Json::Object(std::move(members));
}

Json ToJson(const TierStats& t) {
  return Json::Object({{"name", t.name},
                       {"state", t.state},
                       {"entries", t.entries},
                       {"bytes", t.bytes},
                       {"capacity_bytes", t.capacity_bytes},
                       {"hits", t.hits},
                       {"misses", t.misses},
                       {"evictions", t.evictions},
                       {"corrupt", t.corrupt},
                       {"refused", t.refused}});
}

Json ToJson(const TargetStats& t) { return Json::Object({{"name", t.name}, {"compiles", t.compiles}, {"failed", t.failed}, {"mean_ms", t.mean_ms}}); }

Json ToJson(const DeviceStats& d) {
  return Json::Object({{"name", d.name},
                       {"workers", d.workers},
                       {"busy", d.busy},
                       {"queued", d.queued},
                       {"runs", d.runs},
                       {"faults", d.faults},
                       {"worker_crashes", d.worker_crashes},
                       {"busy_seconds", d.busy_seconds}});
}

Json ToJson(const TuningStats& t) {
  return Json::Object({{"running", t.running},
                       {"in_background", t.in_background},
                       {"queued", t.queued},
                       {"most", t.most},
                       {"finished", t.finished},
                       {"failed", t.failed},
                       {"cancelled", t.cancelled},
                       {"refused", t.refused},
                       {"candidates", t.candidates},
                       {"device_seconds", t.device_seconds},
                       {"compiles", t.compiles},
                       {"most_compiles", t.most_compiles}});
}

std::string TuningText(const TuningStats& t) {
  return fmt::format(
      "tunings: {} of {} run, {} of them in the background, {} wait for a device; {} finished, {} failed, {} cancelled, {} refused\n"
      "they kept devices busy for {:.1f} s, and take {} of the {} compile workers that they may\n",
      t.running, t.most, t.in_background, t.queued, t.finished, t.failed, t.cancelled, t.refused, t.device_seconds, t.compiles, t.most_compiles);
}

std::string Counts(std::string_view what, const std::vector<NamedCount>& counts) {
  if (counts.empty()) return {};
  std::string text = fmt::format("{}:", what);
  for (const NamedCount& c : counts) text += fmt::format(" {} {}", c.name, c.count);
  return text + "\n";
}

std::string TierTable(const Stats& s, bool colours) {
  Table tiers({{"tier"},
               {"state"},
               {"entries", Align::kRight},
               {"size", Align::kRight},
               {"of", Align::kRight},
               {"hits", Align::kRight},
               {"misses", Align::kRight},
               {"evicted", Align::kRight},
               {"corrupt", Align::kRight},
               {"refused", Align::kRight}});
  for (const TierStats& t : s.tiers) {
    tiers.Add({t.name, t.state, std::to_string(t.entries), Bytes(t.bytes), Bytes(t.capacity_bytes), std::to_string(t.hits), std::to_string(t.misses),
               std::to_string(t.evictions), std::to_string(t.corrupt), std::to_string(t.refused)});
  }
  return tiers.Text(colours);
}

std::string TargetTable(const Stats& s, bool colours) {
  if (s.targets.empty()) return {};
  Table targets({{"target"}, {"compiles", Align::kRight}, {"failed", Align::kRight}, {"mean", Align::kRight}});
  for (const TargetStats& t : s.targets) {
    targets.Add({t.name, std::to_string(t.compiles), std::to_string(t.failed), fmt::format("{:.1f} ms", t.mean_ms)});
  }
  return "\n" + targets.Text(colours);
}

std::string DeviceTable(const Stats& s, bool colours) {
  if (s.devices.empty()) return {};
  Table devices({{"device"},
                 {"busy", Align::kRight},
                 {"of", Align::kRight},
                 {"wait", Align::kRight},
                 {"runs", Align::kRight},
                 {"faults", Align::kRight},
                 {"crashes", Align::kRight}});
  for (const DeviceStats& d : s.devices) {
    devices.Add({d.name, std::to_string(d.busy), std::to_string(d.workers), std::to_string(d.queued), std::to_string(d.runs),
                 std::to_string(d.faults), std::to_string(d.worker_crashes)});
  }
  return "\n" + devices.Text(colours);
}

std::string Head(const Stats& s, std::string_view address, bool colours) {
  return fmt::format("{} at {}, up {}, {} in memory\n\n", Paint(s.state, s.state == "serving" ? Style::kGood : Style::kWarn, colours), address,
                     Duration(s.uptime_seconds), Bytes(s.memory_bytes));
}

std::string Gauge(std::string_view name, std::uint64_t value, std::uint64_t of, Style full, bool colours) {
  const double part = of == 0 ? 0 : static_cast<double>(value) / static_cast<double>(of);
  return fmt::format("{:<9}{} {} of {}\n", name, Paint(Bar(part, kBar), part >= 0.9 ? full : Style::kAccent, colours), value, of);
}

double BusySeconds(const Stats& stats) {
  double seconds = 0;
  for (const DeviceStats& d : stats.devices) seconds += d.busy_seconds;
  return seconds;
}

}  // namespace

Json ToJson(const Stats& s) {
  const auto map = [](const auto& items) { return Json::Map(items, [](const auto& item) { return ToJson(item); }); };
  return Json::Object({{"state", s.state},
                       {"uptime_seconds", s.uptime_seconds},
                       {"memory_bytes", s.memory_bytes},
                       {"requests", s.requests},
                       {"hits", s.hits},
                       {"compiles", s.compiles},
                       {"joined", s.joined},
                       {"refused", s.refused},
                       {"failed", s.failed},
                       {"worker_crashes", s.worker_crashes},
                       {"workers", s.workers},
                       {"workers_busy", s.workers_busy},
                       {"queued", s.queued},
                       {"queue_capacity", s.queue_capacity},
                       {"queue_wait_mean_ms", s.queue_wait_mean_ms},
                       {"flights", s.flights},
                       {"compile_p50_ms", s.compile_p50_ms},
                       {"compile_p99_ms", s.compile_p99_ms},
                       {"wal_bytes", s.wal_bytes},
                       {"refusals", ToJson(s.refusals)},
                       {"worker_restarts", ToJson(s.worker_restarts)},
                       {"forwards", ToJson(s.forwards)},
                       {"tenants", ToJson(s.tenants)},
                       {"tiers", map(s.tiers)},
                       {"targets", map(s.targets)},
                       {"devices", map(s.devices)},
                       {"tunings", ToJson(s.tunings)}});
}

std::string StatsText(const Stats& s, std::string_view address, bool colours) {
  const double rate = s.requests > 0 ? 100.0 * static_cast<double>(s.hits) / static_cast<double>(s.requests) : 0;
  Table requests({{"requests", Align::kRight},
                  {"hits", Align::kRight},
                  {"", Align::kRight},
                  {"compiles", Align::kRight},
                  {"joined", Align::kRight},
                  {"refused", Align::kRight},
                  {"failed", Align::kRight},
                  {"worker crashes", Align::kRight}});
  requests.Add({std::to_string(s.requests), std::to_string(s.hits), fmt::format("{:.1f} %", rate), std::to_string(s.compiles),
                std::to_string(s.joined), std::to_string(s.refused), std::to_string(s.failed), std::to_string(s.worker_crashes)});
  return Head(s, address, colours) + requests.Text(colours) + "\n" +
         fmt::format(
             "workers {} of {} busy, {} of {} places in the queue taken, {:.1f} ms there on average\n"
             "a compile takes {:.1f} ms (p50), {:.1f} ms (p99)\n",
             s.workers_busy, s.workers, s.queued, s.queue_capacity, s.queue_wait_mean_ms, s.compile_p50_ms, s.compile_p99_ms) +
         Counts("refusals", s.refusals) + Counts("workers replaced", s.worker_restarts) + Counts("forwarded to the upstream kilnd", s.forwards) +
         Counts("tenants", s.tenants) + TuningText(s.tunings) + "\n" + TierTable(s, colours) + TargetTable(s, colours) + DeviceTable(s, colours);
}

Rates RatesOf(const Stats& before, const Stats& after) {
  const double seconds = after.uptime_seconds - before.uptime_seconds;
  if (seconds <= 0) return {};  // another daemon meanwhile
  const auto rate = [&](std::uint64_t Stats::* counter) {
    return after.*counter < before.*counter ? 0 : static_cast<double>(after.*counter - before.*counter) / seconds;
  };
  Rates rates{rate(&Stats::requests), rate(&Stats::hits), rate(&Stats::compiles), rate(&Stats::joined), rate(&Stats::refused), rate(&Stats::failed)};
  rates.hit_ratio = rates.requests > 0 ? rates.hits / rates.requests : 0;
  double workers = 0;
  for (const DeviceStats& d : after.devices) workers += d.workers;
  if (workers > 0) rates.device_busy = std::clamp((BusySeconds(after) - BusySeconds(before)) / seconds / workers, 0.0, 1.0);
  return rates;
}

Json ToJson(const Rates& r) {
  return Json::Object({{"requests", r.requests},
                       {"hits", r.hits},
                       {"compiles", r.compiles},
                       {"joined", r.joined},
                       {"refused", r.refused},
                       {"failed", r.failed},
                       {"hit_ratio", r.hit_ratio},
                       {"device_busy", r.device_busy}});
}

std::string TopFrame(const Stats& s, const Rates& r, const std::deque<double>& history, std::string_view address, bool colours) {
  Table rates({{"a second"},
               {"requests", Align::kRight},
               {"hits", Align::kRight},
               {"", Align::kRight},
               {"compiles", Align::kRight},
               {"joined", Align::kRight},
               {"refused", Align::kRight},
               {"failed", Align::kRight}});
  const auto number = [](double value) { return fmt::format("{:.1f}", value); };
  rates.Add({"now", number(r.requests), number(r.hits), fmt::format("{:.1f} %", 100 * r.hit_ratio), number(r.compiles), number(r.joined),
             number(r.refused), number(r.failed)});
  std::string text = Head(s, address, colours) + rates.Text(colours);
  text += fmt::format("requests {}\n\n", Paint(Sparkline(history), Style::kAccent, colours));
  text += Gauge("workers", s.workers_busy, s.workers, Style::kWarn, colours);
  text += Gauge("queue", s.queued, s.queue_capacity, Style::kBad, colours);
  if (!s.devices.empty()) {
    text += fmt::format("{:<9}{} {:.0f} % busy\n", "devices", Paint(Bar(r.device_busy, kBar), Style::kAccent, colours), 100 * r.device_busy);
  }
  text += fmt::format("{} keys in flight; a compile takes {:.1f} ms (p50), {:.1f} ms (p99)\n\n", s.flights, s.compile_p50_ms, s.compile_p99_ms);
  return text + TierTable(s, colours) + TargetTable(s, colours) + DeviceTable(s, colours) + Counts("\nrefusals", s.refusals) +
         Counts("workers replaced", s.worker_restarts) + Counts("forwarded to the upstream kilnd", s.forwards) + "\n" + TuningText(s.tunings);
}

std::string Bar(double part, int width) {
  constexpr std::array<const char*, 8> kEighths = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  const int eighths = static_cast<int>(std::lround(std::clamp(part, 0.0, 1.0) * width * 8));
  std::string text;
  for (int i = 0; i < eighths / 8; ++i) text += "█";
  text += kEighths[static_cast<std::size_t>(eighths % 8)];
  const int shown = eighths / 8 + (eighths % 8 != 0);
  return text + std::string(static_cast<std::size_t>(width - shown), ' ');
}

std::string Sparkline(const std::deque<double>& values) {
  constexpr std::array<const char*, 8> kLevels = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  const double top = values.empty() ? 0 : *std::ranges::max_element(values);
  std::string text;
  for (const double value : values) text += kLevels[top <= 0 ? 0 : static_cast<std::size_t>(std::lround(value / top * 7))];
  return text;
}

std::string Duration(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  if (whole < 120) return fmt::format("{} s", whole);
  if (whole < 7200) return fmt::format("{} min {} s", whole / 60, whole % 60);
  if (whole < 172'800) return fmt::format("{} h {} min", whole / 3600, whole / 60 % 60);
  return fmt::format("{} d {} h", whole / 86'400, whole / 3600 % 24);
}

}  // namespace kiln::cli
