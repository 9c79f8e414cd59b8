// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/call_record.h"

#include <atomic>
#include <random>

#include <fmt/format.h>

namespace kiln::server {

std::uint64_t NextRequestNumber() {
  static const std::uint64_t process = std::random_device{}() * 0x1'0000'0000ull;
  static std::atomic<std::uint64_t> next = 0;
  return process | (++next & 0xffff'ffff);
}

std::string RequestIdText(std::uint64_t number) { return fmt::format("{:016x}", number); }

}  // namespace kiln::server
