// SPDX-License-Identifier: Apache-2.0
//
// A module with one kernel under construction, for the tests of this folder.
#pragma once

#include <gtest/gtest.h>

#include "compiler/llvm/assemble/find_ptxas.h"
#include "compiler/llvm/device/device.h"
#include "compiler/llvm/emit.h"

namespace kiln::llvm_ir {

struct TestKernel {
  explicit TestKernel(const target::Target& t, uint32_t threads = 128, uint32_t max_registers = 0, uint32_t min_blocks = 0)
      : target(t), module("test", context), builder(context), machine((InitializeTargets(), MakeTargetMachine(t))) {
    Prepare(module, *machine, target);
    device = target.family == target::Family::kNvptx ? MakeNvptxDevice(target, builder) : MakeAmdgpuDevice(target, builder);
    llvm::Type* global = llvm::PointerType::get(context, kGlobalSpace);
    std::vector<llvm::Type*> params = {global, global, builder.getInt32Ty()};
    const bool maps = target.Has(target::Feature::kTma);
    if (maps) params.push_back(llvm::ArrayType::get(builder.getInt8Ty(), 128));
    kernel = device->CreateKernel(module, "test_kernel", params, threads, max_registers, min_blocks);
    if (maps) map = kernel->getArg(3);
    builder.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", kernel));
    auto* array = llvm::ArrayType::get(builder.getInt8Ty(), 4096);
    shared = new llvm::GlobalVariable(module, array, false, llvm::GlobalValue::InternalLinkage, llvm::PoisonValue::get(array), "shared", nullptr,
                                      llvm::GlobalValue::NotThreadLocal, kSharedSpace);
    shared->setAlignment(llvm::Align(128));
  }

  // The `index`-th input of this thread, and the place of its `index`-th output.
  llvm::Value* Load(llvm::Type* type) { return builder.CreateLoad(type, Place(kernel->getArg(0), type, inputs++)); }
  void Store(llvm::Value* v) {
    if (v->getType()->isIntegerTy(1)) v = builder.CreateZExt(v, builder.getInt8Ty());
    builder.CreateStore(v, Place(kernel->getArg(1), v->getType(), outputs++));
  }
  llvm::Value* Place(llvm::Value* base, llvm::Type* type, uint32_t index) {
    llvm::Value* thread = builder.CreateAdd(device->ThreadIndex(), builder.getInt32(index * 1024));
    return builder.CreateGEP(type, base, builder.CreateZExt(thread, builder.getInt64Ty()));
  }

  // Ends the kernel and optimises; the text of the failure or nothing.
  std::string Finish() {
    builder.CreateRetVoid();
    std::string problem;
    llvm::raw_string_ostream stream(problem);
    if (llvm::verifyModule(module, &stream)) return problem;
    const auto optimized = Optimize(module, *machine);
    return optimized ? "" : optimized.error();
  }

  const target::Target& target;
  llvm::LLVMContext context;
  llvm::Module module;
  llvm::IRBuilder<> builder;
  std::unique_ptr<llvm::TargetMachine> machine;
  std::unique_ptr<Device> device;
  llvm::Function* kernel = nullptr;
  llvm::GlobalVariable* shared = nullptr;
  llvm::Value* map = nullptr;  // kTma: a tensor map
  uint32_t inputs = 0, outputs = 0;
};

}  // namespace kiln::llvm_ir
