// SPDX-License-Identifier: Apache-2.0
//
// A forward analysis: which registers may still be written, by a load that counts on which scoreboard, before each instruction. What instructions
// do is what nvdisasm shows, on sm_80, sm_89 and sm_90a.
#include "compiler/llvm/sass/early_reads.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "compiler/llvm/sass/sass.h"

namespace kiln::llvm_ir {
namespace {

constexpr unsigned kNoRegister = 255;  // RZ
constexpr unsigned kNoScoreboard = 7;
constexpr uint8_t kAllScoreboards = 63;

// What an instruction does, as far as it matters here. Its registers are in the fields D (bits 16 to 23), A (24 to 31), B (32 to 39) and
// C (64 to 71).
enum Role : uint16_t {
  kReadsA = 1 << 0,
  kReadsB = 1 << 1,
  kReadsC = 1 << 2,
  kStores = 1 << 3,         // reads B and the registers behind it, as many as it stores
  kLoads = 1 << 4,          // writes D and the registers behind it, as many as it loads
  kLoadsMatrices = 1 << 5,  // the same by matrices, of which each takes a register
  kWrites = 1 << 6,         // writes D some time later
  kBranches = 1 << 7,
  kExits = 1 << 8,
  kWaits = 1 << 9,    // for the scoreboards in its own fields
  kLeaves = 1 << 10,  // goes where is not known here, or comes back from there
};

struct Row {
  uint16_t opcode;  // 12 bits
  uint16_t roles;
};

// Instructions with one form each.
constexpr Row kRows[] = {
    {0x981, kReadsA | kLoads},             // LDG
    {0x381, kReadsA | kLoads},             // LDG
    {0x980, kReadsA | kLoads},             // LD
    {0x984, kReadsA | kLoads},             // LDS
    {0x983, kReadsA | kLoads},             // LDL
    {0xb82, kLoads},                       // LDC
    {0x83b, kReadsA | kLoadsMatrices},     // LDSM
    {0x986, kReadsA | kStores},            // STG
    {0x386, kReadsA | kStores},            // STG
    {0x388, kReadsA | kStores},            // STS
    {0x988, kReadsA | kStores},            // STS
    {0x387, kReadsA | kStores},            // STL
    {0x987, kReadsA | kStores},            // STL
    {0x844, kReadsA | kReadsB},            // STSM
    {0x9a6, kReadsA | kReadsB},            // RED
    {0xf89, kReadsA | kWrites},            // SHFL
    {0x389, kReadsA | kWrites},            // SHFL
    {0x308, kReadsB | kWrites},            // MUFU
    {0x304, kReadsB | kWrites},            // F2F
    {0x305, kReadsB | kWrites},            // F2I
    {0x306, kReadsB | kWrites},            // I2F
    {0x919, kWrites},                      // S2R
    {0x2ca, kReadsA},                      // R2UR
    {0x23c, kReadsA | kReadsB | kReadsC},  // HMMA
    {0x91a, kWaits},                       // DEPBAR
    {0x947, kBranches},                    // BRA
    {0x94d, kExits},                       // EXIT
};

// Arithmetic comes in forms, told by bits 9 to 11: 1 has registers alone, others a constant in place of one register. The constant has the
// field B; a second register has C then, if the operation takes three operands.
struct Arithmetic {
  uint16_t opcode;  // 9 bits
  uint16_t roles;   // of the form with registers alone
};
constexpr Arithmetic kArithmetic[] = {
    {0x002, kReadsB},                      // MOV
    {0x013, kReadsB},                      // IABS
    {0x045, kReadsB},                      // I2FP
    {0x03e, kReadsB},                      // F2FP
    {0x007, kReadsA | kReadsB},            // SEL
    {0x008, kReadsA | kReadsB},            // FSEL
    {0x009, kReadsA | kReadsB},            // FMNMX
    {0x00b, kReadsA | kReadsB},            // FSETP
    {0x00c, kReadsA | kReadsB},            // ISETP
    {0x011, kReadsA | kReadsB},            // LEA
    {0x01a, kReadsA | kReadsB},            // SGXT
    {0x020, kReadsA | kReadsB},            // FMUL
    {0x021, kReadsA | kReadsB},            // FADD
    {0x030, kReadsA | kReadsB},            // HADD2
    {0x036, kReadsA | kReadsB},            // VIADD
    {0x048, kReadsA | kReadsB},            // VIMNMX
    {0x00f, kReadsA | kReadsB | kReadsC},  // VIMNMX3
    {0x010, kReadsA | kReadsB | kReadsC},  // IADD3
    {0x012, kReadsA | kReadsB | kReadsC},  // LOP3
    {0x016, kReadsA | kReadsB | kReadsC},  // PRMT
    {0x019, kReadsA | kReadsB | kReadsC},  // SHF
    {0x023, kReadsA | kReadsB | kReadsC},  // FFMA
    {0x024, kReadsA | kReadsB | kReadsC},  // IMAD
    {0x025, kReadsA | kReadsB | kReadsC},  // IMAD.WIDE
    {0x027, kReadsA | kReadsB | kReadsC},  // IMAD.HI
    {0x046, kReadsA | kReadsB | kReadsC},  // VIADDMNMX
};

// Control flow, of which most are calls, returns and branches to an address in a register. These go on behind themselves.
constexpr uint16_t kFirstControl = 0x140, kLastControl = 0x15f;  // bits 0 to 8
constexpr uint16_t kPlainControl[] = {0x941 /* BSYNC */, 0x942 /* BREAK */, 0x945 /* BSSY */, 0x946 /* YIELD */, 0x948 /* WARPSYNC.ALL */};

constexpr std::array<uint16_t, 4096> MakeRoles() {
  std::array<uint16_t, 4096> roles{};
  for (uint16_t form = 0; form < 8; ++form) {
    for (uint16_t op = kFirstControl; op <= kLastControl; ++op) roles[size_t(form << 9 | op)] = kLeaves;
    if (form == 0) continue;
    for (const Arithmetic& row : kArithmetic) roles[size_t(form << 9 | row.opcode)] = uint16_t(form == 1 ? row.roles : row.roles & ~kReadsB);
  }
  for (uint16_t op : kPlainControl) roles[op] = 0;
  for (const Row& row : kRows) roles[row.opcode] = row.roles;
  return roles;
}
constexpr std::array<uint16_t, 4096> kRoles = MakeRoles();

class Instruction : public SassInstruction {
 public:
  using SassInstruction::SassInstruction;

  bool Has(Role role) const { return (kRoles[Opcode()] & role) != 0; }
  // Registers that a load or store moves.
  unsigned Moved() const {
    if (Has(kLoadsMatrices)) return 1U << (high_ >> 8 & 3);
    if (!Has(kLoads) && !Has(kStores)) return 1;
    const unsigned width = high_ >> 9 & 7;  // 4: 32 bits, 5: 64, 6: 128; below, parts of a register
    return width == 5 ? 2 : width == 6 ? 4 : 1;
  }
  bool Always() const { return Has(kBranches) ? AlwaysTaken() : Unpredicated(); }
  unsigned Scoreboard() const { return high_ >> 46 & 7; }  // of what it writes
  uint8_t WaitsFor() const {
    const auto waits = uint8_t(high_ >> 52 & kAllScoreboards);
    return Has(kWaits) ? uint8_t(waits | (low_ >> 32 & kAllScoreboards) | 1U << (low_ >> 44 & 7)) : waits;
  }
};

// For each register, a bit for each scoreboard on which a load that may still write it counts.
using Pending = std::array<uint8_t, 256>;

class Function {
 public:
  Function(std::string_view code, bool hopper) : code_(code), hopper_(hopper), head_at_(code.size() / Instruction::kBytes, kNone) {
    AddHead(0);
    for (size_t i = 0; i < head_at_.size(); ++i) {
      if (const std::optional<size_t> target = TargetOf(i)) AddHead(*target);
    }
    std::ranges::sort(heads_, {}, &Head::begin);
    for (size_t h = 0; h < heads_.size(); ++h) head_at_[heads_[h].begin] = uint32_t(h);
  }

  // The instruction that reads early, and its register.
  std::optional<std::pair<size_t, unsigned>> Find() {
    // Without branches back, one round is enough; else, about one more for each loop around another. What comes of a partial result is right,
    // if not all.
    constexpr int kMostRounds = 32;
    for (int round = 0; round < kMostRounds; ++round) {
      bool changed = false;
      for (size_t h = 0; h < heads_.size(); ++h) {
        if (!heads_[h].changed) continue;
        changed = true;
        heads_[h].changed = false;
        if (const auto found = Walk(heads_[h].begin, heads_[h].pending)) return found;
      }
      if (!changed) break;
    }
    return std::nullopt;
  }

 private:
  static constexpr uint32_t kNone = ~0U;

  // An instruction that others than the one before it may lead to.
  struct Head {
    size_t begin;
    Pending pending{};
    bool changed = true;
  };

  Instruction At(size_t i) const { return Instruction(code_.data() + i * Instruction::kBytes); }

  void AddHead(size_t i) {
    if (i >= head_at_.size() || head_at_[i] != kNone) return;
    head_at_[i] = 0;
    heads_.push_back({.begin = i});
  }

  std::optional<size_t> TargetOf(size_t i) const {
    const Instruction instruction = At(i);
    if (!instruction.Has(kBranches)) return std::nullopt;
    return llvm_ir::TargetOf(instruction, i, head_at_.size(), hopper_);
  }

  void Join(size_t target, const Pending& pending) {
    Head& head = heads_[head_at_[target]];
    Pending joined = head.pending;
    for (size_t r = 0; r < joined.size(); ++r) joined[r] |= pending[r];
    if (joined == head.pending) return;
    head.pending = joined;
    head.changed = true;
  }

  // From `begin` to the next head.
  std::optional<std::pair<size_t, unsigned>> Walk(size_t begin, Pending pending) {
    for (size_t i = begin; i < head_at_.size(); ++i) {
      if (i != begin && head_at_[i] != kNone) {
        Join(i, pending);
        return std::nullopt;
      }
      const Instruction instruction = At(i);
      if (const uint8_t waits = instruction.WaitsFor()) {
        for (uint8_t& scoreboards : pending) scoreboards &= uint8_t(~waits);
      }
      if (const auto early = ReadsEarly(instruction, pending)) return std::pair(i, *early);
      Write(instruction, pending);
      if (const std::optional<size_t> target = TargetOf(i)) Join(*target, pending);
      const bool ends = (instruction.Has(kBranches) || instruction.Has(kExits)) && instruction.Always();
      if (ends || instruction.Has(kLeaves)) pending.fill(0);
    }
    return std::nullopt;
  }

  static std::optional<unsigned> ReadsEarly(const Instruction& instruction, const Pending& pending) {
    std::optional<unsigned> early;
    const auto read = [&](unsigned first, unsigned count) {
      for (unsigned r = first; r < std::min(first + count, kNoRegister); ++r) {
        if (pending[r] != 0 && !early) early = r;
      }
    };
    if (instruction.Has(kReadsA)) read(instruction.A(), 1);
    if (instruction.Has(kReadsB)) read(instruction.B(), 1);
    if (instruction.Has(kReadsC)) read(instruction.C(), 1);
    if (instruction.Has(kStores)) read(instruction.B(), instruction.Moved());
    return early;
  }

  static void Write(const Instruction& instruction, Pending& pending) {
    if (!instruction.Has(kLoads) && !instruction.Has(kLoadsMatrices) && !instruction.Has(kWrites)) return;
    // Without a scoreboard of its own, one behind it tells when it is done: which, is not known here. After a load under a condition ptxas
    // leaves out the waits of instructions that are executed only where the load is not: which these are, is not known here either.
    const unsigned scoreboard = instruction.Scoreboard();
    const auto bit = uint8_t(scoreboard == kNoScoreboard || !instruction.Always() ? 0 : 1U << scoreboard & kAllScoreboards);
    const unsigned first = instruction.D();
    for (unsigned r = first; r < std::min(first + instruction.Moved(), kNoRegister); ++r) pending[r] = bit;
  }

  std::string_view code_;
  bool hopper_;
  std::vector<uint32_t> head_at_;  // of each instruction, the head that it is
  std::vector<Head> heads_;
};

bool IsKnown(std::string_view arch) { return arch.starts_with("sm_8") || arch.starts_with("sm_90"); }

}  // namespace

std::string EarlyRead::Text() const {
  return function + " reads R" + std::to_string(reg) + " at " + Hexadecimal(address) + ", which a load before it still writes";
}

std::optional<EarlyRead> FindEarlyRead(std::string_view cubin, std::string_view arch) {
  if (!IsKnown(arch)) return std::nullopt;
  for (const SassFunction& function : FunctionsOf(cubin)) {
    if (const auto found = Function(function.code, IsHopper(arch)).Find()) {
      return EarlyRead{function.name, found->first * Instruction::kBytes, found->second};
    }
  }
  return std::nullopt;
}

}  // namespace kiln::llvm_ir
