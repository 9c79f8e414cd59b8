// SPDX-License-Identifier: Apache-2.0
#include "ir/op.h"

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

}  // namespace

std::string_view Name(const Op& op) { return kNames[op.index()]; }
uint32_t WireNumber(const Op& op) { return kWireNumbers[op.index()]; }

}  // namespace kiln::ir
