// SPDX-License-Identifier: Apache-2.0
#include "compiler/target/boards.h"

#include <algorithm>

namespace kiln::target {
namespace {

constexpr Machine kMachines[] = {
#define KILN_MACHINE(...) {__VA_ARGS__},
#define KILN_BOARD(...)
#include "compiler/target/boards.def"
};

constexpr Board kBoards[] = {
#define KILN_MACHINE(...)
#define KILN_BOARD(...) {__VA_ARGS__},
#include "compiler/target/boards.def"
};

template <typename Rows>
consteval bool EveryTargetHas(const Rows& rows) {
  constexpr std::string_view kArchs[] = {
#define KILN_TARGET(name, family, arch, ...) arch,
#include "compiler/target/targets.def"
  };
  return std::ranges::all_of(kArchs,
                             [&](std::string_view arch) { return std::ranges::any_of(rows, [&](const auto& row) { return row.arch == arch; }); });
}
static_assert(EveryTargetHas(kMachines) && EveryTargetHas(kBoards), "a target without figures of its own");

}  // namespace

const Machine& MachineOf(const Target& target) { return *std::ranges::find(kMachines, target.arch, &Machine::arch); }

const Board& BoardOf(const Target& target, std::string_view name) {
  const auto named = std::ranges::find_if(kBoards, [&](const Board& board) { return board.arch == target.arch && board.name == name; });
  return named != std::end(kBoards) ? *named : *std::ranges::find(kBoards, target.arch, &Board::arch);
}

}  // namespace kiln::target
