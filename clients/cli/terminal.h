// SPDX-License-Identifier: Apache-2.0
//
// What a person sees: colours and progress on a terminal, aligned tables everywhere.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::cli {

enum class Style { kPlain, kBold, kDim, kGood, kBad, kWarn, kAccent };

// Whether stdout and stderr take colours. NO_COLOR turns them off.
struct Terminal {
  bool out_is_terminal = false;
  bool out = false;  // colours
  bool err = false;
  static Terminal Detect();
};

std::string Paint(std::string_view text, Style style, bool colours);

// Rows under a heading, columns aligned by display width; numbers are right-aligned where the column says so.
class Table {
 public:
  enum class Align { kLeft, kRight };
  struct Column {
    std::string name;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  void Add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  bool empty() const { return rows_.empty(); }
  std::string Text(bool colours) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// A line that is replaced in place, on a terminal's stderr only.
class Progress {
 public:
  explicit Progress(bool shown) : shown_(shown) {}
  ~Progress() { Clear(); }
  void Show(std::string_view text);
  void Clear();

 private:
  const bool shown_;
  bool dirty_ = false;
};

std::string Bytes(std::uint64_t bytes);                        // "1.2 MiB"
std::string Ago(std::int64_t unix_seconds, std::int64_t now);  // "3 h ago"
std::string Hex(std::string_view bytes);

}  // namespace kiln::cli
