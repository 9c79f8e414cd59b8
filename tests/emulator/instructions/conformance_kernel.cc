// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/instructions/conformance_kernel.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <random>

#include "compiler/emulator/device_emulator.h"
#include "compiler/emulator/program.h"
#include "compiler/emulator/runtime/matrix/number.h"
#include "compiler/llvm/emit.h"
#include "ir/expr/numeric.h"

namespace kiln::emulator::conformance {

using ir::DType;

llvm::Value* FormKernel::Place(llvm::Value* base, uint32_t first, uint32_t index) {
  llvm::Value* word = b.CreateAdd(place_, b.getInt32(first + index * all_threads_));
  return b.CreateGEP(b.getInt32Ty(), base, b.CreateZExt(word, b.getInt64Ty()));
}

llvm::Value* FormKernel::In(Words words) {
  inputs_.push_back(words);
  return b.CreateLoad(b.getInt32Ty(), Place(global_in, first_, uint32_t(inputs_.size() - 1)));
}

llvm::Value* FormKernel::Value(DType type, Content content) {
  const int bits = ir::Bits(type);
  llvm::Type* value = llvm_ir::ValueType(b.getContext(), type);
  if (bits <= 32) return b.CreateBitCast(b.CreateTrunc(In({type, content}), b.getIntNTy(unsigned(bits))), value);
  // The upper half of a double near 1 looks like a float near 1.
  const Words upper = content == Content::kReals ? Words{DType::kF32, content} : Words{};
  llvm::Value* low = b.CreateZExt(In({}), b.getInt64Ty());
  llvm::Value* high = b.CreateZExt(In(upper), b.getInt64Ty());
  return b.CreateBitCast(b.CreateOr(low, b.CreateShl(high, b.getInt64(32))), value);
}

// 64 bits at once: ptxas (CUDA 13.0) makes an integer of a double whose lower word alone is stored.
void FormKernel::Out(llvm::Value* v) {
  const auto bits = unsigned(v->getType()->getPrimitiveSizeInBits().getFixedValue());
  if (bits == 64) {
    llvm::Value* row = b.CreateGEP(b.getInt32Ty(), global_out, b.getInt64(uint64_t{outputs_} * all_threads_));
    b.CreateStore(v, b.CreateGEP(b.getInt64Ty(), row, b.CreateZExt(place_, b.getInt64Ty())));
    outputs_ += 2;
    return;
  }
  b.CreateStore(b.CreateZExt(b.CreateBitCast(v, b.getIntNTy(bits)), b.getInt32Ty()), Place(global_out, 0, outputs_++));
}

FormKernel::FormKernel(llvm_ir::Device& device, const Form& form, llvm::Function& kernel, llvm::Value* shared)
    : device(device),
      b(device.builder()),
      global_in(kernel.getArg(0)),
      global_out(kernel.getArg(1)),
      map(form.map ? kernel.getArg(2) : nullptr),
      shared(shared),
      thread(device.ThreadIndex()),
      block(form.blocks > 1 ? device.BlockIndex(0) : b.getInt32(0)),
      threads_(form.threads),
      all_threads_(form.threads * form.blocks),
      first_(form.map_out ? 0 : form.tensor_words),
      place_(b.CreateAdd(thread, b.CreateMul(block, b.getInt32(form.threads)))) {}

void FormKernel::FillShared(uint32_t bytes, Words words) {
  for (uint32_t i = 0; i < bytes / 4 / threads_; ++i) {
    llvm::Value* offset = b.CreateAdd(b.CreateMul(thread, I32(4)), b.getInt32(i * threads_ * 4));
    b.CreateStore(In(words), SharedByte(offset));
  }
  device.Barrier();
}

void FormKernel::OutShared(uint32_t bytes) {
  device.Barrier();
  for (uint32_t i = 0; i < bytes / 4 / threads_; ++i) {
    llvm::Value* offset = b.CreateAdd(b.CreateMul(thread, I32(4)), b.getInt32(i * threads_ * 4));
    Out(b.CreateLoad(b.getInt32Ty(), SharedByte(offset)));
  }
}

void FormKernel::If(llvm::Value* condition, const std::function<void()>& then) {
  llvm::Function* function = b.GetInsertBlock()->getParent();
  auto* yes = llvm::BasicBlock::Create(b.getContext(), "some", function);
  auto* end = llvm::BasicBlock::Create(b.getContext(), "all", function);
  b.CreateCondBr(condition, yes, end);
  b.SetInsertPoint(yes);
  then();
  b.CreateBr(end);
  b.SetInsertPoint(end);
}

namespace {

constexpr const char* kEntry = "form";

uint32_t Encode(DType type, double value) {
  if (ir::Bits(type) == 32) return std::bit_cast<uint32_t>(float(ir::RoundTo(type, value)));
  if (ir::Bits(type) == 16) return Narrow(type, float(value));
  const double rounded = ir::RoundTo(type, value);
  uint32_t bits = 0;
  while (bits < 255 && double(Widen(type, bits)) != rounded) ++bits;
  return bits;
}

// One element of the type.
uint32_t Element(Words words, std::mt19937_64& random) {
  const int bits = ir::Bits(words.type);
  const auto any = uint32_t(random());
  if (words.content == Content::kBits) return bits >= 32 ? any : any & ((1u << bits) - 1);
  const bool integers = words.content == Content::kIntegers;
  const double value = integers ? int(any % 7) - 3 : double(any) / 1073741824.0 - 2;
  const uint32_t mask = bits >= 32 ? ~0u : (1u << bits) - 1;
  if (!ir::IsFloat(words.type)) return uint32_t(ir::IsSigned(words.type) ? int(any % 7) - 3 : int(any % 7)) & mask;
  return Encode(words.type, value);
}

uint32_t Word(Words words, std::mt19937_64& random) {
  const int bits = std::min(ir::Bits(words.type), 32);
  uint32_t word = 0;
  for (int at = 0; at < 32; at += bits) word |= Element(words, random) << at;
  return word;
}

// Words of one kind, which come again after a prime number of others: operands stay small when packed, and no shift that a wrong
// layout could make is a multiple of it.
class Pool {
 public:
  Pool(Words words, std::mt19937_64& random) {
    for (uint32_t& word : pool_) word = Word(words, random);
  }
  uint32_t Next() { return pool_[next_++ % pool_.size()]; }

 private:
  std::array<uint32_t, 1021> pool_;
  size_t next_ = 0;
};

std::vector<uint32_t> Operands(const Form& form, const std::vector<Words>& inputs, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::pair<DType, Content>, Pool> pools;
  const auto next = [&](Words words) { return pools.try_emplace({words.type, words.content}, words, random).first->second.Next(); };
  std::vector<uint32_t> input;
  if (!form.map_out) {
    for (uint32_t i = 0; i < form.tensor_words; ++i) input.push_back(next(form.tensor));
  }
  for (Words words : inputs) {
    for (uint32_t t = 0; t < form.threads * form.blocks; ++t) input.push_back(next(words));
  }
  input.resize(std::max<size_t>(input.size(), 4));
  return input;
}

struct Built {
  llvm::LLVMContext context;
  std::unique_ptr<llvm::Module> module;
  std::unique_ptr<llvm::TargetMachine> machine;
  std::vector<Words> inputs;
  uint32_t outputs = 0;
};

std::expected<std::unique_ptr<Built>, std::string> Build(const Form& form, const target::Target& target) {
  auto built = std::make_unique<Built>();
  built->module = std::make_unique<llvm::Module>(kEntry, built->context);
  built->machine = llvm_ir::MakeTargetMachine(target);
  llvm_ir::Prepare(*built->module, *built->machine, target);
  llvm::IRBuilder<> b(built->context);
  const auto device = target.emulated ? MakeEmulatorDevice(target, b) : llvm_ir::MakeNvptxDevice(target, b);
  llvm::Type* global = llvm::PointerType::get(built->context, llvm_ir::kGlobalSpace);
  std::vector<llvm::Type*> params = {global, global};
  if (form.map) params.push_back(llvm::ArrayType::get(b.getInt8Ty(), kTensorMapBytes));
  llvm::Function* kernel = device->CreateKernel(*built->module, kEntry, params, form.threads, /*max_registers=*/0, /*min_blocks=*/0);
  b.SetInsertPoint(llvm::BasicBlock::Create(built->context, "entry", kernel));
  if (form.cluster > 1 && !target.emulated) kernel->addFnAttr("nvvm.cluster_dim", std::to_string(form.cluster) + ",1,1");
  FormKernel k(*device, form, *kernel, form.shared_bytes > 0 ? device->SharedMemory(form.shared_bytes, "shared") : nullptr);
  form.build(k);
  b.CreateRetVoid();
  if (auto optimized = llvm_ir::Optimize(*built->module, *built->machine); !optimized) return std::unexpected(optimized.error());
  built->inputs = k.inputs();
  built->outputs = k.outputs();
  return built;
}

struct alignas(64) AlignedMap {
  TensorMap map;
};

std::expected<void, std::string> Emulate(const Form& form, Built& built, const target::Target& target, Made& made) {
  v1::Artifact artifact;
  artifact.set_target(std::string(target.name));
  artifact.set_kind(v1::EMULATOR);
  artifact.set_code(llvm_ir::EmitBitcode(*built.module));
  auto program = Program::Load(artifact, /*check=*/true);
  if (!program) return std::unexpected(program.error());
  AlignedMap map;
  if (form.map) {
    TensorMapSpec spec = *form.map;
    spec.address = uint64_t(form.map_out ? made.output.data() : made.input.data());
    auto encoded = EncodeTensorMap(spec);
    if (!encoded) return std::unexpected(encoded.error());
    map.map = *encoded;
  }
  const Memory memory[] = {{made.input.data(), made.input.size() * 4, 4, "in"}, {made.output.data(), made.output.size() * 4, 4, "out"}};
  const LaunchArgs launch{kEntry,
                          {form.blocks, 1, 1},
                          form.threads,
                          form.shared_bytes,
                          {uint64_t(made.input.data()), uint64_t(made.output.data()), uint64_t(&map)},
                          {form.cluster, 1, 1}};
  const auto report = (*program)->Run(launch, memory, {});
  if (!report) return std::unexpected(report.error());
  if (form.faults) {
    if (report->finished) return std::unexpected("the emulator does not report what the hardware refuses");
    return {};
  }
  if (!report->findings.empty()) return std::unexpected(report->findings[0].message);
  return {};
}

}  // namespace

namespace {

// The last place of the largest of these f32 or f16.
double UnitOf(DType type, const std::vector<uint32_t>& words) {
  double largest = 0;
  for (const uint32_t word : words)
    largest = std::max(largest, std::abs(double(type == DType::kF16 ? Widen(type, word) : std::bit_cast<float>(word))));
  return std::ldexp(1.0, std::ilogb(largest) - (type == DType::kF16 ? 10 : 23));
}

}  // namespace

std::expected<Made, std::string> Make(const Form& form, uint64_t seed) {
  const target::Target &gpu = **target::Find("cuda:sm_90a"), &emulated = **target::Find("emu:sm_90a");
  auto real = Build(form, gpu);
  if (!real) return std::unexpected(real.error());
  auto text = llvm_ir::EmitAssembly(*(*real)->module, *(*real)->machine);
  if (!text) return std::unexpected(text.error());
  auto model = Build(form, emulated);
  if (!model) return std::unexpected(model.error());
  Made made{std::move(*text), Operands(form, (*model)->inputs, seed), {}, 0};
  made.output.assign(
      std::max<size_t>({size_t{(*model)->outputs} * form.threads * form.blocks, form.map_out ? form.tensor_words : 0, form.result_words, 4}), 0);
  if (auto ran = Emulate(form, **model, emulated, made); !ran) return std::unexpected(ran.error());
  if (form.rounds) made.tolerance = UnitOf(form.result, made.output);
  return made;
}

}  // namespace kiln::emulator::conformance
