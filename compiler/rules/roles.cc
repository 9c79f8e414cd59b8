// SPDX-License-Identifier: Apache-2.0
#include "compiler/rules/roles.h"

#include <algorithm>

#include "compiler/analysis/definitions.h"

namespace kiln::compiler {

int64_t FragmentWords(const ir::Module& module, ir::BufferId id) {
  const ir::Buffer& buffer = module[id];
  if (buffer.space != ir::Space::kFragment || !buffer.layout) return 0;
  return std::max<int64_t>(1, buffer.layout->Registers() * ir::Bits(buffer.dtype) / 32);
}

int64_t FragmentWords(const ir::Module& module, const ir::Kernel& kernel) {
  int64_t words = 0;
  for (const auto& [id, count] : CountAllAccesses(module, kernel.body)) words += FragmentWords(module, id);
  return words;
}

int64_t RegistersAtStart(const ir::Kernel& kernel, const target::Target& target, int64_t max_registers) {
  const int64_t all = kernel.threads + kernel.producers, limit = max_registers == 0 ? 256 : max_registers / 8 * 8;
  const int64_t blocks = max_registers == 0 ? std::max(kernel.min_blocks, 1u) : 1;
  return std::min(int64_t(target.registers_per_multiprocessor) / (all * blocks) / 8 * 8, limit);
}

RoleRegisters RegistersOfRoles(const ir::Module& module, const ir::Kernel& kernel, int64_t at_start) {
  const int64_t groups = kernel.threads / kGroupThreads, all = groups + kernel.producers / kGroupThreads;
  const auto given = [&](int64_t filling) { return std::min((at_start * all - filling) / groups / 8 * 8, kMostRegisters); };
  const bool ease = given(kFewRegisters) >= FragmentWords(module, kernel) + kOtherRegisters;
  const int64_t filling = ease ? kFewRegisters : kLeastRegisters;
  if (at_start <= kFewRegisters || at_start >= kMostRegisters || given(filling) <= at_start) return {};
  return {filling, given(filling)};
}

}  // namespace kiln::compiler
