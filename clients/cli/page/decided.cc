// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cctype>
#include <charconv>

#include "clients/cli/page/facts.h"
#include "ir/text/print.h"

namespace kiln::cli {
namespace {

// A name as the text form has it, without the number that makes it unique.
std::string InText(std::string_view name) {
  std::string clean;
  for (const char c : name) clean += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return clean;
}

}  // namespace

std::vector<uint32_t> SourceLines(std::string_view dump) {
  constexpr std::string_view kMark = "  # line ";
  std::vector<uint32_t> lines{0};
  while (!dump.empty()) {
    const std::string_view text = dump.substr(0, dump.find('\n'));
    uint32_t line = 0;
    if (const auto mark = text.rfind(kMark); mark != text.npos) {
      std::from_chars(text.data() + mark + kMark.size(), text.data() + text.size(), line);
    }
    lines.push_back(line);
    dump.remove_prefix(std::min(dump.size(), text.size() + 1));
  }
  return lines;
}

bool MayBeNamed(const ir::Buffer& buffer, std::string_view reported) { return buffer.name.starts_with(InText(reported)); }

const v1::SharedSlot* SlotOf(const Decided& decided, const v1::Report& report, ir::BufferId id) {
  const ir::Buffer& buffer = decided.module[id];
  const v1::SharedSlot* nearest = nullptr;
  for (const v1::SharedSlot& slot : report.shared_memory()) {
    if (!buffer.shared_offset || int64_t{slot.offset()} != *buffer.shared_offset) continue;
    if (InText(slot.buffer()) == buffer.name) return &slot;
    if (MayBeNamed(buffer, slot.buffer())) nearest = &slot;
  }
  return nearest;
}

}  // namespace kiln::cli
