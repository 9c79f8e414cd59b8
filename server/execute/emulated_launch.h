// SPDX-License-Identifier: Apache-2.0
//
// All launches of one call of a kernel on the emulator: grids, symbols, workspaces and tensor maps as on a GPU.
#pragma once

#include <cstddef>
#include <expected>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clients/runtime/bind.h"
#include "clients/runtime/tensor_map.h"
#include "compiler/emulator/program.h"

namespace kiln::server {

class EmulatedLaunch {
 public:
  // `args`: one for each parameter, tensors in this process's memory; `memory`: what they lie in. All outlive this object. The error
  // says what does not fit the kernel.
  static std::expected<EmulatedLaunch, std::string> Bind(const runtime::Binder& binder, std::span<const runtime::Arg> args,
                                                         std::vector<emulator::Memory> memory);

  // In order; ends at the first launch that does not finish.
  std::expected<emulator::Report, std::string> Run(emulator::Program& program, const emulator::Options& options);

 private:
  EmulatedLaunch(const runtime::Binder& binder, std::span<const runtime::Arg> args, std::vector<emulator::Memory> memory, runtime::Binding binding,
                 std::vector<runtime::EncodedTensorMap> maps);
  void AddWorkspace(std::size_t index);
  std::expected<emulator::LaunchArgs, std::string> Prepare(std::size_t index);
  std::expected<std::uint64_t, std::string> Value(const runtime::KernelArg& arg);

  const runtime::Binder& binder_;
  std::span<const runtime::Arg> args_;
  std::vector<emulator::Memory> memory_;
  runtime::Binding binding_;
  std::vector<std::unique_ptr<std::byte[]>> workspaces_;
  std::vector<std::uint64_t> workspace_addresses_;
  std::vector<runtime::EncodedTensorMap> maps_;
};

}  // namespace kiln::server
