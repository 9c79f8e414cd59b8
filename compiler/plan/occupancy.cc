// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/occupancy.h"

#include <algorithm>

#include "compiler/mapping/register_budget.h"
#include "compiler/rules/roles.h"
#include "compiler/target/boards.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kAddresses = 32;  // registers of a thread beside its fragments: addresses, counters, what is on its way

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

}  // namespace

// Where one block has all of a multiprocessor's registers, the threads that fill rings give theirs away.
Occupancy OccupancyOf(const ir::Module& module, const ir::Kernel& kernel, const Context& context) {
  const target::Target& target = *context.target;
  const target::Machine& machine = target::MachineOf(target);
  const int64_t threads = kernel.threads + kernel.producers, file = target.registers_per_multiprocessor;
  const int64_t wanted = MostFragmentWords(module, kernel) + kAddresses;
  const int64_t least = std::max<int64_t>(kernel.min_blocks, 1);
  int64_t most = std::min<int64_t>(target.registers_per_thread, file / (threads * least) / target::kRegisterUnit * target::kRegisterUnit),
          started = most;
  bool fixed = false;
  if (kernel.producers != 0) {
    const RoleRegisters roles = RegistersOfRoles(module, kernel, started);
    if (roles.computing != 0) most = roles.computing, fixed = true;
  }
  if (context.options.max_registers() != 0) most = std::min<int64_t>(most, context.options.max_registers());
  Occupancy occupancy{.registers = std::min(RoundUp(wanted, target::kRegisterUnit), most),
                      .spilled = std::max<int64_t>(0, wanted - most),
                      .shared = kernel.shared_bytes};
  const int64_t taken = fixed ? started : occupancy.registers;
  occupancy.blocks = std::min<int64_t>(machine.blocks, machine.threads / threads);
  occupancy.blocks = std::min(occupancy.blocks, file / std::max<int64_t>(1, taken * RoundUp(threads, target.warp_size)));
  occupancy.blocks = std::min(occupancy.blocks, int64_t(machine.shared_bytes) / (kernel.shared_bytes + target::kSystemShared));
  occupancy.blocks = std::max<int64_t>(1, occupancy.blocks);
  return occupancy;
}

}  // namespace kiln::compiler
