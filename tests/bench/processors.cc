// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/processors.h"

#include <stdexcept>

#include <fmt/format.h>

namespace kiln::bench {
namespace {

cpu_set_t Now() {
  cpu_set_t processors;
  if (::sched_getaffinity(0, sizeof processors, &processors) != 0) throw std::runtime_error("sched_getaffinity fails");
  return processors;
}

void Use(const cpu_set_t& processors) {
  if (::sched_setaffinity(0, sizeof processors, &processors) != 0) throw std::runtime_error("sched_setaffinity fails");
}

}  // namespace

Halves Halves::Of(const cpu_set_t& all) {
  const int count = CPU_COUNT(&all);
  if (count < 2) return {all, all};
  Halves halves{};
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, seen++ < count / 2 ? &halves.servers : &halves.callers);
  }
  return halves;
}

Halves Halves::OfThisProcess() { return Of(Now()); }

std::string Halves::Text() const { return fmt::format("kilnd on {}, callers on {}", bench::Text(servers), bench::Text(callers)); }

std::string Text(const cpu_set_t& processors) {
  std::string text;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &processors)) text += fmt::format("{}{}", text.empty() ? "processor " : ",", cpu);
  }
  return text;
}

OnProcessors::OnProcessors(const cpu_set_t& processors) : before_(Now()) { Use(processors); }
OnProcessors::~OnProcessors() { ::sched_setaffinity(0, sizeof before_, &before_); }

}  // namespace kiln::bench
