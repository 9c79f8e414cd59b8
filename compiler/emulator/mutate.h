// SPDX-License-Identifier: Apache-2.0
//
// For tests of the emulator: code with one of its barriers and waits left out.
#pragma once

#include <cstdint>
#include <string>

namespace kiln::emulator {

uint32_t CountSynchronization(const std::string& bitcode);

struct Mutant {
  std::string code;
  std::string what;  // "barrier of statement 3"
};
// Without call number `index`.
Mutant DropSynchronization(const std::string& bitcode, uint32_t index);

}  // namespace kiln::emulator
