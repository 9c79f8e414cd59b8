// SPDX-License-Identifier: Apache-2.0
#include "ir/op.h"

#include <type_traits>

namespace kiln::ir {
namespace {

constexpr std::string_view kNames[] = {
#define KILN_OP(number, type, name, family, since) name,
#include "ir/ops.def"
};

constexpr uint32_t kWireNumbers[] = {
#define KILN_OP(number, type, name, family, since) number,
#include "ir/ops.def"
};

enum Row : size_t {
#define KILN_OP(number, type, name, family, since) kRow##type,
#include "ir/ops.def"
};
#define KILN_OP(number, type, name, family, since) \
  static_assert(std::is_same_v<std::variant_alternative_t<kRow##type, Op>, type>, "Op follows the order of ops.def");
#include "ir/ops.def"
static_assert(std::variant_size_v<Op> == std::size(kNames));

}  // namespace

std::string_view Name(const Op& op) { return kNames[op.index()]; }
uint32_t WireNumber(const Op& op) { return kWireNumbers[op.index()]; }

}  // namespace kiln::ir
