// SPDX-License-Identifier: Apache-2.0
//
// Threads written by hand, for tests: kernel(in, out[, map]) through the same Device as the compiler's.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "compiler/emulator/device_emulator.h"
#include "compiler/emulator/program.h"
#include "compiler/emulator/tensor_map.h"
#include "compiler/llvm/emit.h"

namespace kiln::emulator {

// `threads` threads; 4 KiB of shared memory unless `shared_bytes` says otherwise; `in` and `out` have `words` words each.
class Kernel {
 public:
  explicit Kernel(std::string_view target, uint32_t threads = 64, uint32_t shared_bytes = 4096, size_t words = 256)
      : target_(**target::Find(target)), module_("kernel", context_), b(context_), threads_(threads), shared_bytes_(shared_bytes), words_(words) {
    llvm_ir::InitializeTargets();
    machine_ = llvm_ir::MakeTargetMachine(target_);
    llvm_ir::Prepare(module_, *machine_, target_);
    device = MakeEmulatorDevice(target_, b);
    llvm::Type* global = llvm::PointerType::get(context_, llvm_ir::kGlobalSpace);
    llvm::Type* params[] = {global, global, llvm::ArrayType::get(b.getInt8Ty(), kTensorMapBytes)};
    kernel = device->CreateKernel(module_, "kernel", params, threads, 0, 0);
    b.SetInsertPoint(llvm::BasicBlock::Create(context_, "entry", kernel));
    shared = device->SharedMemory(shared_bytes, "shared");
    thread = device->ThreadIndex();
  }

  llvm::Value* At(llvm::Value* base, llvm::Value* index) { return b.CreateGEP(b.getInt32Ty(), base, index); }
  llvm::Value* Byte(llvm::Value* base, uint32_t offset) { return b.CreateConstGEP1_32(b.getInt8Ty(), base, offset); }
  llvm::Value* Load(llvm::Value* base, llvm::Value* index) { return b.CreateLoad(b.getInt32Ty(), At(base, index)); }
  void Store(llvm::Value* v, llvm::Value* base, llvm::Value* index) { b.CreateStore(v, At(base, index)); }
  llvm::Value* in() { return kernel->getArg(0); }
  llvm::Value* out() { return kernel->getArg(1); }
  llvm::Value* map() { return kernel->getArg(2); }
  llvm::Value* I32(int value) { return b.getInt32(uint32_t(value)); }
  llvm::Value* Is(llvm::Value* v, int value) { return b.CreateICmpEQ(v, I32(value)); }
  llvm::Value* Below(llvm::Value* v, int value) { return b.CreateICmpULT(v, I32(value)); }

  // The rest of the thread runs `then` only where `condition` holds.
  void If(llvm::Value* condition, const std::function<void()>& then, const std::function<void()>& otherwise = {}) {
    auto* yes = llvm::BasicBlock::Create(context_, "then", kernel);
    auto* no = llvm::BasicBlock::Create(context_, "else", kernel);
    auto* end = llvm::BasicBlock::Create(context_, "end", kernel);
    b.CreateCondBr(condition, yes, no);
    b.SetInsertPoint(yes);
    then();
    b.CreateBr(end);
    b.SetInsertPoint(no);
    if (otherwise) otherwise();
    b.CreateBr(end);
    b.SetInsertPoint(end);
  }

  // body(i) for i in 0 … count - 1.
  void For(int count, const std::function<void(llvm::Value*)>& body) {
    llvm::BasicBlock* before = b.GetInsertBlock();
    auto* loop = llvm::BasicBlock::Create(context_, "loop", kernel);
    auto* end = llvm::BasicBlock::Create(context_, "end", kernel);
    b.CreateBr(loop);
    b.SetInsertPoint(loop);
    llvm::PHINode* i = b.CreatePHI(b.getInt32Ty(), 2);
    i->addIncoming(I32(0), before);
    body(i);
    llvm::Value* next = b.CreateAdd(i, I32(1));
    i->addIncoming(next, b.GetInsertBlock());
    b.CreateCondBr(Below(next, count), loop, end);
    b.SetInsertPoint(end);
  }

  // A buffer of words that findings may name.
  void Name(const std::string& buffer, uint32_t offset, uint32_t words) {
    v1::SharedSlot& slot = *artifact_.mutable_report()->add_shared_memory();
    slot.set_buffer(buffer);
    slot.set_offset(offset);
    slot.set_bytes(4 * words);
    slot.set_element_bits(32);
  }

  const v1::Artifact& Compile() {
    if (artifact_.kind() == v1::EMULATOR) return artifact_;
    if (b.GetInsertBlock()->getTerminator() == nullptr) b.CreateRetVoid();
    artifact_.set_target(std::string(target_.name));
    artifact_.set_kind(v1::EMULATOR);
    const auto optimized = llvm_ir::Optimize(module_, *machine_);
    EXPECT_TRUE(optimized) << optimized.error();
    artifact_.set_code(llvm_ir::EmitBitcode(module_));
    return artifact_;
  }

  // Where a tensor map says which of the two it is of; `in` and `out` are filled first.
  std::vector<uint32_t>& input() { return input_.empty() ? Fill(input_) : input_; }
  TensorMapSpec spec;  // its address: set when the kernel runs, to in or out
  bool map_out = false;
  std::array<uint32_t, 3> cluster{1, 1, 1};

  // Each seed on the same input; ends at the first with findings.
  Report RunSeeds(uint64_t first, uint64_t count, uint32_t blocks = 1) {
    Report report;
    for (uint64_t seed = first; seed < first + count && report.findings.empty(); ++seed) report = Run({}, {.seed = seed}, true, blocks);
    return report;
  }

  Report Run(std::vector<uint32_t> given = {}, Options options = {}, bool check = true, uint32_t blocks = 1) {
    std::unique_ptr<Program>& program = programs_[check ? 1 : 0];
    if (program == nullptr) {
      auto loaded = Program::Load(Compile(), check);
      EXPECT_TRUE(loaded) << loaded.error();
      if (!loaded) return {};
      program = std::move(*loaded);
    }
    return RunOnce(*program, std::move(given), options, blocks);
  }

 private:
  Report RunOnce(Program& program, std::vector<uint32_t> given, Options options, uint32_t blocks) {
    std::vector<uint32_t> input = given.empty() ? this->input() : std::move(given);
    input.resize(words_);
    output.assign(words_, 0);
    const uint64_t bytes = words_ * 4;
    const Memory memory[] = {{input.data(), bytes, 4, "in"}, {output.data(), bytes, 4, "out"}};
    alignas(64) TensorMap map{.magic = 0};
    if (spec.rank > 0) {
      spec.address = uint64_t(map_out ? output.data() : input.data());
      const auto encoded = EncodeTensorMap(spec);
      EXPECT_TRUE(encoded) << encoded.error();
      if (encoded) map = *encoded;
    }
    LaunchArgs launch{"kernel", {blocks, 1, 1}, threads_, shared_bytes_, {uint64_t(input.data()), uint64_t(output.data()), uint64_t(&map)}, cluster};
    const auto report = program.Run(launch, memory, options);
    EXPECT_TRUE(report) << report.error();
    return report.value_or(Report{});
  }
  std::vector<uint32_t>& Fill(std::vector<uint32_t>& words) {
    words.resize(words_);
    return words;
  }

  const target::Target& target_;
  llvm::LLVMContext context_;
  llvm::Module module_;
  v1::Artifact artifact_;
  std::vector<uint32_t> input_;
  std::array<std::unique_ptr<Program>, 2> programs_;  // not checked, checked

 public:
  llvm::IRBuilder<> b;
  std::unique_ptr<llvm_ir::Device> device;
  llvm::Function* kernel = nullptr;
  llvm::Value *shared = nullptr, *thread = nullptr;
  std::vector<uint32_t> output;

 private:
  const uint32_t threads_, shared_bytes_;
  const size_t words_;
  std::unique_ptr<llvm::TargetMachine> machine_;
};

inline void ExpectOnly(const Report& report, FindingKind kind, const std::string& text) {
  ASSERT_EQ(report.findings.size(), 1u) << (report.findings.empty() ? "nothing was found" : report.findings[1].message);
  EXPECT_EQ(report.findings[0].kind, kind);
  EXPECT_THAT(report.findings[0].message, ::testing::HasSubstr(text));
}

inline void ExpectClean(const Report& report) {
  EXPECT_TRUE(report.finished);
  EXPECT_TRUE(report.findings.empty()) << Name(report.findings[0].kind) << ": " << report.findings[0].message;
}

// One of the findings is of this kind and says so.
inline void ExpectAmong(const Report& report, FindingKind kind, const std::string& text) {
  std::string all;
  for (const Finding& finding : report.findings) {
    if (finding.kind == kind && finding.message.find(text) != std::string::npos) return;
    all += "\n" + std::string(Name(finding.kind)) + ": " + finding.message;
  }
  ADD_FAILURE() << "no \"" << text << "\" of kind " << Name(kind) << " among" << all;
}

}  // namespace kiln::emulator
