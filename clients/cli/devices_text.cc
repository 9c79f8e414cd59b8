// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/devices_text.h"

#include <fmt/format.h>

#include "clients/cli/stats_text.h"
#include "clients/cli/terminal.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

template <class Number>
Json Known(const std::optional<Number>& value) {
  return value ? Json(*value) : Json::Null();
}

Json ToJson(const DeviceProcess& process) {
  return Json::Object({{"pid", std::uint64_t{process.pid}}, {"name", process.name}, {"memory_bytes", Known(process.memory_bytes)}});
}

template <class Number>
std::string Text(const std::optional<Number>& value, std::string_view unit) {
  if (!value) return "-";
  if constexpr (std::is_floating_point_v<Number>) return fmt::format("{:.0f}{}", *value, unit);
  else return fmt::format("{}{}", *value, unit);
}

std::string BytesOr(const std::optional<std::uint64_t>& bytes) { return bytes ? Bytes(*bytes) : "-"; }

}  // namespace

Json StateJson(const DeviceState& s) {
  return Json::Object({{"compute_mhz", Known(s.compute_mhz)},
                       {"memory_mhz", Known(s.memory_mhz)},
                       {"most_compute_mhz", Known(s.most_compute_mhz)},
                       {"most_memory_mhz", Known(s.most_memory_mhz)},
                       {"celsius", Known(s.celsius)},
                       {"watts", Known(s.watts)},
                       {"watts_limit", Known(s.watts_limit)},
                       {"memory_used_bytes", Known(s.memory_used_bytes)},
                       {"busy_percent", Known(s.busy_percent)},
                       {"joules", Known(s.joules)},
                       {"processes", s.processes ? Json::Map(*s.processes, [](const DeviceProcess& p) { return ToJson(p); }) : Json::Null()},
                       {"problem", s.problem}});
}

std::string StatesText(const std::vector<DeviceStats>& devices, bool colours) {
  Table now({{"device"},
             {"clock", Align::kRight},
             {"of", Align::kRight},
             {"memory clock", Align::kRight},
             {"temperature", Align::kRight},
             {"power", Align::kRight},
             {"of", Align::kRight},
             {"memory in use", Align::kRight},
             {"busy", Align::kRight},
             {"kilnd's runs", Align::kRight},
             {"waiting", Align::kRight}});
  Table processes({{"device"}, {"process", Align::kRight}, {"name"}, {"memory", Align::kRight}});
  std::string unknown;
  for (const DeviceStats& d : devices) {
    if (!d.state) continue;
    const DeviceState& s = *d.state;
    if (!s.problem.empty()) {
      unknown += fmt::format("\nwhat {} does now is not known: {}\n", d.name, s.problem);
      continue;
    }
    now.Add({d.name, Text(s.compute_mhz, " MHz"), Text(s.most_compute_mhz, " MHz"), Text(s.memory_mhz, " MHz"), Text(s.celsius, " °C"),
             Text(s.watts, " W"), Text(s.watts_limit, " W"), BytesOr(s.memory_used_bytes), Text(s.busy_percent, " %"), std::to_string(d.busy),
             std::to_string(d.queued)});
    if (!s.processes) unknown += fmt::format("\nwhich processes use {} is not known\n", d.name);
    for (const DeviceProcess& p : s.processes ? *s.processes : std::vector<DeviceProcess>()) {
      processes.Add({d.name, std::to_string(p.pid), p.name.empty() ? "-" : p.name, BytesOr(p.memory_bytes)});
    }
  }
  std::string text = now.empty() ? "" : "\n" + now.Text(colours);
  if (!processes.empty()) text += "\n" + processes.Text(colours);
  return text + unknown;
}

}  // namespace kiln::cli
