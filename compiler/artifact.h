// SPDX-License-Identifier: Apache-2.0
//
// The launch information and the report, both derived from a module in which every decision is made.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "compiler/options.h"
#include "ir/module.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::compiler {

// A parameter of every kernel function of a module: tensors and scalars in the module's order, then symbols, then workspaces; tensor maps
// (rules/tensor.h) follow.
struct KernelParam {
  bool is_pointer;
  uint32_t index;  // buffer or variable
  ir::DType dtype;
};
std::vector<KernelParam> KernelParams(const ir::Module& module);

// "kernel_0", or what options.entry_name says in place of "kernel". Names of the program are not part of the key, so they are not in the code.
std::string EntryName(const Context& context, size_t kernel);

// What each kernel assumes, unconditionally, of integers that the launcher knows.
using Assumptions = google::protobuf::RepeatedPtrField<v1::Assumption>;
std::vector<Assumptions> AssumptionsOf(const ir::Module& module);

v1::LaunchInfo MakeLaunchInfo(const ir::Module& module, const Context& context);
// What is known only once the code is made.
struct Generated {
  google::protobuf::RepeatedPtrField<v1::KernelResources> resources;  // as the assembler or the linker says; may be empty
};
v1::Report MakeReport(const ir::Module& module, const Context& context, const Generated& generated, std::span<const std::set<uint32_t>> users);
// For the report of emulated targets, whose statements' lines are numbers by then: those that read or write each buffer.
std::vector<std::set<uint32_t>> UsersOfBuffers(const ir::Module& module);

}  // namespace kiln::compiler
