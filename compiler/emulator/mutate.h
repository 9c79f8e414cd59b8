// SPDX-License-Identifier: Apache-2.0
//
// For tests of the emulator: code with one of its barriers, waits and proxy fences left out, or one wait weaker.
#pragma once

#include <cstdint>
#include <string>

namespace kiln::emulator {

// Calls of one of the emulator's functions.
uint32_t CountCalls(const std::string& bitcode, const std::string& name);
// Ways to weaken it: each call left out, then each wait for one group fewer.
uint32_t CountMutants(const std::string& bitcode);

struct Mutant {
  std::string code;
  std::string what;  // "no barrier", "weaker wait"
  uint32_t statement = 0;  // whose
};
Mutant MakeMutant(const std::string& bitcode, uint32_t index);

}  // namespace kiln::emulator
