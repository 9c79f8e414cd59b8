// SPDX-License-Identifier: Apache-2.0
//
// What the numbers in an artifact stand for. An artifact holds no names and no source lines, because programs that differ in
// nothing else share it; whoever has the program has these.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compiler/emulator/report.h"
#include "ir/module.h"

namespace kiln::emulator {

struct Statement {
  std::string file;
  uint32_t line = 0;  // 0: unknown
  std::string text;

  std::string Place() const;  // "file:12: text"
};

struct Names {
  std::vector<Statement> statements;  // by number; [0] is none
  std::vector<std::string> buffers;   // by number, those of the program; the compiler's own follow without names
  std::vector<uint32_t> allocated;    // by number: the line, where the program calls several buffers the same; else 0
  std::vector<std::string> params;
};

// `module`: as it was sent, before any pass.
Names NamesOf(const ir::Module& module);

// What the finding is about, by its name in the program; of buffers that share the bytes, one that its statement speaks of, or
// else the other. The name is empty where nothing is known.
Element ElementOf(const Finding& finding, const Names& names);

// The message with the buffers' names and, of statements, their places.
std::string Message(const Finding& finding, const Names& names);

// The same with its kind before; who did it and the statements it is about behind, a line each.
std::string Describe(const Finding& finding, const Names& names);

}  // namespace kiln::emulator
