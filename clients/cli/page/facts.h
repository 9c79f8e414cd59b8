// SPDX-License-Identifier: Apache-2.0
//
// The data of each of the page's panels. What is not known is null, and beside it stands a sentence that says why.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "clients/cli/json.h"
#include "compiler/target/target.h"
#include "ir/module.h"
#include "ir/op.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::cli {

// A program after the passes, as the dump of the last has it.
struct Decided {
  ir::Module module;            // statements have the dump's lines
  std::vector<uint32_t> lines;  // of each of the dump's lines: that of the program, which the dump names; 0: none

  // The program's line that the statement was made for; 0: it is the compiler's own.
  uint32_t LineOf(const ir::Stmt& stmt) const { return stmt.loc.line < lines.size() ? lines[stmt.loc.line] : 0; }
};

// The lines that a dump names ("# line 12" at the end), from its first line at [1].
std::vector<uint32_t> SourceLines(std::string_view dump);

// Whether the report may mean the buffer by this name. The text form cleans names and makes them unique by a number behind them.
bool MayBeNamed(const ir::Buffer& buffer, std::string_view reported);

// What the report says of a shared buffer; null: nothing.
const v1::SharedSlot* SlotOf(const Decided& decided, const v1::Report& report, ir::BufferId buffer);

Json ProgramFacts(const ir::Module& program, std::string_view text);  // `text`: as it was written; empty: it was no text
Json DecisionFacts(const v1::Report& report);
Json LayoutFacts(const Decided& decided, const v1::Report& report);
Json ScheduleFacts(const Decided& decided, const v1::Report& report);
Json MemoryFacts(const Decided& decided, const v1::Report& report, const target::Target* target);
Json ResourceFacts(const Decided& decided, const v1::Artifact& artifact, const target::Target* target);
Json WorkFacts(const ir::Module& program, const Decided& decided, const target::Target* target);

}  // namespace kiln::cli
