// SPDX-License-Identifier: Apache-2.0
//
// How the tensor cores of an H200 add: all products of one step of k and the accumulator at once. Each is cut off, towards zero, at a
// place so many bits below the largest of their exponents (of a product: the sum of its operands' exponents), and so is the sum below
// its own. Not in any manual; tests/emulator/instructions/conformance compares it bit for bit with the hardware.
#pragma once

#include <cstdint>
#include <vector>

namespace kiln::emulator {

struct Adder {
  int aligned_bits = 25;  // of a term, below the largest exponent
  int kept_bits = 23;     // of the sum, below its own
};
inline constexpr Adder kFloatAdder{}, kFloat8Adder{13, 13};

// c[row][column] += Σ a[row][k] · b[k][column].
void AddAligned(const Adder& adder, const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c, uint32_t columns, uint32_t k);

}  // namespace kiln::emulator
