// SPDX-License-Identifier: Apache-2.0
//
// Instructions of NVIDIA's GPUs and files with them, for the tests of this folder.
#pragma once

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/BinaryFormat/ELF.h>
#pragma GCC diagnostic pop

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace kiln::llvm_ir {

struct Bits {
  uint64_t low = 0, high = 0;
  // No scoreboards, and no predicate but the one that always holds.
  explicit Bits(uint64_t opcode) : low(opcode | 7 << 12), high(7ULL << 46 | 7ULL << 49 | 7 << 23) {}

  Bits& D(uint64_t r) { return low |= r << 16, *this; }
  Bits& A(uint64_t r) { return low |= r << 24, *this; }
  Bits& B(uint64_t r) { return low |= r << 32, *this; }
  Bits& C(uint64_t r) { return high |= r, *this; }
  Bits& Width(uint64_t words) { return high |= (words == 4 ? 6ULL : words == 2 ? 5ULL : 4ULL) << 9, *this; }
  Bits& Matrices(uint64_t log2) { return high |= log2 << 8, *this; }
  Bits& On(uint64_t scoreboard) { return high = (high & ~(7ULL << 46)) | scoreboard << 46, *this; }
  Bits& Waits(uint64_t scoreboard) { return high |= 1ULL << (52 + scoreboard), *this; }
  Bits& IfParted() { return low |= 2ULL << 32, high |= 1 << 27, *this; }
  Bits& IfTogether() { return low |= 3ULL << 32, *this; }
  Bits& If(uint64_t predicate) { return low = (low & ~(15ULL << 12)) | predicate << 12, *this; }
};

inline Bits Exit() { return Bits(0x94d); }
// A branch over so many instructions. From sm_90 on, the low byte of its offset has another place.
inline Bits Branch(int64_t over, bool hopper = true) {
  Bits bits(0x947);
  const auto words = uint64_t(over * 4);
  const uint64_t field = hopper ? uint64_t(int64_t(words) >> 8) : words;
  if (hopper) bits.D(words & 255);
  bits.low |= field << 34;
  bits.high |= field >> 30 & ((1 << 18) - 1);
  return bits;
}

// An ELF file whose one section of code is that of `kernel`.
inline std::string Cubin(const std::vector<Bits>& code) {
  const std::string names("\0.text.kernel\0.shstrtab\0", 24);
  llvm::ELF::Elf64_Ehdr file{};
  std::memcpy(file.e_ident, llvm::ELF::ElfMagic, 4);
  file.e_ident[llvm::ELF::EI_CLASS] = llvm::ELF::ELFCLASS64;
  file.e_ident[llvm::ELF::EI_DATA] = llvm::ELF::ELFDATA2LSB;
  file.e_ident[llvm::ELF::EI_VERSION] = llvm::ELF::EV_CURRENT;
  file.e_machine = llvm::ELF::EM_CUDA;
  file.e_ehsize = sizeof file;
  file.e_shentsize = sizeof(llvm::ELF::Elf64_Shdr);
  file.e_shnum = 3;
  file.e_shstrndx = 2;
  file.e_shoff = sizeof file;
  llvm::ELF::Elf64_Shdr sections[3] = {};
  const uint64_t begin = sizeof file + sizeof sections, bytes = code.size() * sizeof(Bits);
  sections[1].sh_name = 1;
  sections[1].sh_type = llvm::ELF::SHT_PROGBITS;
  sections[1].sh_offset = begin;
  sections[1].sh_size = bytes;
  sections[2].sh_name = 14;
  sections[2].sh_type = llvm::ELF::SHT_STRTAB;
  sections[2].sh_offset = begin + bytes;
  sections[2].sh_size = names.size();
  std::string cubin(reinterpret_cast<const char*>(&file), sizeof file);
  cubin.append(reinterpret_cast<const char*>(sections), sizeof sections);
  cubin.append(reinterpret_cast<const char*>(code.data()), bytes);
  return cubin + names;
}

}  // namespace kiln::llvm_ir
