// SPDX-License-Identifier: Apache-2.0
//
// What things take on an H200, for the cost models of passes. Each was measured on one card, by products of tests/gpu/bench that differ in
// it. No other target has figures of its own: passes count with these there too. clients/python/kiln/tiles.py chooses tiles before there is
// a program, and has those of the same names; clients/python/tests/test_tiles.py compares them. What comes from memory
// has a value of its own there, 19 bytes in a cycle; here it is 19.7, 4 % more: plans were measured with the one and tiles with the other, and
// what programs become may change with either. What a matrix instruction takes is in its row (nvptx.def, instructions.cc), how many
// multiprocessors there are in the target's.
#pragma once

#include <cstdint>

namespace kiln::target {

// Cycles are of one multiprocessor.
struct Costs {
  int64_t line = 128;               // bytes: what tensor copies bring at a time; a row that straddles two lines takes both
  double line_cycles = 2.0;         // cycles for a line from L2
  double memory_line_cycles = 6.5;  // cycles for a line from memory, of which each multiprocessor has its share
  double latency = 1200;            // cycles until a load from memory is there that others are under way with
  double hidden = 0.85;             // part of the products' time: copies that take less do not show beside them

  double step = 40;    // cycles of a step of a product's loop beside its products and copies
  double tile = 3000;  // cycles of a tile: the first copies' latency, and what of the result's way out nothing hides

  double least_saved = 0.125;  // part of a step's lines: for less, two blocks need not wait for each other
  int64_t few_steps = 32;      // steps: clusters start later than single blocks, which fewer do not make up for

  double meet = 2000;            // cycles for which blocks that share a tile wait for each other
  double sum_bytes = 28;         // bytes of a part of a sum that pass through L2 in a cycle, when all blocks have one under way
  double skewed = 1.2;           // of blocks' time that read the same operands at different times, from L2 each by itself: 1.1 to 1.25
  double worth_streaming = 0.97; // part of the time without: shares of tiles that take less are worth it
};
inline constexpr Costs kH200;

}  // namespace kiln::target
