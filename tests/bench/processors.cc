// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/processors.h"

#include <array>
#include <charconv>
#include <filesystem>
#include <stdexcept>
#include <system_error>

#include <fmt/format.h>

namespace kiln::bench {
namespace {

cpu_set_t Now() {
  cpu_set_t processors;
  if (::sched_getaffinity(0, sizeof processors, &processors) != 0) throw std::runtime_error("sched_getaffinity fails");
  return processors;
}

void Use(const cpu_set_t& processors) {
  if (::sched_setaffinity(0, sizeof processors, &processors) != 0) {
    throw std::runtime_error(fmt::format("this process may not run on processors {}", Text(processors)));
  }
}

std::string_view CutUpTo(char end, std::string_view& text) {
  const std::size_t at = text.find(end);
  const std::string_view part = text.substr(0, at);
  text.remove_prefix(at == text.npos ? text.size() : at + 1);
  return part;
}

std::optional<int> ParseProcessor(std::string_view text) {
  int cpu = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), cpu);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && cpu >= 0 && cpu < CPU_SETSIZE ? std::optional(cpu) : std::nullopt;
}

// "0-3,8"
std::optional<cpu_set_t> ParseProcessors(std::string_view text) {
  cpu_set_t processors;
  CPU_ZERO(&processors);
  do {
    std::string_view range = CutUpTo(',', text);
    const auto first = ParseProcessor(CutUpTo('-', range));
    const auto last = range.empty() ? first : ParseProcessor(range);
    if (!first || !last) return std::nullopt;
    for (int cpu = *first; cpu <= *last; ++cpu) CPU_SET(cpu, &processors);
  } while (!text.empty());
  return CPU_COUNT(&processors) > 0 ? std::optional(processors) : std::nullopt;
}

}  // namespace

Split Split::Halves() {
  const cpu_set_t all = Now();
  const int count = CPU_COUNT(&all);
  if (count < 2) return {all, all, all};
  Split halves{};
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, seen++ < count / 2 ? &halves.kilnd : &halves.callers);
  }
  halves.workers = halves.kilnd;
  return halves;
}

std::optional<Split> Split::Parse(std::string_view text) {
  std::array<std::optional<cpu_set_t>, 3> sets;
  for (auto& set : sets) {
    set = ParseProcessors(CutUpTo(':', text));
    if (!set) return std::nullopt;
  }
  if (!text.empty()) return std::nullopt;
  return Split{*sets[0], *sets[1], *sets[2]};
}

std::string Split::Text() const {
  return fmt::format("workers on {}, kilnd on {}, callers on {}", bench::Text(workers), bench::Text(kilnd), bench::Text(callers));
}

std::string Text(const cpu_set_t& processors) {
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &processors)) continue;
    int last = cpu;
    while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &processors)) ++last;
    text += text.empty() ? "" : ",";
    text += last == cpu ? fmt::format("{}", cpu) : fmt::format("{}-{}", cpu, last);
    cpu = last;
  }
  return text;
}

OnProcessors::OnProcessors(const cpu_set_t& processors) : before_(Now()) { Use(processors); }
OnProcessors::~OnProcessors() { ::sched_setaffinity(0, sizeof before_, &before_); }

// A thread that starts meanwhile is where the one was that started it: until all are found there.
void Move(pid_t process, const cpu_set_t& processors) {
  for (bool moved = true; moved;) {
    moved = false;
    for (const auto& entry : std::filesystem::directory_iterator(fmt::format("/proc/{}/task", process))) {
      const auto thread = static_cast<pid_t>(std::stol(entry.path().filename().string()));
      cpu_set_t now;
      if (::sched_getaffinity(thread, sizeof now, &now) != 0 || CPU_EQUAL(&now, &processors)) continue;  // ended, or there
      if (::sched_setaffinity(thread, sizeof processors, &processors) == 0) moved = true;
    }
  }
}

}  // namespace kiln::bench
