// SPDX-License-Identifier: Apache-2.0
//
// What the numbers in an artifact stand for. An artifact holds no names and no source lines, because programs that differ in
// nothing else share it; whoever has the program has these.
#pragma once

#include <string>
#include <vector>

#include "compiler/emulator/report.h"
#include "ir/module.h"

namespace kiln::emulator {

struct Names {
  std::vector<std::string> statements;  // by number; [0] is none: "line 12 of file: copy …"
  std::vector<std::string> buffers;     // by number, those of the program; the compiler's own follow without names
};

// `module`: as it was sent, before any pass.
Names NamesOf(const ir::Module& module);

// The message with the statements it is about, a line each.
std::string Describe(const Finding& finding, const Names& names);

}  // namespace kiln::emulator
