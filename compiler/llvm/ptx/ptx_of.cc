// SPDX-License-Identifier: Apache-2.0
//
// The PTX that Kiln makes of kernels in LLVM's IR: ptx_of TARGET < IR > PTX, for example ptx_of cuda:sm_90a.
#include <fmt/format.h>

#include <cstdio>
#include <iostream>
#include <iterator>
#include <string>

#include "compiler/llvm/emit.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/AsmParser/Parser.h>
#include <llvm/Support/SourceMgr.h>
#pragma GCC diagnostic pop

namespace {

int Fail(const std::string& why) {
  fmt::print(stderr, "ptx_of: {}\n", why);
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kiln;
  const auto target = target::Find(argc == 2 ? argv[1] : "");
  if (!target || (*target)->family != target::Family::kNvptx || (*target)->emulated) return Fail("give one target of NVIDIA's, and the IR on stdin");
  llvm_ir::InitializeTargets();
  const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  llvm::LLVMContext context;
  llvm::SMDiagnostic problem;
  const std::unique_ptr<llvm::Module> module = llvm::parseAssemblyString(text, problem, context);
  if (module == nullptr) return Fail(fmt::format("line {}: {}", problem.getLineNo(), problem.getMessage().str()));
  const auto machine = llvm_ir::MakeTargetMachine(**target);
  llvm_ir::Prepare(*module, *machine, **target);
  if (const auto optimized = llvm_ir::Optimize(*module, *machine); !optimized) return Fail(optimized.error());
  const auto ptx = llvm_ir::EmitAssembly(*module, *machine);
  if (!ptx) return Fail(ptx.error());
  std::fwrite(ptx->data(), 1, ptx->size(), stdout);
}
