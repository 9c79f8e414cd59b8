// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/sass/sass.h"

#include <cstdio>
#include <utility>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/Object/ELF.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {

std::optional<size_t> TargetOf(const SassInstruction& branch, size_t number, size_t count, bool hopper) {
  constexpr auto kBytes = int64_t(SassInstruction::kBytes);
  const int64_t offset = branch.Offset(hopper), next = int64_t(number + 1) * kBytes;
  if (offset % kBytes != 0 || offset < -next || offset >= int64_t(count) * kBytes - next) return std::nullopt;
  return size_t(next + offset) / SassInstruction::kBytes;
}

std::vector<SassFunction> FunctionsOf(std::string_view cubin) {
  using Elf = llvm::object::ELF64LE;
  constexpr std::string_view kPrefix = ".text.";
  std::vector<SassFunction> functions;
  // An error that is not looked at would end the process.
  const auto end = [&](llvm::Error error) {
    llvm::consumeError(std::move(error));
    return std::move(functions);
  };
  auto file = llvm::object::ELFFile<Elf>::create(llvm::StringRef(cubin.data(), cubin.size()));
  if (!file) return end(file.takeError());
  auto sections = file->sections();
  if (!sections) return end(sections.takeError());
  for (const auto& section : *sections) {
    auto name = file->getSectionName(section);
    if (!name) return end(name.takeError());
    if (section.sh_type != llvm::ELF::SHT_PROGBITS || !name->starts_with(kPrefix)) continue;
    auto code = file->getSectionContents(section);
    if (!code) return end(code.takeError());
    functions.push_back({name->substr(kPrefix.size()).str(), {reinterpret_cast<const char*>(code->data()), code->size()}});
  }
  return functions;
}

std::string Hexadecimal(uint64_t address) {
  char digits[19];
  std::snprintf(digits, sizeof digits, "0x%llx", static_cast<unsigned long long>(address));
  return digits;
}

}  // namespace kiln::llvm_ir
