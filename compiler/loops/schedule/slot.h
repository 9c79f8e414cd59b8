// SPDX-License-Identifier: Apache-2.0
//
// The order of statements that run together in a loop whose iterations overlap: a list schedule for threads and one matrix unit.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "compiler/analysis/dependences.h"

namespace kiln::compiler {

// What a statement takes.
struct Work {
  double threads = 0;    // cycles of the threads
  double unit = 0;       // cycles of the matrix unit, which runs beside the threads; 0: the statement ends when the threads have done it
  bool at_once = false;  // others wait for it: it goes before whatever else may run
};

struct Step {
  size_t stmt;
  bool wait;  // the end of what runs on the matrix unit
};

struct Slot {
  std::vector<Step> steps;
  double cycles;
};

// Cycles of the statements one after the other.
double InOrder(std::span<const Work> works);

// A slot of a loop: the statements below `cut` of one iteration and the others of the iteration before. Of the statements that could run without
// waiting, the one with the longest path behind it goes first. nullopt: a statement from `cut` on needs a variable that one below binds.
std::optional<Slot> MakeSlot(std::span<const Work> works, const Dependences& dependences, size_t cut);

}  // namespace kiln::compiler
