// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/report.h"

#include <algorithm>

#include <fmt/format.h>

#include "clients/cli/sources.h"
#include "clients/cli/terminal.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::cli {
namespace {

using Align = Table::Align;

v1::Artifact Parse(const Compiled& compiled) {
  v1::Artifact artifact;
  artifact.ParseFromString(compiled.artifact);
  return artifact;
}

template <class Optional>
std::string OrDash(bool has, Optional value) {
  return has ? std::to_string(value) : "-";
}

std::string Heading(std::string_view text, bool colours) { return "\n" + Paint(text, Style::kBold, colours) + "\n"; }

std::string DecisionsText(const v1::Report& report, bool colours) {
  std::string out;
  std::string_view pass;
  Table table({{"what"}, {"decision"}, {"why"}, {"line", Align::kRight}});
  const auto flush = [&] {
    if (!table.empty()) out += Heading(pass, colours) + table.Text(colours);
    table = Table({{"what"}, {"decision"}, {"why"}, {"line", Align::kRight}});
  };
  for (const v1::Decision& decision : report.decisions()) {
    if (decision.pass() != pass) flush();
    pass = decision.pass();
    table.Add({decision.subject(), decision.decision(), decision.reason(), OrDash(decision.line() > 0, decision.line())});
  }
  flush();
  return out;
}

// Each buffer's slot, with where it lies drawn to scale.
std::string SharedMemoryText(const v1::Report& report, bool colours) {
  if (report.shared_memory().empty()) return {};
  constexpr std::uint64_t kWidth = 40;
  std::uint64_t end = 1;
  for (const v1::SharedSlot& slot : report.shared_memory()) {
    end = std::max<std::uint64_t>(end, std::uint64_t{slot.offset()} + slot.bytes());
  }
  Table table({{"offset", Align::kRight}, {"bytes", Align::kRight}, {"versions", Align::kRight}, {"buffer"}, {"place"}, {"layout"}});
  for (const v1::SharedSlot& slot : report.shared_memory()) {
    const std::uint64_t from = slot.offset() * kWidth / end;
    const std::uint64_t to = std::max(from + 1, (std::uint64_t{slot.offset()} + slot.bytes()) * kWidth / end);
    std::string bar(from, ' ');
    for (std::uint64_t i = from; i < std::min(to, kWidth); ++i) bar += "█";
    table.Add({std::to_string(slot.offset()), std::to_string(slot.bytes()), std::to_string(slot.versions()), slot.buffer(),
               "|" + bar + std::string(kWidth - std::min(to, kWidth), ' ') + "|",
               slot.layout() + (slot.bank_conflicts() > 1 ? fmt::format(" {}-way conflicts by rows", slot.bank_conflicts()) : "")});
  }
  return Heading(fmt::format("shared memory, {} bytes", end), colours) + table.Text(colours);
}

}  // namespace

std::string ResourcesText(const Compiled& compiled, bool colours) {
  const v1::Report report = Parse(compiled).report();
  if (report.kernels().empty()) return {};
  Table table({{"kernel"},
               {"registers", Align::kRight},
               {"spilled bytes", Align::kRight},
               {"local bytes", Align::kRight},
               {"scalar registers", Align::kRight},
               {"shared bytes", Align::kRight}});
  for (const v1::KernelResources& kernel : report.kernels()) {
    table.Add({kernel.entry(), OrDash(kernel.has_registers(), kernel.registers()), OrDash(kernel.has_spill_bytes(), kernel.spill_bytes()),
               OrDash(kernel.has_local_bytes(), kernel.local_bytes()), OrDash(kernel.has_scalar_registers(), kernel.scalar_registers()),
               std::to_string(kernel.shared_bytes())});
  }
  return table.Text(colours);
}

std::string ReportText(const Compiled& compiled, bool colours) {
  const v1::Report report = Parse(compiled).report();
  std::string out = DecisionsText(report, colours) + SharedMemoryText(report, colours);
  if (const std::string resources = ResourcesText(compiled, colours); !resources.empty()) {
    out += Heading("resources", colours) + resources;
  }
  return out;
}

std::string TimingsText(const Compiled& compiled, bool colours) {
  if (compiled.timings.empty()) return {};
  double total = 0;
  for (const Timing& timing : compiled.timings) total += timing.milliseconds;
  Table table({{"stage"}, {"ms", Align::kRight}, {"share", Align::kRight}, {""}});
  for (const Timing& timing : compiled.timings) {
    const double share = total > 0 ? timing.milliseconds / total : 0;
    std::string bar;
    for (int i = 0; i < static_cast<int>(share * 40 + 0.5); ++i) bar += "▇";
    table.Add({timing.stage, fmt::format("{:.2f}", timing.milliseconds), fmt::format("{:.0f} %", share * 100), bar});
  }
  table.Add({"total", fmt::format("{:.2f}", total), "", ""});
  return Heading("time", colours) + table.Text(colours);
}

Json ToJson(const Compiled& compiled) {
  return Json::Object(
      {{"key", Hex(compiled.key)},
       {"target", compiled.target},
       {"kind", Name(compiled.kind)},
       {"bytes", std::uint64_t{compiled.code.size()}},
       {"cubin_bytes", std::uint64_t{compiled.cubin.size()}},
       {"origin", Name(compiled.origin)},
       {"durable", compiled.durable},
       {"timings", Json::Map(compiled.timings, [](const Timing& t) { return Json::Object({{"stage", t.stage}, {"milliseconds", t.milliseconds}}); })},
       {"warnings", Json::Map(compiled.warnings, [](const Diagnostic& d) { return Json(d.message); })},
       {"kernels", Json::Map(Parse(compiled).report().kernels(), [](const v1::KernelResources& k) {
          return Json::Object({{"entry", k.entry()},
                               {"shared_bytes", k.shared_bytes()},
                               {"registers", k.has_registers() ? Json(k.registers()) : Json::Null()},
                               {"spill_bytes", k.has_spill_bytes() ? Json(k.spill_bytes()) : Json::Null()},
                               {"local_bytes", k.has_local_bytes() ? Json(k.local_bytes()) : Json::Null()}});
        })}});
}

Json ReportJson(const Compiled& compiled) {
  const v1::Report report = Parse(compiled).report();
  return Json::Object(
      {{"decisions",
        Json::Map(report.decisions(),
                  [](const v1::Decision& d) {
                    return Json::Object(
                        {{"pass", d.pass()}, {"subject", d.subject()}, {"decision", d.decision()}, {"reason", d.reason()}, {"line", d.line()}});
                  })},
       {"shared_memory", Json::Map(report.shared_memory(), [](const v1::SharedSlot& s) {
          return Json::Object({{"buffer", s.buffer()},
                               {"offset", s.offset()},
                               {"bytes", s.bytes()},
                               {"versions", s.versions()},
                               {"layout", s.layout()},
                               {"bank_conflicts", s.bank_conflicts()}});
        })}});
}

}  // namespace kiln::cli
