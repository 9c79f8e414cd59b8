// SPDX-License-Identifier: Apache-2.0
//
// What seed number N asks a compiler for: a module by grammar, one of the targets in turn, and some options.
#pragma once

#include <cstdint>
#include <string>

#include "kiln/v1/compile.pb.h"

namespace kiln::fuzz {

v1::CompileRequest RequestOf(uint64_t seed);
// The module's text, for people.
std::string TextOf(uint64_t seed);

}  // namespace kiln::fuzz
