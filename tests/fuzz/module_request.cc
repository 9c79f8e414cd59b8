// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/module_request.h"

#include <random>
#include <vector>

#include "compiler/target/target.h"
#include "ir/codec/encode.h"
#include "ir/grammar/grammar.h"
#include "ir/text/print.h"

namespace kiln::fuzz {
namespace {

ir::Module ModuleOf(uint64_t seed) { return ir::grammar::MakeModule(seed, {.decisions = false, .simplified = seed % 4 != 0}); }

v1::CompileOptions OptionsOf(uint64_t seed) {
  std::mt19937_64 random(seed ^ 0x6b696c6e);
  const auto one_in = [&](uint64_t n) { return random() % n == 0; };
  v1::CompileOptions options;
  if (one_in(3)) return options;
  options.set_fast_math(one_in(3));
  options.set_disable_async_copy(one_in(6));
  options.set_disable_warp_specialization(one_in(6));
  options.set_disable_tma(one_in(6));
  options.set_disable_wgmma(one_in(6));
  options.set_fast_accumulation(one_in(4));
  options.set_stream_k(v1::StreamK(random() % 3));
  const auto pick = [&](const std::vector<uint32_t>& values) { return values[random() % values.size()]; };
  options.set_max_registers(pick({0, 0, 0, 0, 0, 32, 64, 128, 255}));
  options.set_pointer_alignment(pick({0, 0, 0, 0, 1, 2, 4, 8, 16, 128}));
  options.set_max_unrolled(pick({0, 0, 0, 0, 1, 64}));
  if (one_in(30)) options.set_max_code(pick({1, 1000}));
  return options;
}

}  // namespace

v1::CompileRequest RequestOf(uint64_t seed) {
  const auto targets = target::All(), emulated = target::Emulated();
  v1::CompileRequest request;
  request.set_module(ir::EncodeBytes(ModuleOf(seed)));
  const uint64_t row = seed % targets.size();
  const bool is_emulated = seed / targets.size() % 8 == 7;
  request.set_target(std::string((is_emulated ? emulated : targets)[row].name));
  *request.mutable_options() = OptionsOf(seed);
  return request;
}

std::string TextOf(uint64_t seed) { return ir::Print(ModuleOf(seed)); }

}  // namespace kiln::fuzz
