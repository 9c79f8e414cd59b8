// SPDX-License-Identifier: Apache-2.0
//
// Modules of tests on the emulator. What goes wrong on the way is thrown as std::runtime_error, which ends the test.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "ir/module.h"
#include "tests/emulator/jobs/emulate.h"

namespace kiln::emulator::testing {

inline constexpr const char* kTargets[] = {"emu:sm_80", "emu:sm_90a", "emu:gfx942", "emu:gfx1100"};

using Tensors = std::map<std::string, std::vector<double>>;  // the elements of each parameter, by its name

ir::Module Parsed(const std::string& text);

// The module after the first pass, or as it is where `pass` is empty, up to and with `pass`.
void RunPassesUpTo(std::string_view pass, ir::Module& module, std::string_view target, const v1::CompileOptions& options = {});

// A module that is compiled once and runs with the emulator's checks, which must find nothing.
class Runner {
 public:
  // `after`: the last pass that has run already; empty: none has.
  Runner(ir::Module module, std::string_view target, std::string_view after = {}, const v1::CompileOptions& options = {});
  Tensors Run(const Tensors& before, uint64_t seed = 0);
  // As each pass left it.
  const std::string& After(std::string_view pass) const { return dumps_.at(std::string(pass)); }

 private:
  struct Param {
    std::string name;
    ir::DType dtype;
    std::vector<int64_t> shape;
  };
  std::vector<Param> params_;
  std::map<std::string, std::string> dumps_;
  std::unique_ptr<Emulated> program_;
};

// Small integers from 1 on, the same for the same seed, for each parameter.
Tensors SmallNumbers(const ir::Module& module, uint32_t seed);

}  // namespace kiln::emulator::testing
