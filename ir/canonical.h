// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ir/module.h"

namespace kiln::ir {

// Bytes that are equal exactly for modules that mean the same by construction: names, source lines, the order of the
// tables and what nothing refers to leave no trace. Entities are numbered by their first use, walking parameters, then
// kernels in order. For keys; the format is not read back and may change with the compiler.
std::string CanonicalBytes(const Module& module);

}  // namespace kiln::ir
