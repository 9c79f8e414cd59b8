// SPDX-License-Identifier: Apache-2.0
#include "compiler/target/closest.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace kiln::target {
namespace {

constexpr std::size_t kLongest = 64;  // the distance is quadratic

std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

std::optional<std::string_view> Closest(std::string_view name, std::span<const std::string_view> candidates, std::size_t most) {
  const std::string_view start = name.substr(0, kLongest);
  const auto distance = [&](std::string_view candidate) { return EditDistance(start, candidate.substr(0, kLongest)); };
  const auto nearest = std::ranges::min_element(candidates, {}, distance);
  if (nearest == candidates.end() || distance(*nearest) > most) return std::nullopt;
  return *nearest;
}

}  // namespace kiln::target
