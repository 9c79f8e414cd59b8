// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/residents.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/mapping/register_budget.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "compiler/target/boards.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// Without these registers beside its fragments, a thread's code cannot be made: for addresses, and for what it computes.
constexpr int64_t kFewestOtherRegisters = 10;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// The most registers that ptxas demands at the kernel's start for the results of a product.
int64_t NeededAtStart(const ir::Kernel& kernel, const target::Target& target) {
  int64_t most = 0;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm != nullptr && gemm->plan) most = std::max(most, RegistersAtStartFor(RowOf(*gemm, target)));
  });
  return most;
}

// Whether the grid has more blocks than multiprocessors, as far as is known.
bool HasMoreBlocks(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  int64_t blocks = 1;
  for (ir::ExprId extent : kernel.grid) {
    const std::optional<int64_t> value = module.exprs.ConstInt(extent);
    if (!value) return true;
    blocks *= *value;
  }
  return blocks > int64_t(target.multiprocessors);
}

void Decide(ir::Kernel& kernel, int64_t blocks, std::string_view why) {
  kernel.min_blocks = uint32_t(blocks);
  kernel.decisions.push_back({"residents", std::nullopt, fmt::format("{} blocks on a multiprocessor", blocks), std::string(why)});
}

// Blocks of one computing group that take over registers of the threads that fill their rings.
void HandOver(const ir::Module& module, ir::Kernel& kernel, const target::Target& target) {
  const int64_t threads = kernel.threads + kernel.producers, needed = MostFragmentWords(module, kernel) + kOtherRegisters;
  const int64_t evenly =
      target.registers_per_multiprocessor / (threads * std::min<int64_t>(RoundUp(needed, target::kRegisterUnit), target.registers_per_thread));
  const int64_t at_start = NeededAtStart(kernel, target);
  for (int64_t blocks = MostBlocks(kernel, target); blocks > std::max<int64_t>(evenly, 1); --blocks) {
    kernel.min_blocks = uint32_t(blocks);
    const int64_t start = RegistersAtStart(kernel, target, 0);
    if (start < at_start || RegistersOfRoles(module, kernel, start).computing < needed) continue;
    Decide(kernel, blocks, "its computing threads get registers of those that fill rings");
    return;
  }
  kernel.min_blocks = 0;
}

// Whether threads of the block wait for each other.
bool Waits(const ir::Kernel& kernel) {
  bool waits = false;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
    waits |= std::holds_alternative<ir::Barrier>(stmt.op) || (reduce != nullptr && reduce->scratch);
  });
  return waits;
}

// Whether the program itself moves registers from some threads to others, which counts with those that its threads start with.
bool SharesRegisters(const ir::Kernel& kernel) {
  bool shares = false;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) { shares |= std::holds_alternative<ir::Registers>(stmt.op); });
  return shares;
}

// The most registers in which the threads of a warp have operands of one step of a product that they read from shared memory.
int64_t MostOperandWords(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  int64_t most = 0;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm == nullptr || !gemm->plan) return;
    const target::MmaInstruction& mma = RowOf(*gemm, target);
    if (mma.IsByGroup() || mma.IsScalar()) return;
    const GemmShape shape = ShapeOf(*gemm);
    const auto words = [&](const ir::Region& region, const ir::Layout& atom, int64_t atoms) {
      const ir::Buffer& buffer = module[region.buffer];
      return buffer.space == ir::Space::kShared ? atoms * atom.Registers() * ir::Bits(buffer.dtype) / 32 : 0;
    };
    most = std::max(most, words(gemm->a, mma.a_layout, shape.m / mma.m / gemm->plan->warps_m) +
                              words(gemm->b, mma.b_layout, shape.n / mma.n / gemm->plan->warps_n));
  });
  return most;
}

// A second block loads while the threads of the first one wait for each other, if ptxas gives none of them more registers than half of them have.
// Where these are surely enough, they are all that ptxas may give; where they may be enough, ptxas tries.
// Without fragments, a thread only has values on their way, and ptxas knows best how many.
// LLVM's backend for AMD weighs registers against waves itself.
void MakeRoomForTwo(const ir::Module& module, ir::Kernel& kernel, const target::Target& target) {
  const int64_t half = target.registers_per_multiprocessor / (2 * kernel.threads) / target::kRegisterUnit * target::kRegisterUnit;
  if (half >= target.registers_per_thread || MostBlocks(kernel, target) < 2 || !Waits(kernel)) return;
  const int64_t words = MostFragmentWords(module, kernel);
  if (words == 0) return;
  constexpr std::string_view kWhy = "one works while the other waits";
  const int64_t left = half - words - MostOperandWords(module, kernel, target);
  if (left >= kOtherRegisters) {
    Decide(kernel, 2, kWhy);
  } else if (left >= kFewestOtherRegisters && !SharesRegisters(kernel)) {
    kernel.tried_blocks = 2;
    kernel.decisions.push_back({"residents", std::nullopt, "2 blocks on a multiprocessor, if ptxas then spills nothing", std::string(kWhy)});
  }
}

}  // namespace

int64_t MostBlocks(const ir::Kernel& kernel, const target::Target& target) {
  const target::Machine& machine = target::MachineOf(target);
  return std::min<int64_t>(machine.threads / (kernel.threads + kernel.producers),
                           machine.shared_bytes / (kernel.shared_bytes + target::kSystemShared));
}

int64_t MostBlocks(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  const int64_t words = std::min<int64_t>(MostFragmentWords(module, kernel) + kFewestOtherRegisters, target.registers_per_thread);
  return std::min(MostBlocks(kernel, target), target.registers_per_multiprocessor / (words * (kernel.threads + kernel.producers)));
}

void Residents(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  const target::Target& target = *context.target;
  if (kernel.min_blocks != 0 || context.options.max_registers() != 0 || !HasMoreBlocks(module, kernel, target)) return;
  if (kernel.producers == 0 && target.family == target::Family::kNvptx) MakeRoomForTwo(module, kernel, target);
  if (kernel.producers != 0 && kernel.threads < kLargeBlock) HandOver(module, kernel, target);
}

}  // namespace kiln::compiler
