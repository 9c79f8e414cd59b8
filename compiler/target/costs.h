// SPDX-License-Identifier: Apache-2.0
//
// Costs on an H200, for the cost models of passes, which ask their target for them. Each was measured on one card, with products of
// tests/gpu/bench that differ in it alone; the lanes are the card's own. Other targets have no figures of their own; their rows name these too.
// Passes decide with them how the program that they are given is divided among the multiprocessors. The planner, which compares programs,
// has figures of each target and board instead (boards.def), with their sources.
// The cycles of a matrix instruction stand in its row (nvptx.def, amdgpu.def, instructions.cc), the number of multiprocessors in the target's
// row.
#pragma once

#include <cstdint>

namespace kiln::target {

// Cycles are of one multiprocessor.
struct Costs {
  int64_t line = 128;               // bytes: what memory brings at a time; a row that straddles two lines takes both
  double line_cycles = 2.0;         // cycles for a line from the L2
  double memory_line_cycles = 6.5;  // cycles for a line from memory, of which each multiprocessor has its share
  double latency = 1200;            // cycles of a load from memory while others are under way
  double hidden = 0.85;             // part of the products' time: copies that take less are hidden

  double lanes = 128;         // operations a cycle: one of each lane
  double special_lanes = 16;  // of exponentials, logarithms, roots, sines and reciprocals

  double step = 40;    // cycles of a step of a product's loop besides its products and copies
  double tile = 3000;  // cycles of a tile that nothing hides: the first copies' latency and part of storing the result

  double least_saved = 0.125;  // part of a step's lines: to save less is not worth that two blocks wait for each other
  int64_t few_steps = 32;      // steps: with fewer, clusters lose more by starting late than they save

  double meet = 2000;             // cycles for which blocks that share a tile wait for each other
  double sum_bytes = 28;          // bytes of partial sums through L2 per cycle, when every block moves one
  double skewed = 1.2;            // factor on the time of blocks that read the same operands at different times, so that L2 serves each alone
  double worth_streaming = 0.97;  // part of the time without sharing: shared tiles must take less than this

  double few_columns = 14;   // cycles of a wgmma of 8 or of 16 columns with its rows in registers, for 64 rows and a k of 16
  double eight_columns = 8;  // cycles of four warps side by side with mma.sync, for each 8 columns of the same, including the ldmatrix
  int64_t least_piece = 2;   // instructions along k of a product's piece: fewer end before the next piece's operand is ready

  int64_t large_box = 8192;    // bytes: a tensor copy of a smaller box takes less time than it takes to issue it
  int64_t enough_stages = 3;   // stages: products become no faster with more
  int64_t least_halved = 16;   // steps of each of two blocks that share a tile: with fewer, to exchange sums takes no small part of the time
  int64_t panel_rows = 16;     // rows of tiles that blocks go along together: with fewer, they read the operands of columns too often
  int64_t mostly_reads = 8;    // elements read for one written, from which on loads of what is read once go past the caches
  double reads_alike = 0.125;  // part of the bytes written by which reads may differ from them, so that the L2 shall keep what is written
};
inline constexpr Costs kH200;

}  // namespace kiln::target
