// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/backend_options.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/CodeGen/MIRParser/MIRParser.h>
#include <llvm/CodeGen/MachineModuleInfo.h>
#include <llvm/CodeGen/Passes.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/InitializePasses.h>
#include <llvm/PassRegistry.h>
#include <llvm/Support/MemoryBuffer.h>
#pragma GCC diagnostic pop

#include "compiler/llvm/test_support.h"

namespace kiln::llvm_ir {
namespace {

// %2 is copied twice and never written.
constexpr char kForAmd[] = R"(---
name: never_written
tracksRegLiveness: true
body: |
  bb.0:
    liveins: $vgpr0
    %1:vgpr_32 = COPY $vgpr0
    S_BRANCH %bb.1
  bb.1:
    %0:vgpr_32 = COPY %1
    %1:vgpr_32 = COPY undef %2:vgpr_32
    %3:vgpr_32 = COPY undef %2:vgpr_32
    V_CMP_EQ_U32_e32 %0, %3, implicit-def $vcc, implicit $exec
    S_CBRANCH_VCCNZ %bb.1, implicit $vcc
    S_BRANCH %bb.2
  bb.2:
    S_ENDPGM 0
...
)";
constexpr char kForHost[] = R"(---
name: never_written
tracksRegLiveness: true
body: |
  bb.0:
    liveins: $edi
    %1:gr32 = COPY $edi
    JMP_1 %bb.1
  bb.1:
    %0:gr32 = COPY %1
    %1:gr32 = COPY undef %2:gr32
    %3:gr32 = COPY undef %2:gr32
    CMP32rr %0, %3, implicit-def $eflags
    JCC_1 %bb.1, 4, implicit $eflags
    JMP_1 %bb.2
  bb.2:
    RET64
...
)";

// Runs the pass alone on code in the language of llc's -run-pass.
void Coalesce(std::string_view target, llvm::StringRef code) {
  InitializeTargets();
  llvm::initializeCodeGen(*llvm::PassRegistry::getPassRegistry());
  const auto machine = MakeTargetMachine(**target::Find(target));
  llvm::LLVMContext context;
  const auto parser = llvm::createMIRParser(llvm::MemoryBuffer::getMemBuffer(code), context);
  ASSERT_NE(parser, nullptr);
  const auto module = parser->parseIRModule();
  ASSERT_NE(module, nullptr);
  module->setTargetTriple(machine->getTargetTriple());
  module->setDataLayout(machine->createDataLayout());
  llvm::legacy::PassManager passes;
  auto* info = new llvm::MachineModuleInfoWrapperPass(machine.get());  // the pass manager's
  passes.add(info);
  ASSERT_FALSE(parser->parseMachineFunctions(*module, info->getMMI()));
  passes.add(llvm::Pass::createPass(&llvm::RegisterCoalescerID));
  SetBackendOptions();
  passes.run(*module);
}

TEST(RegisterCoalescer, TakesRegistersThatAreNeverWritten) {
  Coalesce("hip:gfx1100", kForAmd);
  Coalesce("emu:sm_90a", kForHost);
}

TEST(BackendOptions, AreSetAgain) {
  const auto occurrences = [](llvm::StringRef name) {
    const auto& known = llvm::cl::getRegisteredOptions();
    const auto found = known.find(name);
    return found == known.end() ? -1 : found->second->getNumOccurrences();
  };
  for (int module = 0; module < 2; ++module) {
    SetBackendOptions();
    SetBackendOptions();
    for (const char* name : {"cgpp-huge-func", "terminal-rule"}) EXPECT_EQ(occurrences(name), 1) << name << " of this LLVM";
    llvm::cl::ResetAllOptionOccurrences();  // as lld does
  }
}

}  // namespace
}  // namespace kiln::llvm_ir
