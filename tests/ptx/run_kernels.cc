// SPDX-License-Identifier: Apache-2.0
//
// Kernels of one thread whose parameter is a pointer, on this host: run_ptx FILE < LINES. A line is a kernel's name and the memory behind its
// pointer, as hexadecimal digits; the memory as the kernel leaves it is printed as a line, or "error: " and what went wrong.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "tests/ptx/program.h"

namespace {

std::string Run(kiln::emulator::Program& program, const std::string& name, const std::string& digits) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) bytes.push_back(uint8_t(std::stoul(digits.substr(i, 2), nullptr, 16)));
  const kiln::emulator::LaunchArgs launch{.entry = name, .threads = 1, .shared_bytes = 4096, .args = {uint64_t(bytes.data())}};
  const kiln::emulator::Memory memory{bytes.data(), bytes.size(), 8, "memory"};
  const auto report = program.Run(launch, std::span(&memory, 1), {});
  if (!report) return "error: " + report.error();
  std::string after;
  for (const uint8_t byte : bytes) after += fmt::format("{:02x}", byte);
  return after;
}

}  // namespace

int main(int argc, char** argv) {
  std::ifstream file(argc == 2 ? argv[1] : "");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  const auto program = kiln::ptx::Load(text);
  if (!program) {
    fmt::print(stderr, "run_ptx: {}\n", program.error());
    return 1;
  }
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string name, digits;
    words >> name >> digits;
    fmt::print("{}\n", Run(**program, name, digits));
  }
}
