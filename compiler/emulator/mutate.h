// SPDX-License-Identifier: Apache-2.0
//
// For tests of the emulator: code with one of its barriers, waits, arrivals and fences left out, or one made weaker.
#pragma once

#include <cstdint>
#include <string>

namespace kiln::emulator {

// Calls of one of the emulator's functions.
uint32_t CountCalls(const std::string& bitcode, const std::string& name);
// Ways to break it: each call left out, then each made weaker: a wait for one group fewer or only until sources were read, an
// arrival that expects no bytes.
uint32_t CountMutants(const std::string& bitcode);

struct Mutant {
  std::string code;
  std::string what;        // "no barrier", "weaker wait for products"
  uint32_t statement = 0;  // whose
};
Mutant MakeMutant(const std::string& bitcode, uint32_t index);

// Code that loses one of its stores to shared or global memory, or one of its asynchronous copies.
uint32_t CountWrites(const std::string& bitcode);
Mutant LoseWrite(const std::string& bitcode, uint32_t index);

}  // namespace kiln::emulator
