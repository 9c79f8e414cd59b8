// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/programs.h"

#include <algorithm>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include <fmt/format.h>

#include "ir/codec/decode.h"
#include "ir/codec/encode.h"

namespace kiln::bench {
namespace {

bool IsTileOperation(const v1::Stmt& stmt) { return stmt.has_gemm() || stmt.has_copy() || stmt.has_reduce(); }

void MultiplyIn(v1::Block& block, unsigned times, bool in_loop) {
  v1::Block out;
  for (v1::Stmt& stmt : *block.mutable_stmts()) {
    if (stmt.has_for_loop()) MultiplyIn(*stmt.mutable_for_loop()->mutable_body(), times, true);
    const unsigned copies = in_loop && IsTileOperation(stmt) ? times : 1;
    for (unsigned i = 0; i < copies; ++i) *out.add_stmts() = stmt;
  }
  block.Swap(&out);
}

}  // namespace

std::optional<std::string> FindProgram(const Setup& setup, const std::string& word) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (const auto& file : std::filesystem::recursive_directory_iterator(setup.programs, error)) {
    if (file.path().extension() == ".kiln" && file.path().filename().string().find(word) != std::string::npos) {
      files.push_back(file.path());
    }
  }
  if (files.empty()) return std::nullopt;
  std::ostringstream text;
  text << std::ifstream(*std::ranges::min_element(files), std::ios::binary).rdbuf();
  return text.str();
}

Variants::Variants(const Setup& setup) {
  const std::string program = FindProgram(setup, "gemm").value_or("");
  constexpr std::string_view kStart = " = 0.0";
  const std::size_t at = program.find(kStart);
  if (at == std::string::npos) throw std::runtime_error("the GEMM among the programs no longer fills its accumulator with 0.0");
  before_ = program.substr(0, at);
  after_ = program.substr(at + kStart.size());
}

std::string Variants::operator()(unsigned number) const { return fmt::format("{} = {}.0{}", before_, number, after_); }

std::optional<std::string> Multiply(const std::string& program, unsigned times) {
  ir::Diagnostics diagnostics;
  const auto module = ir::DecodeModule(program, diagnostics);
  if (!module) return std::nullopt;
  v1::Module proto = ir::Encode(*module);
  proto.mutable_debug()->clear_locations();
  for (v1::Kernel& kernel : *proto.mutable_kernels()) MultiplyIn(*kernel.mutable_body(), times, false);
  return proto.SerializeAsString();
}

}  // namespace kiln::bench
