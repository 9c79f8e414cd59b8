// SPDX-License-Identifier: Apache-2.0
#include "server/system/process_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

namespace kiln::server {
namespace {

double Seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6; }

}  // namespace

ProcessUsage ReadProcessUsage() {
  ProcessUsage usage;
  std::uint64_t pages = 0;
  if (std::ifstream("/proc/self/statm") >> pages >> pages) {
    usage.resident_bytes = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (!error) usage.open_descriptors = static_cast<std::uint64_t>(std::distance(begin(open), end(open)));
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) usage.max_descriptors = limit.rlim_cur;
  rusage used{};
  if (::getrusage(RUSAGE_SELF, &used) == 0) usage.cpu_seconds = Seconds(used.ru_utime) + Seconds(used.ru_stime);
  return usage;
}

}  // namespace kiln::server
