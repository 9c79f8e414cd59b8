// SPDX-License-Identifier: Apache-2.0
//
// One instruction form as a tiny kernel, built twice through compiler/llvm/device/device.h: as PTX for a GPU and for the emulator, whose
// results on random operands the GPU's must match.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "compiler/emulator/tensor_map.h"
#include "compiler/llvm/device/device.h"

namespace kiln::emulator::conformance {

// What the words of an input or a result hold.
enum class Content : uint8_t {
  kBits,      // anything
  kIntegers,  // of the type, small enough that sums of products are exact
  kReals,     // of the type, in ±2
};
struct Words {
  ir::DType type = ir::DType::kU32;
  Content content = Content::kBits;
};

struct Form;

// What a form's kernel is built with. kernel(in, out[, map]); word i of a thread's input lies at in[first + i · threads + thread], where
// threads of all blocks count, and its results alike; of 64-bit results each takes two such rows.
class FormKernel {
 public:
  FormKernel(llvm_ir::Device& device, const Form& form, llvm::Function& kernel, llvm::Value* shared);

  llvm::Value* In(Words words = {});                    // i32
  llvm::Value* Value(ir::DType type, Content content);  // of LLVM's type for it; 8 to 64 bits
  void Out(llvm::Value* v);                             // 1 to 64 bits
  llvm::Value* I32(int v) { return b.getInt32(uint32_t(v)); }
  llvm::Value* SharedByte(llvm::Value* offset) { return b.CreateGEP(b.getInt8Ty(), shared, offset); }
  llvm::Value* SharedByte(uint32_t offset) { return SharedByte(b.getInt32(offset)); }
  // Words of input to all of shared memory's first `bytes`, and back as results; with barriers around.
  void FillShared(uint32_t bytes, Words words);
  void OutShared(uint32_t bytes);
  void If(llvm::Value* condition, const std::function<void()>& then);
  void IfFirst(const std::function<void()>& then) { If(b.CreateICmpEQ(thread, I32(0)), then); }  // thread 0 alone

  const std::vector<Words>& inputs() const { return inputs_; }
  uint32_t outputs() const { return outputs_; }

  llvm_ir::Device& device;
  llvm::IRBuilderBase& b;
  llvm::Value *global_in, *global_out, *map, *shared, *thread, *block;

 private:
  llvm::Value* Place(llvm::Value* base, uint32_t first, uint32_t index);
  const uint32_t threads_, all_threads_, first_;
  llvm::Value* place_;  // among all threads
  std::vector<Words> inputs_;
  uint32_t outputs_ = 0;
};

struct Form {
  std::string name;
  std::function<void(FormKernel&)> build;
  ir::DType result = ir::DType::kU32;  // how results are compared: bit for bit, but all NaN alike
  bool rounds = false;                 // may differ by one unit of rounding of the largest result
  uint32_t threads = 32, blocks = 1, cluster = 1;
  bool faults = false;  // the hardware refuses it, and the emulator reports it
  uint32_t shared_bytes = 0;
  std::optional<TensorMapSpec> map;  // of the input's first words, or of the results' first
  bool map_out = false;
  uint32_t result_words = 0;  // at least
  uint32_t tensor_words = 0;
  Words tensor{};
};

std::vector<Form> AllForms();
void AddMatrixForms(std::vector<Form>& forms);
void AddTensorForms(std::vector<Form>& forms);
void AddConversionForms(std::vector<Form>& forms);
void AddBlockForms(std::vector<Form>& forms);

struct Made {
  std::string ptx;
  std::vector<uint32_t> input, output;  // operands and the emulator's results; results before the kernel are zeros
  double tolerance = 0;                 // largest difference that is allowed
};
// Operands are drawn from the seed. The error says which step failed.
std::expected<Made, std::string> Make(const Form& form, uint64_t seed);

}  // namespace kiln::emulator::conformance
