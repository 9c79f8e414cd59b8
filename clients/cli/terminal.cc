// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/terminal.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

namespace kiln::cli {
namespace {

// Code points that are shown, taking each as one column wide.
std::size_t Width(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string Pad(std::string_view text, std::size_t width, Table::Align align) {
  const std::string space(width - std::min(width, Width(text)), ' ');
  return align == Table::Align::kRight ? space + std::string(text) : std::string(text) + space;
}

}  // namespace

Terminal Terminal::Detect() {
  const char* off = std::getenv("NO_COLOR");
  const bool wanted = off == nullptr || *off == '\0';
  const bool out = ::isatty(STDOUT_FILENO) != 0;
  return {out, wanted && out, wanted && ::isatty(STDERR_FILENO) != 0};
}

std::string Paint(std::string_view text, Style style, bool colours) {
  constexpr std::array<const char*, 7> kCodes = {"", "1", "2", "32", "31", "33", "36"};
  if (!colours || style == Style::kPlain || text.empty()) return std::string(text);
  return fmt::format("\x1b[{}m{}\x1b[0m", kCodes[static_cast<std::size_t>(style)], text);
}

std::string Table::Text(bool colours) const {
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    std::size_t width = Width(columns_[i].name);
    for (const auto& row : rows_) width = std::max(width, Width(row[i]));
    widths.push_back(width);
  }
  const auto line = [&](const auto& cell) {
    std::string text;
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      text += Pad(cell(i), widths[i], columns_[i].align);
      if (i + 1 < columns_.size()) text += "  ";
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text;
  };
  std::string out = Paint(line([&](std::size_t i) { return columns_[i].name; }), Style::kDim, colours) + "\n";
  for (const auto& row : rows_) out += line([&](std::size_t i) { return row[i]; }) + "\n";
  return out;
}

void Progress::Show(std::string_view text) {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K\x1b[2m{}\x1b[0m", text);
  std::fflush(stderr);
  dirty_ = true;
}

void Progress::Clear() {
  if (dirty_) fmt::print(stderr, "\r\x1b[K");
  dirty_ = false;
}

std::string Bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string Ago(std::int64_t unix_seconds, std::int64_t now) {
  const std::int64_t seconds = std::max<std::int64_t>(0, now - unix_seconds);
  if (seconds < 120) return fmt::format("{} s ago", seconds);
  if (seconds < 7200) return fmt::format("{} min ago", seconds / 60);
  if (seconds < 172'800) return fmt::format("{} h ago", seconds / 3600);
  return fmt::format("{} d ago", seconds / 86'400);
}

std::string Hex(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) fmt::format_to(std::back_inserter(out), "{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace kiln::cli
