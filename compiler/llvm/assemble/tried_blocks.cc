// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/assemble/tried_blocks.h"

#include <fmt/format.h>

#include <charconv>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

constexpr std::string_view kEntry = ".entry ", kDirective = ".minnctapersm ", kNote = " // to try: ";

// Calls `body` with each line, and with the name of its entry where it asks for blocks on a multiprocessor.
template <typename Body>
void ForEachLineOfEntries(std::string_view ptx, const Body& body) {
  std::string_view entry;
  ForEachLine(ptx, [&](std::string_view line) {
    if (const size_t at = line.find(kEntry); at != std::string_view::npos) {
      entry = line.substr(at + kEntry.size());
      entry = entry.substr(0, entry.find_first_of("( \t\n"));
    }
    body(line, line.starts_with(kDirective) ? entry : std::string_view());
  });
}

// `ptx` where `made` of its blocks takes the place of the line in which such an entry asks for blocks.
template <typename Made>
std::string Changed(std::string_view ptx, const BlocksOfEntries& blocks, const Made& made) {
  std::string text;
  text.reserve(ptx.size());
  ForEachLineOfEntries(ptx, [&](std::string_view line, std::string_view entry) {
    const auto found = blocks.find(entry);
    if (entry.empty() || found == blocks.end()) text += line;
    else text += made(line.substr(0, line.find('\n')), found->second) + '\n';
  });
  return text;
}

}  // namespace

std::string WithNotes(std::string_view ptx, const BlocksOfEntries& blocks) {
  return Changed(ptx, blocks, [](std::string_view line, uint32_t count) { return fmt::format("{}{}{}", line, kNote, count); });
}

BlocksOfEntries TriedBlocks(std::string_view ptx) {
  BlocksOfEntries tried;
  ForEachLineOfEntries(ptx, [&](std::string_view line, std::string_view entry) {
    const size_t note = line.find(kNote);
    uint32_t count = 0;
    if (entry.empty() || note == std::string_view::npos) return;
    std::from_chars(line.data() + note + kNote.size(), line.data() + line.size(), count);
    if (count > 0) tried.emplace(entry, count);
  });
  return tried;
}

std::string WithBlocks(std::string_view ptx, const BlocksOfEntries& blocks) {
  return Changed(ptx, blocks, [](std::string_view, uint32_t count) { return fmt::format("{}{}", kDirective, count); });
}

}  // namespace kiln::llvm_ir
