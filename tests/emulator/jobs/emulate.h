// SPDX-License-Identifier: Apache-2.0
//
// A program from its module to results on the emulator: compile, bind, launch.
#pragma once

#include <expected>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clients/runtime/bind.h"
#include "compiler/emulator/program.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::emulator::testing {

struct TensorArg {
  runtime::DType dtype{};
  std::vector<int64_t> shape, strides;  // strides empty: row-major
  std::vector<std::byte>* bytes = nullptr;
  uint64_t first = 0;  // byte of the first element
};

std::expected<v1::Artifact, std::string> CompileFor(const std::string& target, std::string module, const v1::CompileOptions& options);

class Emulated {
 public:
  static std::expected<std::unique_ptr<Emulated>, std::string> Load(const v1::Artifact& artifact, bool check);

  // All launches of the artifact in order; ends at the first that does not finish.
  std::expected<Report, std::string> Run(std::span<const TensorArg> tensors, const Options& options);

 private:
  Emulated(runtime::Binder binder, std::unique_ptr<Program> program) : binder_(std::move(binder)), program_(std::move(program)) {}

  runtime::Binder binder_;
  std::unique_ptr<Program> program_;
};

}  // namespace kiln::emulator::testing
