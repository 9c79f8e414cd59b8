// SPDX-License-Identifier: Apache-2.0
#include "ir/type.h"

#include <array>

namespace kiln::ir {
namespace {

struct Row {
  DType type;
  std::string_view name;
  int bits;
  DTypeKind kind;
};
constexpr Row kRows[] = {
#define KILN_DTYPE(number, id, name, bits, kind) {DType::id, name, bits, DTypeKind::kind},
#include "ir/dtypes.def"
};

// The rows are numbered from 1 without gaps.
const Row& RowOf(DType type) { return kRows[size_t(type) - 1]; }
consteval bool RowsAreDense() {
  for (size_t i = 0; i < std::size(kRows); ++i) {
    if (size_t(kRows[i].type) != i + 1) return false;
  }
  return true;
}
static_assert(RowsAreDense());

constexpr std::array<std::string_view, 6> kSpaces = {"", "global", "shared", "fragment", "local", "barrier"};

}  // namespace

std::string_view Name(DType type) { return RowOf(type).name; }

std::optional<DType> DTypeFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::optional<DType> DTypeFromNumber(uint32_t number) {
  if (number == 0 || number > std::size(kRows)) return std::nullopt;
  return kRows[number - 1].type;
}

int Bits(DType type) { return RowOf(type).bits; }
DTypeKind Kind(DType type) { return RowOf(type).kind; }

std::string_view Name(Space space) { return kSpaces[size_t(space)]; }

std::optional<Space> SpaceFromName(std::string_view name) {
  for (size_t i = 1; i < kSpaces.size(); ++i) {
    if (kSpaces[i] == name) return Space(i);
  }
  return std::nullopt;
}

}  // namespace kiln::ir
