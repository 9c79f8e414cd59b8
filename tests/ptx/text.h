// SPDX-License-Identifier: Apache-2.0
//
// PTX as text, taken apart: functions, their registers, and instructions with operands that are numbers of registers. PTX ISA, "Syntax",
// "State Spaces, Types, and Variables", "Instruction Operands". What is not known here is refused by its name.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::ptx {

struct Refusal : std::runtime_error {
  using runtime_error::runtime_error;
};

// kind: b, u, s, f; p: a predicate; B: bf16; 4, 5: e4m3, e5m2; t: tf32. `lanes` of them are packed in a register.
struct Type {
  char kind = 0;
  uint8_t bits = 0, lanes = 1;

  bool operator==(const Type&) const = default;
  bool IsInteger() const { return kind == 'b' || kind == 'u' || kind == 's'; }
  uint32_t Bytes() const { return uint32_t(bits) * lanes / 8; }
};
// No kind where `text` names no type.
Type ParseType(std::string_view text);

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kLocal, kParam, kCluster };

struct Operand {
  enum class Kind : uint8_t { kRegister, kImmediate, kAddress, kVector, kSpecial, kName };
  static constexpr uint32_t kNoRegister = ~0u;

  Kind kind = Kind::kImmediate;
  bool negated = false;               // !%p1
  bool frame = false, local = false;  // of an address or immediate: counts from the function's parameters, or from its local memory
  uint8_t bits = 0;                   // of the register; 1: a predicate
  uint32_t reg = kNoRegister;         // of an address: its base
  uint64_t value = 0;                 // of an address: what is added
  std::vector<Operand> parts;         // of a vector, or of an address with coordinates
  std::string name;

  bool IsNothing() const { return kind == Kind::kName && name == "_"; }
};

struct Thread;
struct Instruction;
using Execute = void (*)(Thread&, const Instruction&);

struct Instruction {
  Execute execute = nullptr;
  uint32_t guard = Operand::kNoRegister;
  bool guard_negated = false;
  Type type, from;      // the last type of its name, and the one before
  uint32_t target = 0;  // of a branch
  uint32_t number = 0;  // what its kind makes of its name: an operation, a count
  std::vector<Operand> operands;
  std::vector<std::string> words;  // of its name
  std::string text;

  bool Has(std::string_view word) const {
    for (const std::string& other : words)
      if (other == word) return true;
    return false;
  }
};

struct Parameter {
  uint32_t offset = 0, bytes = 0;
};

struct Function {
  std::string name;
  bool entry = false;
  std::vector<Parameter> params, results;
  uint32_t frame_bytes = 0;  // parameters, its own and of what it calls
  uint32_t local_bytes = 0;
  uint32_t registers = 0;
  std::vector<Instruction> code;
};

struct Module {
  std::map<std::string, std::unique_ptr<Function>> functions;
  uint32_t shared_bytes = 0;  // of what is declared with a size; dynamic shared memory begins behind it
  std::vector<std::unique_ptr<std::vector<std::byte>>> globals;
  std::vector<std::vector<std::byte>> initial;  // of each of them
};

// Shared memory begins here, as on the hardware: the address 0 is none.
inline constexpr uint32_t kSharedBegin = 1024;

Module Parse(std::string_view text);

}  // namespace kiln::ptx
