// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/sass/torn_registers.h"

#include <algorithm>
#include <span>
#include <unordered_set>
#include <vector>

#include "compiler/llvm/sass/sass.h"

namespace kiln::llvm_ir {
namespace {

// Opcodes of 12 bits.
constexpr unsigned kBranch = 0x947, kExit = 0x94d, kGather = 0x941 /* BSYNC */;
constexpr unsigned kAttempts[] = {0x38d /* ATOMS.CAS, ATOMS.CAST */, 0x3a9 /* ATOMG.CAS */};
constexpr unsigned kFirstControl = 0x140, kLastControl = 0x15f;  // bits 0 to 8
constexpr unsigned kPlainControl[] = {0x942 /* BREAK */, 0x945 /* BSSY */, 0x946 /* YIELD */};
// Opcodes of 9 bits; above them the form, which says what the field B is.
constexpr unsigned kFormOfRegisters = 1, kFormOfConstant = 4, kFormOfWarpRegister = 6;
constexpr unsigned kCompare = 0x00c;  // ISETP
// Arithmetic on registers of the warp. Its fields D, A, B and C are such registers.
constexpr unsigned kOfWarp[] = {
    0x082 /* UMOV */, 0x087 /* USEL */, 0x090 /* UIADD3 */, 0x091 /* ULEA */, 0x092 /* ULOP3 */, 0x099 /* USHF */, 0x0a4 /* UIMAD */};
// Arithmetic on registers of a thread that takes one of the warp as B in a form of its own.
constexpr unsigned kOfThread[] = {0x002, 0x007, 0x00b, 0x00c, 0x010, 0x011, 0x012, 0x019, 0x020, 0x021, 0x023, 0x024, 0x025, 0x036, 0x048};
constexpr unsigned kNone = 63;  // URZ

bool IsOneOf(std::span<const unsigned> opcodes, unsigned opcode) { return std::ranges::find(opcodes, opcode) != opcodes.end(); }

class Instruction : public SassInstruction {
 public:
  using SassInstruction::SassInstruction;

  bool IsConditionalBranch() const { return Opcode() == kBranch && !Unpredicated() && Unconditional(); }
  bool IsAttempt() const { return IsOneOf(kAttempts, Opcode()); }
  bool Compares() const { return Short() == kCompare; }
  // Of 64 bits, the result has two registers.
  bool ComparesResultOf(const Instruction& attempt) const {
    const auto is = [&](unsigned reg) { return reg == attempt.D() || reg == attempt.D() + 1; };
    return is(A()) || (Form() == kFormOfRegisters && is(B()));
  }
  // Gathers the threads of a warp, or goes where is not known here.
  bool Ends() const {
    return Opcode() == kGather || (Opcode() == kExit && Unpredicated()) ||
           (Short() >= kFirstControl && Short() <= kLastControl && Opcode() != kBranch && Opcode() != kExit && !IsOneOf(kPlainControl, Opcode()));
  }
  bool ComputesOfWarp() const {
    return IsOneOf(kOfWarp, Short()) && (Form() == kFormOfRegisters || Form() == kFormOfConstant) && Computed() != kNone;
  }
  // Registers of the warp.
  unsigned Computed() const { return D() & 63; }
  bool Reads(unsigned reg) const {
    if (ComputesOfWarp()) {
      const bool moves = Short() == 0x082;
      return (!moves && (A() & 63) == reg) || (Form() == kFormOfRegisters && (B() & 63) == reg) || (!moves && (C() & 63) == reg);
    }
    return IsOneOf(kOfThread, Short()) && Form() == kFormOfWarpRegister && (B() & 63) == reg;
  }
  bool ReadsAny() const {
    for (unsigned reg = 0; reg < kNone; ++reg)
      if (Reads(reg)) return true;
    return false;
  }

 private:
  unsigned Short() const { return Opcode() & 511; }
  unsigned Form() const { return Opcode() >> 9; }
};

class Function {
 public:
  Function(std::string_view code, bool hopper) : code_(code), hopper_(hopper), count_(code.size() / Instruction::kBytes) {}

  // The instruction that computes a torn register.
  std::optional<size_t> Find() const {
    for (size_t i = 0; i < count_; ++i) {
      const std::optional<size_t> again = AttemptOf(i);
      if (!again) continue;
      for (const size_t apart : Reached(i + 1)) {
        const Instruction instruction = At(apart);
        if (instruction.ComputesOfWarp() && instruction.ReadsAny() && IsRead(*again, instruction.Computed())) return apart;
      }
    }
    return std::nullopt;
  }

 private:
  // Of a loop of attempts, as ptxas makes them, and of what is behind it until the threads are together: more instructions are not looked at.
  static constexpr size_t kMost = 256;
  static constexpr size_t kBack = 16;  // from the branch to the attempt

  Instruction At(size_t i) const { return Instruction(code_.data() + i * Instruction::kBytes); }

  // Where threads go on whose attempt has failed, if `i` is a branch back for them.
  std::optional<size_t> AttemptOf(size_t i) const {
    const Instruction branch = At(i);
    if (!branch.IsConditionalBranch()) return std::nullopt;
    const std::optional<size_t> target = TargetOf(branch, i, count_, hopper_);
    if (!target || *target > i) return std::nullopt;
    std::optional<Instruction> compared;
    for (size_t before = i; before-- > std::max(*target, i - std::min(i, kBack));) {
      const Instruction instruction = At(before);
      if (instruction.Opcode() == kBranch) return std::nullopt;
      if (!compared && instruction.Compares() && instruction.Written() == branch.Predicate()) compared = instruction;
      if (compared && instruction.IsAttempt()) return compared->ComparesResultOf(instruction) ? target : std::nullopt;
    }
    return std::nullopt;
  }

  // Instructions from `begin` on that come before the threads are together.
  std::vector<size_t> Reached(size_t begin) const {
    std::vector<size_t> reached;
    Visit(begin, [&](size_t i, const Instruction&) {
      reached.push_back(i);
      return true;
    });
    return reached;
  }

  // Whether it is read from `begin` on, before the threads are together, with the value that it has there.
  bool IsRead(size_t begin, unsigned reg) const {
    bool read = false;
    Visit(begin, [&](size_t, const Instruction& instruction) {
      read |= instruction.Reads(reg);
      return !read && !(instruction.ComputesOfWarp() && instruction.Computed() == reg);
    });
    return read;
  }

  // `visit` says whether to go on behind the instruction.
  template <typename OfInstruction>
  void Visit(size_t begin, OfInstruction visit) const {
    std::vector<size_t> todo{begin};
    std::unordered_set<size_t> seen;
    while (!todo.empty() && seen.size() < kMost) {
      const size_t i = todo.back();
      todo.pop_back();
      if (i >= count_ || !seen.insert(i).second) continue;
      const Instruction instruction = At(i);
      if (instruction.Ends() || !visit(i, instruction)) continue;
      const bool branches = instruction.Opcode() == kBranch;
      const bool goes_on = !instruction.AlwaysTaken() && !instruction.IfParted();  // behind BRA.DIV the threads are together
      if (!branches || goes_on) todo.push_back(i + 1);
      if (!branches || instruction.IfTogether()) continue;
      if (const auto target = TargetOf(instruction, i, count_, hopper_)) todo.push_back(*target);
    }
  }

  std::string_view code_;
  bool hopper_;
  size_t count_;
};

bool IsKnown(std::string_view arch) { return arch == "sm_75" || arch.starts_with("sm_8") || arch.starts_with("sm_90"); }

}  // namespace

std::string TornRegister::Text() const {
  return function + " computes UR" + std::to_string(reg) + " at " + Hexadecimal(address) +
         ", where threads of a warp that repeat an attempt still read it";
}

std::optional<TornRegister> FindTornRegister(std::string_view cubin, std::string_view arch) {
  if (!IsKnown(arch)) return std::nullopt;
  for (const SassFunction& function : FunctionsOf(cubin)) {
    if (const auto found = Function(function.code, IsHopper(arch)).Find()) {
      const Instruction instruction(function.code.data() + *found * Instruction::kBytes);
      return TornRegister{function.name, *found * Instruction::kBytes, instruction.Computed()};
    }
  }
  return std::nullopt;
}

}  // namespace kiln::llvm_ir
