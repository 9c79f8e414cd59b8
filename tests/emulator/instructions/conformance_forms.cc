// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/instructions/conformance_kernel.h"

namespace kiln::emulator::conformance {
namespace {

using ir::DType;
using llvm_ir::AtomicOp;

void AddExchanges(std::vector<Form>& forms) {
  for (const int mask : {1, 2, 4, 8, 16, 31}) {
    for (const DType type : {DType::kU32, DType::kU64, DType::kF16}) {
      forms.push_back({.name = "shfl.bfly " + std::to_string(mask) + " " + std::string(ir::Name(type)),
                       .build = [=](FormKernel& k) { k.Out(k.device.ShuffleXor(k.Value(type, Content::kBits), mask)); }});
    }
  }
  constexpr const char* kVotes[] = {"all", "any", "ballot"};
  for (const llvm_ir::VoteOp op : {llvm_ir::VoteOp::kAll, llvm_ir::VoteOp::kAny, llvm_ir::VoteOp::kBallot}) {
    forms.push_back({.name = std::string("vote.") + kVotes[size_t(op)], .build = [=](FormKernel& k) {
                       for (const int below : {2, 5, 31, 32}) {  // of 32
                         llvm::Value* v = k.b.CreateICmpULT(k.b.CreateAnd(k.In(), k.I32(31)), k.I32(below));
                         k.Out(k.device.Vote(op, v));
                       }
                     }});
  }
  constexpr const char* kReductions[] = {"add", "min", "max", "and", "or", "xor"};
  for (size_t op = 0; op < 6; ++op) {
    for (const DType type : {DType::kI32, DType::kU32}) {
      forms.push_back({.name = std::string("redux.") + kReductions[op] + "." + std::string(ir::Name(type)),
                       .build = [=](FormKernel& k) { k.Out(k.device.WarpReduce(llvm_ir::WarpReduceOp(op), type, k.In())); }});
    }
  }
  for (const bool a : {false, true}) {
    for (const bool b : {false, true}) {
      forms.push_back({.name = std::string("dp4a.") + (a ? "s32" : "u32") + (b ? ".s32" : ".u32"), .build = [=](FormKernel& k) {
                         llvm::Value *x = k.In(), *y = k.In(), *z = k.In();
                         k.Out(k.device.Dp4a(x, y, z, a, b));
                       }});
    }
  }
}

void AddSharedMemory(std::vector<Form>& forms) {
  for (const int count : {1, 2, 4}) {
    for (const bool transpose : {false, true}) {
      const std::string name = "x" + std::to_string(count) + (transpose ? ".trans" : "");
      forms.push_back({.name = "ldmatrix." + name,
                       .build =
                           [=](FormKernel& k) {
                             k.FillShared(512, {});
                             for (llvm::Value* word : k.device.LoadMatrix(k.SharedByte(k.b.CreateMul(k.thread, k.I32(16))), count, transpose))
                               k.Out(word);
                           },
                       .shared_bytes = 512});
      forms.push_back({.name = "stmatrix." + name,
                       .build =
                           [=](FormKernel& k) {
                             k.FillShared(512, {});
                             std::vector<llvm::Value*> words;
                             for (int i = 0; i < count; ++i) words.push_back(k.In());
                             k.device.StoreMatrix(k.SharedByte(k.b.CreateMul(k.thread, k.I32(16))), words, transpose);
                             k.OutShared(512);
                           },
                       .shared_bytes = 512});
    }
  }
  for (const int bytes : {4, 8, 16}) {
    for (const bool fills : {false, true}) {
      forms.push_back({.name = "cp.async " + std::to_string(bytes) + (fills ? " zfill" : ""),
                       .build =
                           [=](FormKernel& k) {
                             k.FillShared(512, {});
                             llvm::Value* offset = k.b.CreateMul(k.thread, k.I32(bytes));
                             llvm::Value* copied = fills ? k.b.CreateURem(k.In(), k.I32(bytes + 1)) : k.I32(bytes);
                             k.device.CopyAsync(k.SharedByte(offset), k.b.CreateGEP(k.b.getInt8Ty(), k.global_in, offset), bytes, copied);
                             k.device.AsyncCommit();
                             k.device.AsyncWait(0);
                             k.OutShared(512);
                           },
                       .shared_bytes = 512,
                       .tensor_words = 128});
    }
  }
}

void AddAtomics(std::vector<Form>& forms) {
  constexpr const char* kNames[] = {"add", "max", "min"};
  for (const AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin}) {
    for (const DType type : {DType::kI32, DType::kU32, DType::kI64, DType::kU64, DType::kF32}) {
      if (type == DType::kF32 && op != AtomicOp::kAdd) continue;
      if (op == AtomicOp::kMin && ir::IsUnsigned(type)) continue;  // memory begins as zeros: nothing is less
      forms.push_back({.name = std::string("atomic.global.") + kNames[size_t(op)] + "." + std::string(ir::Name(type)),
                       .build =
                           [=](FormKernel& k) {
                             llvm::Value* v = k.Value(type, Content::kIntegers);
                             llvm::Type* element = llvm_ir::ValueType(k.b.getContext(), type);
                             k.device.Atomic(
                                 {op, type},
                                 k.b.CreateGEP(element, k.global_out, k.b.CreateZExt(k.b.CreateAnd(k.thread, k.I32(7)), k.b.getInt64Ty())), v);
                           },
                       .result = type,
                       .result_words = 16});
    }
  }
  for (const AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin}) {
    for (const DType type : {DType::kI32, DType::kU32, DType::kF32}) {
      if (type == DType::kF32 && op != AtomicOp::kAdd) continue;
      // Integers: the order of the lanes does not matter.
      forms.push_back({.name = std::string("atomic.shared.") + kNames[size_t(op)] + "." + std::string(ir::Name(type)),
                       .build =
                           [=](FormKernel& k) {
                             k.FillShared(128, {type, Content::kIntegers});
                             llvm::Value* slot = k.SharedByte(k.b.CreateMul(k.b.CreateAnd(k.thread, k.I32(7)), k.I32(4)));
                             k.device.Atomic({op, type}, slot, k.Value(type, Content::kIntegers));
                             k.OutShared(128);
                           },
                       .result = type,
                       .shared_bytes = 128});
    }
  }
}

}  // namespace

std::vector<Form> AllForms() {
  std::vector<Form> forms;
  AddMatrixForms(forms);
  AddExchanges(forms);
  AddSharedMemory(forms);
  AddAtomics(forms);
  AddTensorForms(forms);
  AddConversionForms(forms);
  AddBlockForms(forms);
  return forms;
}

void AddConversionForms(std::vector<Form>& forms) {
  using enum DType;
  constexpr DType kTypes[] = {kF32, kF64, kF16, kBF16, kTF32, kF8E4M3, kF8E5M2, kI8, kU8, kI32, kU32, kI64};
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      if (from == to) continue;
      forms.push_back({.name = "cvt." + std::string(ir::Name(to)) + "." + std::string(ir::Name(from)),
                       .build =
                           [=](FormKernel& k) {
                             for (const Content content : {Content::kBits, Content::kReals, Content::kIntegers})
                               k.Out(k.device.Convert(k.Value(from, content), from, to));
                           },
                       .result = to});
    }
  }
  for (const DType to : {kF16, kBF16, kF8E4M3, kF8E5M2}) {
    forms.push_back({.name = "cvt.packed." + std::string(ir::Name(to)),
                     .build =
                         [=](FormKernel& k) {
                           std::vector<llvm::Value*> values;
                           for (int i = 0; i < 32 / ir::Bits(to); ++i) values.push_back(k.Value(kF32, Content::kReals));
                           k.Out(k.device.ConvertPacked(values, kF32, to));
                         },
                     .result = to});
  }
}

}  // namespace kiln::emulator::conformance
