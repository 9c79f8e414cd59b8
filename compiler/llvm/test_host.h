// SPDX-License-Identifier: Apache-2.0
//
// Runs the IR that builders of this folder make on the host, element by element.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <functional>
#include <vector>

#include "compiler/llvm/device/device.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ExecutionEngine/Orc/JITTargetMachineBuilder.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/TargetSelect.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {

// out[i] = body(in[0][i], in[1][i], …): builds the loop, compiles it and keeps it.
class HostFunction {
 public:
  using Body = std::function<llvm::Value*(llvm::IRBuilderBase&, std::span<llvm::Value* const>)>;

  HostFunction(std::span<const ir::DType> inputs, const Body& body) {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    auto context = std::make_unique<llvm::LLVMContext>();
    auto module = std::make_unique<llvm::Module>("host", *context);
    Build(*module, inputs, body);
    auto machine = Must(llvm::orc::JITTargetMachineBuilder::detectHost());
    machine.addFeatures({"-avx512bf16", "-avxneconvert"});  // their conversion takes subnormals for zero
    jit_ = Must(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(machine)).create());
    module->setDataLayout(jit_->getDataLayout());
    const auto truncate = llvm::orc::ExecutorSymbolDef::fromPtr(&TruncateToBf16);
    llvm::cantFail(jit_->getMainJITDylib().define(llvm::orc::absoluteSymbols({{jit_->mangleAndIntern("__truncsfbf2"), truncate}})));
    llvm::cantFail(jit_->addIRModule({std::move(module), std::move(context)}));
    function_ = Must(jit_->lookup("run")).toPtr<void(const void* const*, void*, int64_t)>();
  }

  template <typename Out, typename... In>
  std::vector<Out> operator()(const std::vector<In>&... in) const {
    const size_t count = std::get<0>(std::tie(in...)).size();
    const void* inputs[] = {in.data()...};
    std::vector<Out> out(count);
    function_(inputs, out.data(), int64_t(count));
    return out;
  }

 private:
  // What GCC 13 and later have in their library: f32 to bf16, returned where a float would be.
  static float TruncateToBf16(float x) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    const uint32_t rounded = x != x ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return std::bit_cast<float>(rounded);
  }

  template <typename T>
  static T Must(llvm::Expected<T> value) {
    if (!value) {
      ADD_FAILURE() << llvm::toString(value.takeError());
      std::abort();
    }
    return std::move(*value);
  }

  static void Build(llvm::Module& module, std::span<const ir::DType> inputs, const Body& body) {
    llvm::LLVMContext& context = module.getContext();
    llvm::IRBuilder<> b(context);
    llvm::Type* pointer = b.getPtrTy();
    auto* type = llvm::FunctionType::get(b.getVoidTy(), {pointer, pointer, b.getInt64Ty()}, false);
    auto* run = llvm::Function::Create(type, llvm::Function::ExternalLinkage, "run", module);
    auto* entry = llvm::BasicBlock::Create(context, "entry", run);
    auto* loop = llvm::BasicBlock::Create(context, "loop", run);
    auto* done = llvm::BasicBlock::Create(context, "done", run);
    b.SetInsertPoint(entry);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    llvm::PHINode* i = b.CreatePHI(b.getInt64Ty(), 2);
    i->addIncoming(b.getInt64(0), entry);
    std::vector<llvm::Value*> args;
    for (uint64_t n = 0; n < inputs.size(); ++n) {
      llvm::Value* base = b.CreateLoad(pointer, b.CreateConstGEP1_64(pointer, run->getArg(0), n));
      llvm::Type* memory = MemoryType(context, inputs[n]);
      if (memory->getPrimitiveSizeInBits() < 8) memory = b.getInt8Ty();
      llvm::Value* value = b.CreateLoad(memory, b.CreateGEP(memory, base, i));
      if (memory != ValueType(context, inputs[n])) value = b.CreateTrunc(value, ValueType(context, inputs[n]));
      args.push_back(value);
    }
    llvm::Value* result = body(b, args);
    if (result->getType()->isIntegerTy() && result->getType()->getIntegerBitWidth() < 8) {
      result = b.CreateZExt(result, b.getInt8Ty());
    }
    b.CreateStore(result, b.CreateGEP(result->getType(), run->getArg(1), i));
    llvm::Value* next = b.CreateAdd(i, b.getInt64(1));
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(b.CreateICmpSLT(next, run->getArg(2)), loop, done);
    b.SetInsertPoint(done);
    b.CreateRetVoid();
    std::string problem;
    llvm::raw_string_ostream stream(problem);
    ASSERT_FALSE(llvm::verifyModule(module, &stream)) << problem;
  }

  std::unique_ptr<llvm::orc::LLJIT> jit_;
  void (*function_)(const void* const*, void*, int64_t) = nullptr;
};

}  // namespace kiln::llvm_ir
