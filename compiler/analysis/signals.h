// SPDX-License-Identifier: Apache-2.0
//
// Barriers of the program's own (ir::Arrive): in a kernel that has some, threads of different branches are at different places at one time.
#pragma once

#include <algorithm>

#include "ir/module.h"
#include "ir/visit.h"

namespace kiln::compiler {

inline bool IsSignal(const ir::Stmt& stmt) {
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return ir::IsOneOf<ir::Arrive, ir::Await>(stmt.op) || (copy != nullptr && copy->signals);
}

inline bool HasSignals(const ir::Block& block) {
  bool has = false;
  ir::Walk(block, [&](const ir::Stmt& stmt) { has |= IsSignal(stmt); });
  return has;
}
inline bool HasSignals(const ir::Kernel& kernel) { return HasSignals(kernel.body); }

// A load by the tensor unit that signals a barrier when it is there. Who awaits that barrier has the elements; barriers of threads say nothing of
// them.
inline bool IsSignallingLoad(const ir::Stmt& stmt) {
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return copy != nullptr && copy->signals && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor;
}

}  // namespace kiln::compiler
