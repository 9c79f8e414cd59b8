// SPDX-License-Identifier: Apache-2.0
//
// The last steps: optimise a module and turn it into PTX or a code object. No file is written.
#pragma once

#include <expected>
#include <memory>
#include <string>
#include <vector>

#include "compiler/llvm/llvm_headers.h"
#include "compiler/options.h"
#include "compiler/target/target.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::llvm_ir {

// Registers LLVM's targets; once in a process.
void InitializeTargets();

// Sets triple, data layout and, for AMDGPU, the code object version.
std::unique_ptr<llvm::TargetMachine> MakeTargetMachine(const target::Target& target);
void Prepare(llvm::Module& module, llvm::TargetMachine& machine, const target::Target& target);

// Instructions of the kernels after inlining: a called function counts once for each call, and the last of a block as compiler::kCodeOfBlock.
size_t CodeOf(const llvm::Module& module);
// Whether a kernel is so long that Optimize and the backend must skip every pass whose time is not proportional to its length.
bool IsLong(const llvm::Module& module);
// Whether instructions may move out of loops and, in AMD's backend, to the front of their blocks. They then run less often, but their
// results occupy registers for longer.
enum class CodeMotion { kYes, kNo };
// Whether instruction selection turns the intrinsic into a library call, and then aborts because there is no library.
bool NeedsLibrary(const llvm::Function& intrinsic);
// An attribute of a declaration whose definition the PTX gets as text (functions/definitions.h).
inline constexpr llvm::StringLiteral kInPtx = "kiln-in-ptx";

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
  // Its own code failed (SIGSEGV and the like), or took out of all proportion to the program: it may do with less optimization.
  bool optimizer_failed = false;
};
// Runs `ptxas` (a path) on `ptx`. The output is the same for the same PTX, unless ptxas' optimizer takes about as long as it may. Its time grows
// with the square of the code's length; not `optimized`, it grows in proportion. Where the optimizer crashes or takes too long, or its code has a
// fault of ptxas (sass/early_reads.h, sass/lost_halves.h, sass/torn_registers.h), ptxas runs again with less optimization, and a warning says so. No
// such code is returned.
std::expected<PtxasOutput, PtxasFailure> RunPtxas(const std::string& ptxas, const target::Target& target, const std::string& ptx,
                                                  bool optimized = true);

}  // namespace kiln::llvm_ir
