// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/ops/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <regex>
#include <vector>

#include "tests/emulator/ops/run.h"

namespace kiln::emulator::testing {
namespace {

struct Tile {
  std::string_view name, space, dtype;
  std::vector<int64_t> shape;
};

const std::array<Tile, 8>& AllTiles() {
  static const std::array<Tile, 8> tiles = {{{"s", "shared", "f32", {8, 16}},
                                             {"t", "shared", "f32", {8, 16}},
                                             {"r", "fragment", "f32", {8, 16}},
                                             {"q", "fragment", "f32", {8}},
                                             {"h", "fragment", "f32", {8, 16}},
                                             {"a", "shared", "f16", {3, 16, 16}},
                                             {"b", "shared", "f16", {3, 16, 16}},
                                             {"c", "fragment", "f32", {16, 16}}}};
  return tiles;
}

bool Uses(std::string_view text, std::string_view name) {
  return std::regex_search(text.begin(), text.end(), std::regex(fmt::format("%{}\\b", name)));
}

// Between the tile and the block's part of a tensor, which is as many of them on top of each other as there are blocks.
std::string CopyOf(const Tile& tile, bool in) {
  std::string zeros;
  for (size_t d = 1; d < tile.shape.size(); ++d) zeros += ", 0";
  const std::string shape = fmt::format("{}", fmt::join(tile.shape, ", "));
  const std::string whole = fmt::format("%{}[0{}; {}]", tile.name, zeros, shape);
  const std::string part = fmt::format("%{}_{}[%bx * {}{}; {}]", tile.name, in ? "in" : "out", tile.shape[0], zeros, shape);
  return fmt::format("    copy {} -> {}\n", in ? part : whole, in ? whole : part);
}

std::string_view FunctionOf(std::string_view statements) { return statements.contains("call @") ? kFunction : std::string_view(); }

}  // namespace

std::vector<std::string> BuffersOf(const Row& row) {
  std::vector<std::string> names{"X", "Y"};
  for (const Tile& tile : AllTiles()) {
    if (Uses(row.statements, tile.name)) names.emplace_back(tile.name);
  }
  return names;
}

std::vector<std::string_view> TargetsOf(std::string_view op, std::string_view kernel) {
  if (kernel == kPair || op == "arrive" || op == "await") return {"emu:sm_90a"};
  if (op == "mma") return {"emu:sm_80", "emu:sm_90a"};
  return {std::begin(kTargets), std::end(kTargets)};
}

std::string TextOf(const Row& row) {
  std::string params = "%X: global f32[8, 16], %Y: global f32[8, 16]", allocs, in, out;
  for (const Tile& tile : AllTiles()) {
    if (!Uses(row.statements, tile.name)) continue;
    std::vector<int64_t> all = tile.shape;
    all[0] *= row.kernel == kOneBlock ? 1 : 2;
    for (const char* way : {"in", "out"}) params += fmt::format(", %{}_{}: global {}[{}]", tile.name, way, tile.dtype, fmt::join(all, ", "));
    allocs += fmt::format("    %{} = alloc {} {}[{}]\n", tile.name, tile.space, tile.dtype, fmt::join(tile.shape, ", "));
    in += CopyOf(tile, true);
    out += CopyOf(tile, false);
  }
  const char* workspaces = Uses(row.statements, "P") ? "  workspace %P: global f32[2, 128]\n  workspace %F: global u32[2]\n" : "";
  return fmt::format("kiln 1\nfunc @f({}) {{\n{}{}  kernel @k {} {{\n{}{}    let %v = 1{}\n{}  }}\n}}\n", params, FunctionOf(row.statements),
                     workspaces, row.kernel, allocs, in, row.statements, out);
}

std::string LoopTextOf(std::string_view statements, Position position, std::string_view loop) {
  std::array<std::string_view, 4> at;
  at[size_t(position)] = statements;
  const bool uses_last = position == Position::kBeforeCopies;  // of the first iteration: what stands in front of the loop
  const char* fills = uses_last ? "    fill %a[0, 0; 64, 64] = 1.0:f16\n    fill %w[0, 0; 64, 16] = 2.0:f16\n" : "";
  return fmt::format(R"(kiln 1
func @f(%A: global f16[64, 384], %B: global f16[384, 16], %X: global f32[8, 64], %Y: global f32[8, 64],
        %C: global f32[64, 16], %D: global f32[64, 16], %S: global f32[8, 64], %R: global f32[8, 64]) {{
{}  kernel @k grid(1) threads 128 blocks(%bx) {{
    %a = alloc shared f16[64, 64]
    %w = alloc shared f16[64, 16]
    %s = alloc shared f32[8, 64]
    %r = alloc fragment f32[8, 64]
    %c = alloc fragment f32[64, 16]
    %d = alloc fragment f32[64, 16]
    copy %S[0, 0; 8, 64] -> %s[0, 0; 8, 64]
    copy %R[0, 0; 8, 64] -> %r[0, 0; 8, 64]
{}    fill %c[0, 0; 64, 16] = 0.0
    fill %d[0, 0; 64, 16] = 0.0
    for {} {{{}
      copy %A[0, %k * 64; 64, 64] -> %a[0, 0; 64, 64]
      copy %B[%k * 64, 0; 64, 16] -> %w[0, 0; 64, 16]{}
      gemm %a[0, 0; 64, 64], %w[0, 0; 64, 16] -> %c[0, 0; 64, 16]{}
      gemm %a[0, 0; 64, 64], %w[0, 0; 64, 16] -> %d[0, 0; 64, 16] transpose_a{}
    }}
    copy %c[0, 0; 64, 16] -> %C[0, 0; 64, 16]
    copy %d[0, 0; 64, 16] -> %D[0, 0; 64, 16]
    copy %s[0, 0; 8, 64] -> %S[0, 0; 8, 64]
    copy %r[0, 0; 8, 64] -> %R[0, 0; 8, 64]
  }}
}}
)",
                     FunctionOf(statements), fills, loop, at[0], at[1], at[2], at[3]);
}

std::string MadeTextOf(std::string_view loop) {
  return fmt::format(R"(kiln 1
func @f(%A: global f16[64, 2048], %B: global f16[64, 2048], %C: global f32[64, 64]) {{
  kernel @k grid(1) threads 128 blocks(%bx) {{
    %a = alloc shared f16[64, 64]
    %w = alloc shared f16[64, 64]
    %c = alloc fragment f32[64, 64]
    fill %c[0, 0; 64, 64] = 0.0
    for {} {{
      copy %A[%bx * 64, %k * 64; 64, 64] -> %a[0, 0; 64, 64]
      copy %B[0, %k * 64; 64, 64] -> %w[0, 0; 64, 64]
      gemm %a[0, 0; 64, 64], %w[0, 0; 64, 64] -> %c[0, 0; 64, 64] transpose_b
    }}
    copy %c[0, 0; 64, 64] -> %C[%bx * 64, 0; 64, 64]
  }}
}}
)",
                     loop);
}

v1::CompileOptions OptionsOf(const MadeRow& row) {
  v1::CompileOptions options;
  options.set_stream_k(row.op == "stream_sum" ? v1::STREAM_K_ALWAYS : v1::STREAM_K_NEVER);
  return options;
}

}  // namespace kiln::emulator::testing
