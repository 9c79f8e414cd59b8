// SPDX-License-Identifier: Apache-2.0
//
// Instructions of NVIDIA's GPUs from sm_75 on, which have 128 bits. NVIDIA does not document them; the fields below are what nvdisasm shows, on
// sm_75, sm_80, sm_89 and sm_90a.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::llvm_ir {

class SassInstruction {
 public:
  static constexpr size_t kBytes = 16;
  static constexpr unsigned kTrue = 7;  // the predicate that always holds

  explicit SassInstruction(const char* bytes) {
    std::memcpy(&low_, bytes, 8);
    std::memcpy(&high_, bytes + 8, 8);
  }

  unsigned Opcode() const { return low_ & 4095; }
  // The predicate under which it is executed, and whether where that does not hold.
  unsigned Predicate() const { return low_ >> 12 & 7; }
  bool Unpredicated() const { return (low_ >> 12 & 15) == kTrue; }
  // Registers.
  unsigned D() const { return low_ >> 16 & 255; }
  unsigned A() const { return low_ >> 24 & 255; }
  unsigned B() const { return low_ >> 32 & 255; }
  unsigned C() const { return high_ & 255; }
  bool NegatesB() const { return low_ >> 63 != 0; }
  // Of a comparison: the predicate that it writes.
  unsigned Written() const { return high_ >> 17 & 7; }
  // Of a branch: a second condition, or none.
  bool Unconditional() const { return (high_ >> 23 & 15) == kTrue; }
  // Of a branch: whether it is taken only where the threads of a mask have parted (BRA.DIV), or only where they are together (BRA.CONV).
  bool IfParted() const { return (low_ >> 32 & 3) == 2; }
  bool IfTogether() const { return (low_ >> 32 & 3) == 3; }
  // Of a branch or exit: whether all threads that come to it take it.
  bool AlwaysTaken() const { return Unpredicated() && Unconditional() && !IfParted() && !IfTogether(); }
  // Of a branch: how many bytes behind the next instruction its target is.
  int64_t Offset(bool hopper) const {
    const uint64_t field = low_ >> 34 | high_ << 30;
    const uint64_t words = hopper ? field << 8 | D() : field;
    const int unused = hopper ? 8 : 16;  // high bits
    return int64_t(words << unused) >> unused << 2;
  }

 protected:
  uint64_t low_, high_;
};

// From sm_90 on, the low byte of a branch's offset has another place.
inline bool IsHopper(std::string_view arch) { return arch.starts_with("sm_90"); }

// The number of the instruction that the branch with this number leads to, if it is one of so many.
std::optional<size_t> TargetOf(const SassInstruction& branch, size_t number, size_t count, bool hopper);

struct SassFunction {
  std::string name;
  std::string_view code;  // in `cubin`
};
// The functions of an ELF file in their order; none where it is no ELF file.
std::vector<SassFunction> FunctionsOf(std::string_view cubin);

std::string Hexadecimal(uint64_t address);

}  // namespace kiln::llvm_ir
