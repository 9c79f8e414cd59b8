// SPDX-License-Identifier: Apache-2.0
//
// Programs around the statements of rows.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "kiln/v1/compile.pb.h"
#include "tests/emulator/ops/rows.h"

namespace kiln::emulator::testing {

// Tiles %s, %t: shared f32[8, 16]; %r, %h: fragment f32[8, 16]; %q: fragment f32[8]; %a, %b: shared f16[3, 16, 16];
// %c: fragment f32[16, 16]. Of those that the statements use, each block fills its own from tensors %s_in, …, before, and copies them to
// %s_out, … afterwards. The tensors %X and %Y are f32[8, 16]. %P and %F are workspaces.
std::string TextOf(const Row& row);
// %X, %Y, and the tiles that the statements use.
std::vector<std::string> BuffersOf(const Row& row);
// Where it runs. Blocks meet in pairs where there are clusters.
std::vector<std::string_view> TargetsOf(std::string_view op, std::string_view kernel);

// Where the statements of a LoopRow stand in the loop's body.
enum class Position { kBeforeCopies, kBeforeProducts, kBetween, kBehind };

// Two products over %k, 0 ≤ %k < 6, of one pair of operands: %a, shared f16[64, 64], and %w, shared f16[64, 16], into %c and %d, fragments
// f32[64, 16]. Beside them %s: shared f32[8, 64], %r: fragment f32[8, 64], and tensors %X and %Y, f32[8, 64]. `loop`: "pipelined %k in 6 stages 3".
std::string LoopTextOf(std::string_view statements, Position position, std::string_view loop);

// A product of two f16[64, 2048] into f32[64, 64], of 32 steps. `loop`: as above.
std::string MadeTextOf(std::string_view loop);
v1::CompileOptions OptionsOf(const MadeRow& row);

// The op, and a number that tells its rows apart.
template <typename R>
std::string NameOf(const ::testing::TestParamInfo<R>& info) {
  return std::string(info.param.op) + "_" + std::to_string(info.index);
}

}  // namespace kiln::emulator::testing
