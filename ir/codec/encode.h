// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "ir/module.h"
#include "kiln/v1/ir.pb.h"

namespace kiln::ir {

// Encodes a module as a front end made it. Leaves out what passes decided (layouts, plans, offsets) and the statements that only passes
// make.
v1::Module Encode(const Module& module);

// Encode, serialized; equal modules give equal bytes.
std::string EncodeBytes(const Module& module);

}  // namespace kiln::ir
