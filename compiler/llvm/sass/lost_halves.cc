// SPDX-License-Identifier: Apache-2.0
//
// A walk along the code that knows of each register whether its high half was set by itself, and where its low half is stored.
#include "compiler/llvm/sass/lost_halves.h"

#include <array>

#include "compiler/llvm/sass/sass.h"

namespace kiln::llvm_ir {
namespace {

constexpr unsigned kNoRegister = 255;  // RZ
constexpr unsigned kBranch = 0x947, kExit = 0x94d;
constexpr unsigned kStoreLocal = 0x387;      // STL, to register A and an offset
constexpr unsigned kPermute = 0x816;         // PRMT with a constant in place of B
constexpr uint32_t kLowAndLowOfC = 0x5410;   // its selector: the low half of A stays, the low half of C becomes the high one
constexpr unsigned kWidthOfSpilledHalf = 3;  // STL.S16; halves of the program's own arrays are stored as U16
constexpr unsigned kLoads[] = {0x381, 0x980, 0x981, 0x983, 0x984, 0xb82};  // LDG, LD, LDG, LDL, LDS, LDC
constexpr unsigned kStores[] = {0x385, 0x386, 0x387, 0x388, 0x985, 0x986, 0x987, 0x988};

template <size_t kCount>
bool IsOneOf(const unsigned (&opcodes)[kCount], unsigned opcode) {
  for (const unsigned one : opcodes)
    if (one == opcode) return true;
  return false;
}

class Instruction : public SassInstruction {
 public:
  using SassInstruction::SassInstruction;

  bool StoresSpilledHalf() const { return Opcode() == kStoreLocal && Width() == kWidthOfSpilledHalf; }
  uint32_t Offset() const { return uint32_t(low_ >> 40); }
  // Puts a value into the high half of its register, and leaves the low half.
  bool SetsHighHalf() const { return Opcode() == kPermute && uint32_t(low_ >> 32) == kLowAndLowOfC && A() == D(); }
  // Registers from D on that it writes.
  unsigned Written() const {
    if (IsOneOf(kStores, Opcode()) || D() == kNoRegister) return 0;
    if (!IsOneOf(kLoads, Opcode())) return 1;
    return Width() == 5 ? 2 : Width() == 6 ? 4 : 1;
  }

 private:
  unsigned Width() const { return high_ >> 9 & 7; }  // of a load or store
};

struct Place {
  unsigned base;    // register
  uint32_t offset;  // in bytes
};

// What is known of a register since it was written as a whole.
struct Halves {
  bool set_apart = false;                // its high half was set by itself
  std::optional<Place> in_low, in_high;  // where its low half is stored: in the low half of a word, and in the high half of one
};

class Walk {
 public:
  // Whether this instruction loses a half.
  bool Loses(const Instruction& instruction) {
    if (instruction.Opcode() == kBranch || instruction.Opcode() == kExit) {
      if (instruction.AlwaysTaken()) halves_ = {};
      return false;
    }
    if (instruction.StoresSpilledHalf()) return Loses(halves_[instruction.B()], {instruction.A(), instruction.Offset()});
    if (instruction.SetsHighHalf()) {
      halves_[instruction.D()].set_apart = true;
      return false;
    }
    for (unsigned i = 0; i < instruction.Written() && instruction.D() + i < halves_.size(); ++i) halves_[instruction.D() + i] = {};
    return false;
  }

 private:
  static bool Loses(Halves& halves, const Place& place) {
    if (place.offset % 4 == 0) {
      halves.in_low = place;
    } else if (halves.set_apart) {
      halves.in_high = place;
    }
    return halves.in_low && halves.in_high && halves.in_low->base == halves.in_high->base && halves.in_low->offset + 2 == halves.in_high->offset;
  }

  std::array<Halves, 256> halves_{};
};

bool IsKnown(std::string_view arch) { return arch == "sm_75" || arch.starts_with("sm_8") || arch.starts_with("sm_90"); }

}  // namespace

std::string LostHalf::Text() const {
  return function + " stores the low half of R" + std::to_string(reg) + " at " + Hexadecimal(address) + ", where its high half belongs";
}

std::optional<LostHalf> FindLostHalf(std::string_view cubin, std::string_view arch) {
  if (!IsKnown(arch)) return std::nullopt;
  for (const SassFunction& function : FunctionsOf(cubin)) {
    Walk walk;
    for (size_t at = 0; at + Instruction::kBytes <= function.code.size(); at += Instruction::kBytes) {
      const Instruction instruction(function.code.data() + at);
      if (walk.Loses(instruction)) return LostHalf{function.name, at, instruction.B()};
    }
  }
  return std::nullopt;
}

}  // namespace kiln::llvm_ir
