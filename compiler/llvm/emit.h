// SPDX-License-Identifier: Apache-2.0
//
// The last steps: optimise a module and turn it into PTX or a code object. No file is written and no text is edited.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "compiler/llvm/llvm_headers.h"
#include "compiler/target/target.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::llvm_ir {

// Registers LLVM's targets; once in a process.
void InitializeTargets();

// Sets triple, data layout and, for AMDGPU, the code object version.
std::unique_ptr<llvm::TargetMachine> MakeTargetMachine(const target::Target& target);
void Prepare(llvm::Module& module, llvm::TargetMachine& machine, const target::Target& target);

// What a block's last instruction counts as: LLVM's passes over blocks take about as long for one block as the others for so many instructions.
constexpr int64_t kCodeOfBlock = 16;
// Instructions of the kernels, with the functions that they call, once for each call: as many as there are when these are inlined.
size_t CodeOf(const llvm::Module& module);
// Whether a kernel is so long that Optimize, and the backend after it, do only what takes time in proportion to its length.
bool IsLong(const llvm::Module& module);
// Whether instructions may move to where they run less often, at the price of registers from there on: out of loops and, by AMD's backend,
// to the front of their blocks.
enum class CodeMotion { kYes, kNo };
// Everything inlined, then the pass list that kernels need and no more. Fails if an unknown llvm.* declaration or a call that
// cannot be inlined is left (a silent external call otherwise).
std::expected<void, std::string> Optimize(llvm::Module& module, llvm::TargetMachine& machine, CodeMotion motion = CodeMotion::kYes);

std::expected<std::string, std::string> EmitAssembly(llvm::Module& module, llvm::TargetMachine& machine);  // PTX or GCN text
std::expected<std::string, std::string> EmitHsaco(llvm::Module& module, llvm::TargetMachine& machine);     // ELF, linked by lld
std::string EmitBitcode(const llvm::Module& module);

// Registers, spills and LDS of each kernel, from an HSACO's metadata note and kernel descriptors.
std::expected<std::vector<v1::KernelResources>, std::string> ReadHsacoResources(const std::string& hsaco);

struct PtxasOutput {
  std::string cubin;
  std::vector<v1::KernelResources> kernels;
  std::vector<std::string> warnings;  // C75xx and others
};
struct PtxasFailure {
  std::string text;           // ptxas's own, where it ran
  bool from_outside = false;  // it could not be started, or was killed: another run may do
};
// Runs `ptxas` (a path) on `ptx`; deterministic output.
std::expected<PtxasOutput, PtxasFailure> RunPtxas(const std::string& ptxas, const target::Target& target, const std::string& ptx);

}  // namespace kiln::llvm_ir
