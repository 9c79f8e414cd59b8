// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/device/device_nvptx_async.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace kiln::llvm_ir {

using ir::DType;
using llvm::Value;
namespace Intrinsic = llvm::Intrinsic;

void NvptxAsyncDevice::CopyAsync(Value* shared, Value* global, int bytes, Value* copied) {
  struct Row {
    int bytes;
    Intrinsic::ID whole, sized;
  };
  static constexpr Row kRows[] = {{4, Intrinsic::nvvm_cp_async_ca_shared_global_4, Intrinsic::nvvm_cp_async_ca_shared_global_4_s},
                                  {8, Intrinsic::nvvm_cp_async_ca_shared_global_8, Intrinsic::nvvm_cp_async_ca_shared_global_8_s},
                                  {16, Intrinsic::nvvm_cp_async_cg_shared_global_16, Intrinsic::nvvm_cp_async_cg_shared_global_16_s}};
  for (const Row& row : kRows) {
    if (row.bytes != bytes) continue;
    const auto* known = llvm::dyn_cast<llvm::ConstantInt>(copied);
    const bool whole = known != nullptr && known->getZExtValue() == uint64_t(bytes);
    whole ? Call(row.whole, {shared, global}) : Call(row.sized, {shared, global, copied});
    return;
  }
  std::abort();  // the contract: 4, 8 or 16
}

// LLVM does not see what this does, and so makes no 64-bit sum with the constant in it. Of such a sum ptxas 13.0 makes a multiply-add
// (UIMAD.WIDE.U32) whose upper word lacks the constant: a descriptor without stride and swizzle, and a wrong product.
Value* NvptxAsyncDevice::JoinDescriptor(Value* low, uint32_t high) {
  auto* type = llvm::FunctionType::get(builder().getInt64Ty(), {builder().getInt32Ty()}, false);
  Value* joined =
      builder().CreateCall(llvm::InlineAsm::get(type, "mov.b64 $0, {$1, " + std::to_string(high) + "};", "=l,r", /*hasSideEffects=*/false), {low});
  Joined parts{low, 0, high};
  if (auto* sum = llvm::dyn_cast<llvm::BinaryOperator>(low); sum != nullptr && sum->getOpcode() == llvm::Instruction::Add) {
    if (auto* offset = llvm::dyn_cast<llvm::ConstantInt>(sum->getOperand(1))) parts = {sum->getOperand(0), uint32_t(offset->getZExtValue()), high};
  }
  joined_[joined] = parts;
  return joined;
}

// The operands of a group's steps. Registers of all lanes together, where descriptors should be, have room for few. Where a group has more, or loops
// would keep more, each is made of its start right before its step: else ptxas keeps them in registers of each lane, or in memory.
class NvptxAsyncDevice::Steps {
 public:
  Steps(const std::map<Value*, Joined>& joined, std::span<Value* const> a, std::span<Value* const> b, size_t next, size_t standing)
      : joined_(joined), next_(next), made_(std::max((a.size() == b.size() ? a.size() : 0) + b.size(), standing) > kMostDescriptors) {}

  static constexpr std::string_view kRegisters = ".reg .b32 low; .reg .b64 left, right; ";
  bool made() const { return made_; }

  // What the instruction takes for the operand; what makes it goes to `before`.
  std::string Take(Value* value, std::string_view name, std::string& before) {
    const auto parts = joined_.find(value);
    if (!made_ || parts == joined_.end()) return Input(value);
    const auto [start, is_new] = starts_.try_emplace(parts->second.start);
    if (is_new) start->second = Input(parts->second.start);
    before += "add.u32 low, " + start->second + ", " + std::to_string(parts->second.offset) + "; mov.b64 " + std::string(name) + ", {low, " +
              std::to_string(parts->second.high) + "}; ";
    return std::string(name);
  }
  std::string Input(Value* value) {
    inputs.push_back(value);
    return "$" + std::to_string(next_++);
  }
  std::vector<Value*> inputs;

 private:
  // A choice: two operands of 32 steps.
  static constexpr size_t kMostDescriptors = 64;

  const std::map<Value*, Joined>& joined_;
  std::map<Value*, std::string> starts_;
  size_t next_;
  const bool made_;
};

// One text from fence to commit: nothing can be scheduled in between.
std::vector<Value*> NvptxAsyncDevice::MmaGroup(const target::MmaInstruction& mma, std::span<Value* const> a, std::span<Value* const> b,
                                               std::span<Value* const> c, bool clear, bool a_by_rows, bool b_by_rows,
                                               std::span<const SparseMetadata> metadata) {
  const size_t steps = b.size(), a_each = a.size() / steps, registers = c.size();
  std::string results;
  for (size_t r = 0; r < registers; ++r) results += (r == 0 ? "$" : ",$") + std::to_string(r);
  const bool integers = mma.c == DType::kI32, transposes = ir::Bits(mma.a) == 16;
  std::string text =
      "{ .reg .pred first, more; setp.ne.b32 first, " + std::string(clear ? "0" : "1") + ", 0; setp.ne.b32 more, 1, 0; wgmma.fence.sync.aligned; ";
  Steps operands(joined_, a, b, 2 * registers, size_t(standing_descriptors_));  // inputs tied to the outputs come first
  if (operands.made()) text += Steps::kRegisters;
  for (size_t step = 0; step < steps; ++step) {
    std::string before, left;
    for (size_t w = 0; w < a_each; ++w) left += (w == 0 ? "" : ",") + operands.Take(a[step * a_each + w], "left", before);
    const std::string right = operands.Take(b[step], "right", before);
    const bool sparse = mma.IsSparse();
    text += before + "wgmma.mma_async" + (sparse ? ".sp" : "") + ".sync.aligned.m64n" + std::to_string(mma.n) + "k" + std::to_string(mma.k) + "." +
            std::string(mma.intrinsic) + " {" + results + "}, " + (a_each == 1 ? left : "{" + left + "}") + ", " + right;
    if (sparse) text += ", " + operands.Input(metadata[step].word) + ", " + std::to_string(metadata[step].selector);
    text += step == 0 ? ", first" : ", more";
    if (!integers) text += ", 1, 1";
    if (transposes && a_each == 1) text += a_by_rows ? ", 1" : ", 0";
    if (transposes) text += b_by_rows ? ", 1" : ", 0";
    text += "; ";
  }
  text += "wgmma.commit_group.sync.aligned; }";
  if (!clear) return Tied(text, c, operands.inputs);
  // Registers that the instruction only writes need no input values.
  std::vector<Value*> nothing;
  for (Value* value : c) nothing.push_back(llvm::PoisonValue::get(value->getType()));
  return Tied(text, nothing, operands.inputs);
}

std::vector<Value*> NvptxAsyncDevice::MmaWait(std::span<Value* const> c, int pending) {
  return Tied("wgmma.wait_group.sync.aligned " + std::to_string(pending) + ";", c, {});
}

void NvptxAsyncDevice::FenceAsyncProxy() {
  auto* type = llvm::FunctionType::get(builder().getVoidTy(), false);
  builder().CreateCall(llvm::InlineAsm::get(type, "fence.proxy.async.shared::cta;", "~{memory}", /*hasSideEffects=*/true));
}

void NvptxAsyncDevice::AsyncCommit() { Call(Intrinsic::nvvm_cp_async_commit_group, {}); }
void NvptxAsyncDevice::AsyncWait(int pending) { Call(Intrinsic::nvvm_cp_async_wait_group, {I32(pending)}); }

// Inline assembly whose outputs are `values`, changed in place, with more inputs behind them.
std::vector<Value*> NvptxAsyncDevice::Tied(const std::string& text, std::span<Value* const> values, std::span<Value* const> inputs) {
  std::string constraints;
  std::vector<llvm::Type*> results, types;
  std::vector<Value*> arguments(values.begin(), values.end());
  const auto letter = [](llvm::Type* type) { return type->isFloatTy() ? "f" : type->isIntegerTy(64) ? "l" : "r"; };
  for (Value* value : values) {
    constraints += std::string(constraints.empty() ? "=" : ",=") + letter(value->getType());
    results.push_back(value->getType());
  }
  for (size_t i = 0; i < values.size(); ++i) constraints += "," + std::to_string(i);
  for (Value* input : inputs) {
    constraints += std::string(",") + letter(input->getType());
    arguments.push_back(input);
  }
  constraints += ",~{memory}";
  for (Value* argument : arguments) types.push_back(argument->getType());
  auto* result = results.size() == 1 ? results[0] : llvm::StructType::get(builder().getContext(), results);
  auto* assembly = llvm::InlineAsm::get(llvm::FunctionType::get(result, types, false), text, constraints, /*hasSideEffects=*/true);
  auto* call = builder().CreateCall(assembly, arguments);
  call->addFnAttr(llvm::Attribute::Convergent);
  std::vector<Value*> out;
  for (size_t i = 0; i < values.size(); ++i) {
    out.push_back(values.size() == 1 ? call : builder().CreateExtractValue(call, unsigned(i)));
  }
  return out;
}

llvm::CallInst* NvptxAsyncDevice::Asm(llvm::Type* type, const std::string& text, std::span<Value* const> inputs, bool convergent) {
  std::string constraints = type->isVoidTy() ? "" : "=r,";
  std::vector<llvm::Type*> types;
  for (Value* input : inputs) {
    constraints += input->getType()->isPointerTy() || input->getType()->isIntegerTy(64) ? "l," : "r,";
    types.push_back(input->getType());
  }
  auto* assembly = llvm::InlineAsm::get(llvm::FunctionType::get(type, types, false), text, constraints + "~{memory}",
                                        /*hasSideEffects=*/true);
  llvm::CallInst* call = builder().CreateCall(assembly, llvm::ArrayRef<Value*>(inputs.data(), inputs.size()));
  if (convergent) call->addFnAttr(llvm::Attribute::Convergent);
  return call;
}

void NvptxAsyncDevice::Do(const std::string& text, std::initializer_list<Value*> inputs) {
  Asm(builder().getVoidTy(), text, std::span(inputs.begin(), inputs.size()), /*convergent=*/true);
}

// --- mbarriers ---

void NvptxAsyncDevice::PhaseInit(Value* mbarrier, uint32_t arrivals) {
  Do("mbarrier.init.shared::cta.b64 [$0], $1;", {Address(mbarrier), I32(int(arrivals))});
}

void NvptxAsyncDevice::PhaseInitFence() { Do("fence.mbarrier_init.release.cluster; fence.proxy.async;", {}); }

// A predicate instead of a branch: warps stay together.
void NvptxAsyncDevice::PhaseArrive(Value* mbarrier, Value* when) {
  if (when == nullptr) return Do("mbarrier.arrive.shared::cta.b64 _, [$0];", {Address(mbarrier)});
  Do("{ .reg .pred p; setp.ne.b32 p, $1, 0; @p mbarrier.arrive.shared::cta.b64 _, [$0]; }",
     {Address(mbarrier), builder().CreateZExt(when, builder().getInt32Ty())});
}

// The arrival is not the thread's own, and releases nothing that it did. Without .noinc it would be one more than the barrier expects.
void NvptxAsyncDevice::PhaseArriveAfterCopies(Value* mbarrier, bool after_accesses) {
  Do(std::string(after_accesses ? "fence.acq_rel.cta; " : "") + "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", {Address(mbarrier)});
}

// .release.cluster is left out where it can be, because ptxas turns it into a fence of the whole GPU: without it, only the block's own threads
// see for certain what came before.
void NvptxAsyncDevice::PhaseArriveAt(Value* mbarrier, Value* rank, Value* when, bool releases) {
  Value* always = builder().getTrue();
  Do(std::string("{ .reg .pred p; .reg .b32 at; setp.ne.b32 p, $2, 0; mapa.shared::cluster.u32 at, $0, $1; @p mbarrier.arrive") +
         (releases ? ".release.cluster" : "") + ".shared::cluster.b64 _, [at]; }",
     {Address(mbarrier), rank, builder().CreateZExt(when == nullptr ? always : when, builder().getInt32Ty())});
}

void NvptxAsyncDevice::PhaseExpect(Value* mbarrier, Value* bytes) {
  Do("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", {Address(mbarrier), bytes});
}

void NvptxAsyncDevice::PhaseExpectMore(Value* mbarrier, Value* bytes) {
  Do("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;", {Address(mbarrier), bytes});
}

void NvptxAsyncDevice::PhaseWait(Value* mbarrier, Value* parity, bool of_cluster) {
  llvm::LLVMContext& context = builder().getContext();
  llvm::Function* function = builder().GetInsertBlock()->getParent();
  auto* again = llvm::BasicBlock::Create(context, "wait", function);
  auto* done = llvm::BasicBlock::Create(context, "come", function);
  Value* address = Address(mbarrier);
  builder().CreateBr(again);
  builder().SetInsertPoint(again);
  Value* inputs[] = {address, parity};
  const std::string sees = of_cluster ? ".acquire.cluster" : "";
  Value* ended = Asm(builder().getInt32Ty(),
                     "{ .reg .pred p; mbarrier.try_wait.parity" + sees + ".shared::cta.b64 p, [$1], $2; selp.u32 $0, 1, 0, p; }", inputs, true);
  builder().CreateCondBr(builder().CreateICmpNE(ended, I32(0)), done, again);
  builder().SetInsertPoint(done);
}

// --- tensor copies ---

std::string NvptxAsyncDevice::TensorOperand(Value* map, std::span<Value* const> at, std::vector<Value*>& inputs) {
  std::string text = "[$" + std::to_string(inputs.size()) + ", {";
  inputs.push_back(builder().CreatePtrToInt(map, builder().getInt64Ty()));
  for (size_t d = 0; d < at.size(); ++d) {
    text += (d == 0 ? "$" : ", $") + std::to_string(inputs.size());
    inputs.push_back(at[d]);
  }
  return text + "}]";
}

void NvptxAsyncDevice::TensorPrefetch(Value* map) { Do("prefetch.tensormap [$0];", {builder().CreatePtrToInt(map, builder().getInt64Ty())}); }

void NvptxAsyncDevice::TensorLoad(Value* shared, Value* map, std::span<Value* const> at, Value* mbarrier, Value* multicast) {
  std::vector<Value*> inputs = {Address(shared), Address(mbarrier)};
  const std::string source = TensorOperand(map, at, inputs);
  std::string text = "cp.async.bulk.tensor." + std::to_string(at.size()) + "d.shared::cluster.global.mbarrier::complete_tx::bytes";
  text += (multicast == nullptr ? "" : ".multicast::cluster") + std::string(" [$0], ") + source + ", [$1]";
  if (multicast != nullptr) {
    text = "{ .reg .b16 mask; cvt.u16.u32 mask, $" + std::to_string(inputs.size()) + "; " + text + ", mask; }";
    inputs.push_back(builder().CreateZExt(multicast, builder().getInt32Ty()));
  } else {
    text += ";";
  }
  Asm(builder().getVoidTy(), text, inputs, /*convergent=*/true);
}

void NvptxAsyncDevice::TensorStore(Value* map, std::span<Value* const> at, Value* shared) {
  std::vector<Value*> inputs = {Address(shared)};
  const std::string target = TensorOperand(map, at, inputs);
  Asm(builder().getVoidTy(), "cp.async.bulk.tensor." + std::to_string(at.size()) + "d.global.shared::cta.bulk_group " + target + ", [$0];", inputs,
      true);
}

void NvptxAsyncDevice::TensorReduce(AtomicOp op, Value* map, std::span<Value* const> at, Value* shared) {
  std::vector<Value*> inputs = {Address(shared)};
  const std::string target = TensorOperand(map, at, inputs);
  const char* name = op == AtomicOp::kAdd ? "add" : op == AtomicOp::kMax ? "max" : "min";
  Asm(builder().getVoidTy(),
      "cp.reduce.async.bulk.tensor." + std::to_string(at.size()) + "d.global.shared::cta." + name + ".bulk_group " + target + ", [$0];", inputs,
      true);
}

void NvptxAsyncDevice::TensorStoreCommit() { Do("cp.async.bulk.commit_group;", {}); }
void NvptxAsyncDevice::TensorStoreWait(int pending, bool read_only) {
  Do(std::string("cp.async.bulk.wait_group") + (read_only ? ".read " : " ") + std::to_string(pending) + ";", {});
}

// --- roles ---

void NvptxAsyncDevice::NamedBarrier(int id, uint32_t threads) { Call(Intrinsic::nvvm_barrier_cta_sync_aligned_count, {I32(id), I32(int(threads))}); }
void NvptxAsyncDevice::NamedBarrierArrive(int id, uint32_t threads) {
  Call(Intrinsic::nvvm_barrier_cta_arrive_aligned_count, {I32(id), I32(int(threads))});
}
void NvptxAsyncDevice::SetRegisters(int count, bool more) {
  Do(std::string("setmaxnreg.") + (more ? "inc" : "dec") + ".sync.aligned.u32 " + std::to_string(count) + ";", {});
}
Value* NvptxAsyncDevice::ElectOne() {
  Value* one = Asm(builder().getInt32Ty(), "{ .reg .pred p; elect.sync _|p, -1; selp.u32 $0, 1, 0, p; }", {}, true);
  return builder().CreateICmpNE(one, I32(0));
}
Value* NvptxAsyncDevice::ClusterRank() { return Call(Intrinsic::nvvm_read_ptx_sreg_cluster_ctarank, {}); }
void NvptxAsyncDevice::ClusterBarrier() {
  Call(Intrinsic::nvvm_barrier_cluster_arrive, {});
  Call(Intrinsic::nvvm_barrier_cluster_wait, {});
}
Value* NvptxAsyncDevice::ClusterAddress(Value* shared, Value* rank) { return Call(Intrinsic::nvvm_mapa_shared_cluster, {shared, rank}); }

void NvptxAsyncDevice::StoreAsyncAt(Value* shared, Value* rank, Value* v, Value* mbarrier) {
  const unsigned bits = unsigned(v->getType()->getPrimitiveSizeInBits().getFixedValue());
  llvm::IRBuilderBase& b = builder();
  Value *to = ClusterAddress(shared, rank), *counts = ClusterAddress(mbarrier, rank), *word = b.CreateBitCast(v, b.getIntNTy(bits));
  auto* type = llvm::FunctionType::get(b.getVoidTy(), {to->getType(), word->getType(), counts->getType()}, false);
  const std::string text = "st.async.shared::cluster.mbarrier::complete_tx::bytes.b" + std::to_string(bits) + " [$0], $1, [$2];";
  b.CreateCall(llvm::InlineAsm::get(type, text, bits == 64 ? "l,l,l,~{memory}" : "l,r,l,~{memory}", /*hasSideEffects=*/true), {to, word, counts});
}

// The last block of each round flips the counter's top bit: all other blocks add 1, and block 0 adds the rest of 2^31.
void NvptxAsyncDevice::GridBarrier(Value* counter) {
  llvm::IRBuilderBase& b = builder();
  llvm::Function* function = b.GetInsertBlock()->getParent();
  const auto block = [&](const char* name) { return llvm::BasicBlock::Create(b.getContext(), name, function); };
  llvm::BasicBlock *arrive = block("grid.arrive"), *wait = block("grid.wait"), *end = block("grid.end");
  Barrier();
  b.CreateCondBr(b.CreateICmpEQ(ThreadIndex(), I32(0)), arrive, end);
  b.SetInsertPoint(arrive);
  Value* blocks = b.CreateMul(b.CreateMul(GridSize(0), GridSize(1)), GridSize(2));
  Value* first = b.CreateICmpEQ(b.CreateOr(b.CreateOr(BlockIndex(0), BlockIndex(1)), BlockIndex(2)), I32(0));
  Value* rest = b.CreateSub(b.getInt32(0x80000001), blocks);
  const std::array<Value*, 2> counted = {counter, b.CreateSelect(first, rest, I32(1))};
  Value* before = Asm(b.getInt32Ty(), "atom.acq_rel.gpu.global.add.u32 $0, [$1], $2;", counted, /*convergent=*/true);
  b.CreateBr(wait);
  b.SetInsertPoint(wait);
  Value* now = Asm(b.getInt32Ty(), "ld.acquire.gpu.global.u32 $0, [$1];", std::span(&counter, 1), /*convergent=*/true);
  b.CreateCondBr(b.CreateICmpSLT(b.CreateXor(before, now), I32(0)), end, wait);
  b.SetInsertPoint(end);
  Barrier();
}

void NvptxAsyncDevice::RaiseFlag(Value* flag) { Do("st.release.gpu.global.u32 [$0], 1;", {flag}); }

void NvptxAsyncDevice::TakeFlag(Value* flag) {
  llvm::Function* function = builder().GetInsertBlock()->getParent();
  auto* again = llvm::BasicBlock::Create(builder().getContext(), "flag", function);
  auto* done = llvm::BasicBlock::Create(builder().getContext(), "flag.up", function);
  builder().CreateBr(again);
  builder().SetInsertPoint(again);
  Value* up = Asm(builder().getInt32Ty(), "ld.acquire.gpu.global.u32 $0, [$1];", std::span(&flag, 1), /*convergent=*/true);
  builder().CreateCondBr(builder().CreateICmpNE(up, I32(0)), done, again);
  builder().SetInsertPoint(done);
  Do("st.relaxed.gpu.global.u32 [$0], 0;", {flag});
}

}  // namespace kiln::llvm_ir
