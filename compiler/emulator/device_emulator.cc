// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/device_emulator.h"

#include <algorithm>
#include <cstdlib>

#include "compiler/emulator/abi.h"
#include "compiler/llvm/device/device_base.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/DIBuilder.h>
#pragma GCC diagnostic pop

namespace kiln::emulator {
namespace {

using ir::DType;
using llvm::Value;
using llvm_ir::AtomicOp;
using llvm_ir::SparseMetadata;
using target::Feature;

enum class Effect { kPure, kWarp, kMemory };

struct Signature {
  const char* name;
  const char* letters;  // the result's, then the parameters'
  Effect effect;
};
#define KILN_EMU_CALL(name, result, effect, ...) {"kiln_emu_" #name, #result #__VA_ARGS__, Effect::effect},
constexpr Signature kCalls[] = {KILN_EMU_CALLS(KILN_EMU_CALL)};
#undef KILN_EMU_CALL

#define KILN_EMU_CALL(name, ...) k_##name,
enum CallId { KILN_EMU_CALLS(KILN_EMU_CALL) };
#undef KILN_EMU_CALL

class EmulatorDevice final : public llvm_ir::DeviceBase {
 public:
  EmulatorDevice(const target::Target& target, llvm::IRBuilderBase& builder) : DeviceBase(target, builder) {}

  llvm::Function* CreateKernel(llvm::Module& module, std::string_view name, std::span<llvm::Type* const> params, uint32_t threads,
                               uint32_t max_registers, uint32_t min_blocks) override {
    std::vector<llvm::Type*> types(params.begin(), params.end());
    for (llvm::Type*& type : types)
      if (type->isArrayTy()) type = builder().getPtrTy();  // a tensor map
    auto* type = llvm::FunctionType::get(builder().getVoidTy(), types, false);
    kernel_ = llvm::Function::Create(type, llvm::Function::ExternalLinkage, llvm::StringRef(name.data(), name.size()), module);
    kernel_->addFnAttr(llvm::Attribute::NoUnwind);
    // LLVM joins no stores of two conditions: it would give that of both to whichever statement comes next.
    kernel_->addFnAttr(llvm::Attribute::OptForFuzzing);
    kernel_->setSubprogram(MakeSubprogram(module));
    threads_ = threads;
    // As many as ptxas may give it: a multiple of 8 of the multiprocessor's 65536.
    registers_ = max_registers != 0 ? max_registers : std::min(256u, 65536 / std::max(threads * std::max(min_blocks, 1u), 1u) / 8 * 8);
    SetLocation(0);
    return kernel_;
  }

  Value* SharedMemory(uint64_t, std::string_view) override { return CallRuntime(k_shared_memory, {}); }

  // A statement's number travels as the line of a debug location: the one mark that LLVM's passes keep on memory accesses.
  void SetLocation(uint32_t location) override {
    location_ = location;
    builder().SetCurrentDebugLocation(llvm::DILocation::get(builder().getContext(), location, 0, kernel_->getSubprogram()));
  }

  // As on the hardware's devices: what is known of it decides which code is written.
  Value* ThreadIndex() override {
    llvm::CallInst* index = CallRuntime(k_thread_index, {});
    index->addRangeRetAttr(llvm::ConstantRange(llvm::APInt(32, 0), llvm::APInt(32, threads_)));
    return index;
  }
  Value* BlockIndex(int axis) override { return CallRuntime(k_block_index, {I32(axis)}); }
  Value* GridSize(int axis) override { return CallRuntime(k_grid_size, {I32(axis)}); }

  Value* Uniform(Value* v) override {
    return ByWords(v, [&](Value* word) { return CallRuntime(k_uniform, {word, Site(), Location()}); });
  }

  Value* Vote(llvm_ir::VoteOp op, Value* v) override {
    Value* answer = CallRuntime(k_vote, {I32(int(op)), builder().CreateZExt(v, builder().getInt32Ty()), Site(), Location()});
    return op == llvm_ir::VoteOp::kBallot ? answer : builder().CreateICmpNE(answer, I32(0));
  }
  Value* WarpReduce(llvm_ir::WarpReduceOp op, DType dtype, Value* v) override {
    return CallRuntime(k_warp_reduce, {I32(int(op)), I32(ir::IsSigned(dtype)), v, Site(), Location()});
  }

  void Barrier(bool shared_only) override { CallRuntime(k_barrier, {I32(shared_only), Site(), Location()}); }
  void LanesBarrier(uint32_t first, uint32_t count) override { CallRuntime(k_lanes_barrier, {I32(int(first)), I32(int(count)), Site(), Location()}); }

  void CopyAsync(Value* shared, Value* global, int bytes, Value* copied) override {
    CallRuntime(k_copy_async, {shared, global, I32(bytes), copied, Location()});
  }
  void AsyncCommit() override { CallRuntime(k_async_commit, {Location()}); }
  void AsyncWait(int pending) override { CallRuntime(k_async_wait, {I32(pending), Location()}); }

  std::vector<Value*> LoadMatrix(Value* row, int count, bool transpose) override {
    CallRuntime(k_load_matrix, {row, I32(count), I32(transpose), Words(), Site(), Location()});
    std::vector<Value*> words;
    for (int i = 0; i < count; ++i) words.push_back(builder().CreateLoad(builder().getInt32Ty(), Word(uint32_t(i))));
    return words;
  }
  void StoreMatrix(Value* row, std::span<Value* const> words, bool transpose) override {
    for (size_t i = 0; i < words.size(); ++i) builder().CreateStore(words[i], Word(uint32_t(i)));
    CallRuntime(k_store_matrix, {row, I32(int(words.size())), I32(transpose), Words(), Site(), Location()});
  }

  std::vector<Value*> Mma(const target::MmaInstruction& instruction, std::span<Value* const> a, std::span<Value* const> b, std::span<Value* const> c,
                          const SparseMetadata& metadata) override {
    const MatrixForm form{UnitOf(instruction),    uint8_t(instruction.m), uint8_t(instruction.n), uint8_t(instruction.k),
                          uint8_t(instruction.a), uint8_t(instruction.b), uint8_t(instruction.c), SparseForm(instruction, metadata)};
    if (instruction.IsSparse()) builder().CreateStore(metadata.word, Word(kWordOfMetadata));
    for (size_t i = 0; i < a.size(); ++i) builder().CreateStore(a[i], Word(kWordsOfA + uint32_t(i)));
    for (size_t i = 0; i < b.size(); ++i) builder().CreateStore(b[i], Word(kWordsOfB + uint32_t(i)));
    for (size_t i = 0; i < c.size(); ++i) builder().CreateStore(c[i], Word(kWordsOfC + uint32_t(i)));
    CallRuntime(k_matrix, {builder().getInt64(form.Pack()), Words(), Site(), Location()});
    std::vector<Value*> result;
    for (size_t i = 0; i < c.size(); ++i) result.push_back(builder().CreateLoad(c[i]->getType(), Word(kWordsOfC + uint32_t(i))));
    return result;
  }

  // Until MmaWait the results are marks that stand for them (runtime/matrix/wgmma.h).
  std::vector<Value*> MmaGroup(const target::MmaInstruction& mma, std::span<Value* const> a, std::span<Value* const> b, std::span<Value* const> c,
                               bool clear, bool a_by_rows, bool b_by_rows, std::span<const SparseMetadata> metadata) override {
    MatrixForm form{MatrixUnit::kWgmma, uint8_t(mma.m), uint8_t(mma.n / 8), uint8_t(mma.k), uint8_t(mma.a), uint8_t(mma.b), uint8_t(mma.c)};
    Value* marks = StoreAll(c);
    CallRuntime(k_wgmma_begin, {I32(clear), I32(int(c.size())), marks, Site(), Location()});
    const size_t each = a.size() / b.size();
    for (size_t step = 0; step < b.size(); ++step) {
      const bool registers = each > 1;
      for (size_t w = 0; registers && w < each; ++w) builder().CreateStore(a[step * each + w], Word(uint32_t(w)));
      if (mma.IsSparse()) form.sparse = SparseForm(mma, metadata[step]), builder().CreateStore(metadata[step].word, Word(kWordOfMetadata));
      const uint32_t flags = (a_by_rows ? 1u : 0u) | (b_by_rows ? 2u : 0u) | (registers ? 4u : 0u);
      CallRuntime(k_wgmma_step, {builder().getInt64(form.Pack()), registers ? builder().getInt64(0) : a[step], b[step], Words(),
                                 builder().getInt32(flags), Site(), Location()});
    }
    return LoadAll(marks, c);
  }
  std::vector<Value*> MmaWait(std::span<Value* const> c, int pending) override {
    Value* marks = StoreAll(c);
    CallRuntime(k_wgmma_wait, {I32(pending), I32(int(c.size())), marks, Site(), Location()});
    return LoadAll(marks, c);
  }
  void FenceAsyncProxy() override { CallRuntime(k_fence_async_proxy, {Location()}); }
  void UseRegisters(uint32_t fragment, int64_t first, int64_t count) override {
    CallRuntime(k_wgmma_uses, {builder().getInt32(fragment), I32(int(first)), I32(int(count)), Location()});
  }
  void AssignRegister(uint32_t fragment, int64_t reg, Value* v) override {
    const bool word = v->getType()->getPrimitiveSizeInBits() == 32;  // those of accumulators are
    CallRuntime(k_wgmma_assign,
                {builder().getInt32(fragment), I32(int(reg)), word ? builder().CreateBitCast(v, builder().getInt32Ty()) : I32(0), Location()});
  }

  void PhaseInit(Value* mbarrier, uint32_t arrivals) override { CallRuntime(k_phase_init, {mbarrier, I32(int(arrivals)), Location()}); }
  void PhaseInitFence() override { CallRuntime(k_phase_init_fence, {Location()}); }
  void PhaseArrive(Value* mbarrier, Value* when) override {
    Where(when, [&] { CallRuntime(k_phase_arrive, {mbarrier, Location()}); });
  }
  // As if the copies were there at once.
  void PhaseArriveAfterCopies(Value* mbarrier, bool) override {
    AsyncCommit();
    AsyncWait(0);
    PhaseArrive(mbarrier, nullptr);
  }
  void PhaseArriveAt(Value* mbarrier, Value* rank, Value* when, bool) override {
    Where(when, [&] { CallRuntime(k_phase_arrive_at, {mbarrier, rank, Location()}); });
  }
  void PhaseExpect(Value* mbarrier, Value* bytes) override { CallRuntime(k_phase_expect, {mbarrier, bytes, Location()}); }
  void PhaseExpectMore(Value* mbarrier, Value* bytes) override { CallRuntime(k_phase_expect_more, {mbarrier, bytes, Location()}); }
  void PhaseWait(Value* mbarrier, Value* parity, bool) override { CallRuntime(k_phase_wait, {mbarrier, parity, Location()}); }

  void TensorLoad(Value* shared, Value* map, std::span<Value* const> at, Value* mbarrier, Value* multicast) override {
    Value* mask = multicast == nullptr ? I32(0) : builder().CreateZExt(multicast, builder().getInt32Ty());
    CallRuntime(k_tensor_load, {shared, map, StoreAll(at), I32(int(at.size())), mbarrier, mask, Location()});
  }
  void TensorStore(Value* map, std::span<Value* const> at, Value* shared) override { StoreTensor(TensorOp::kStore, map, at, shared); }
  void TensorReduce(AtomicOp op, Value* map, std::span<Value* const> at, Value* shared) override { StoreTensor(TensorOp(op), map, at, shared); }
  void TensorStoreCommit() override { CallRuntime(k_tensor_commit, {Location()}); }
  void TensorStoreWait(int pending, bool read_only) override { CallRuntime(k_tensor_wait, {I32(pending), I32(read_only), Location()}); }

  void NamedBarrier(int id, uint32_t threads) override { CallRuntime(k_named_barrier, {I32(id), I32(int(threads)), Site(), Location()}); }
  void NamedBarrierArrive(int id, uint32_t threads) override { CallRuntime(k_named_arrive, {I32(id), I32(int(threads)), Site(), Location()}); }
  void SetRegisters(int count, bool more) override {
    CallRuntime(k_set_registers, {I32(count), I32(more), I32(int(registers_)), Site(), Location()});
  }
  Value* ElectOne() override { return builder().CreateICmpNE(CallRuntime(k_elect, {Site(), Location()}), I32(0)); }
  Value* ClusterRank() override { return CallRuntime(k_cluster_rank, {}); }
  void ClusterBarrier() override { CallRuntime(k_cluster_barrier, {Location()}); }
  Value* ClusterAddress(Value* shared, Value* rank) override { return CallRuntime(k_map_shared, {shared, rank, Location()}); }
  void StoreAsyncAt(Value* shared, Value* rank, Value* v, Value* mbarrier) override {
    const unsigned bits = unsigned(v->getType()->getPrimitiveSizeInBits().getFixedValue());
    Value* word = builder().CreateZExt(builder().CreateBitCast(v, builder().getIntNTy(bits)), builder().getInt64Ty());
    CallRuntime(k_store_async_at, {shared, rank, word, I32(int(bits / 8)), mbarrier, Location()});
  }
  void GridBarrier(Value*) override { CallRuntime(k_grid_barrier, {Location()}); }
  void RaiseFlag(Value* flag) override { CallRuntime(k_raise_flag, {flag, Location()}); }
  void TakeFlag(Value* flag) override { CallRuntime(k_take_flag, {flag, Location()}); }

  Value* Dp4a(Value* a, Value* b, Value* c, bool a_signed, bool b_signed) override { return PlainDp4a(a, b, c, a_signed, b_signed); }

  Value* Atomic(const llvm_ir::AtomicForm& form, Value* ptr, Value* v, Value* compare) override {
    if (v != nullptr) builder().CreateStore(v, Words());
    if (compare != nullptr) builder().CreateStore(compare, Word(kWordsOfCompared));
    const bool shared = ptr->getType()->getPointerAddressSpace() != llvm_ir::kGlobalSpace;
    if (shared) ptr = builder().CreateAddrSpaceCast(ptr, builder().getPtrTy(llvm_ir::kSharedSpace));  // of another block too
    const AtomicCall call{TensorOp(form.op), form.order, form.gives_old};
    const bool ordered = form.order != ir::MemoryOrder::kRelaxed;
    if (ordered || (form.gives_old && !shared)) {
      CallRuntime(shared ? k_meet_shared : k_meet_global, {ptr, I32(int(call.Pack())), Location()});
    } else if (form.gives_old) {
      CallRuntime(k_give_way, {Location()});
    }
    CallRuntime(shared ? k_atomic_shared : k_atomic_global, {I32(int(call.Pack())), I32(int(form.dtype)), ptr, Words(), Location()});
    return form.gives_old ? builder().CreateLoad(llvm_ir::ValueType(builder().getContext(), form.dtype), Words()) : nullptr;
  }

  void Allocate(uint32_t buffer) override { CallRuntime(k_allocate, {I32(buffer)}); }

  Value* BeginClaim(uint32_t threads) override {
    return builder().CreateICmpNE(CallRuntime(k_claim_begin, {I32(int(threads)), Site(), Location()}), I32(0));
  }
  void Claim(Value* pointer, int bytes) override {
    const bool shared = pointer->getType()->getPointerAddressSpace() == llvm_ir::kSharedSpace;
    CallRuntime(shared ? k_claim_shared : k_claim_global, {pointer, I32(bytes)});
  }
  void EndClaim() override { CallRuntime(k_claim_end, {Location()}); }

  void StopOutside(const Outside& outside) override {
    PutPlace(outside);
    CallRuntime(k_index_outside,
                {builder().getInt32(outside.buffer), Words(), I32(int(outside.index.size())), I32(outside.bytes), I32(outside.write), Location()})
        ->setDoesNotReturn();
    builder().CreateUnreachable();
  }
  void ReportUnwritten(const Outside& element) override {
    PutPlace(element);
    CallRuntime(k_unwritten, {builder().getInt32(element.buffer), Words(), I32(int(element.index.size())), I32(element.bytes), Location()});
  }

 protected:
  Value* ShuffleXorWord(Value* word, int mask) override { return CallRuntime(k_shuffle_xor, {word, I32(mask), Site(), Location()}); }
  // Mma and Atomic above do not come to these.
  std::vector<Value*> CallMma(const target::MmaInstruction&, llvm::Intrinsic::ID, std::span<Value* const>, std::span<Value* const>,
                              std::span<Value* const>, const SparseMetadata&) override {
    std::abort();
  }
  std::string_view DeviceScope() const override { std::abort(); }

 private:
  // The indices, then the extents.
  void PutPlace(const Outside& place) {
    const auto rank = uint32_t(place.index.size());
    for (uint32_t d = 0; d < rank; ++d) {
      builder().CreateStore(place.index[d], Word(2 * d));
      builder().CreateStore(builder().getInt64(uint64_t(place.shape[d])), Word(2 * (rank + d)));
    }
  }

  Value* I32(int value) { return builder().getInt32(uint32_t(value)); }
  Value* Location() { return builder().getInt32(location_); }
  Value* Site() { return builder().getInt32(++sites_); }

  MatrixUnit UnitOf(const target::MmaInstruction& row) const {
    if (target().family == target::Family::kNvptx) return MatrixUnit::kMmaSync;
    if (row.IsSparse()) return MatrixUnit::kSmfmac;
    if (target().Has(Feature::kMfma)) return MatrixUnit::kMfma;
    return target().Has(Feature::kWmmaReplicated) ? MatrixUnit::kWmmaGfx11 : MatrixUnit::kWmmaGfx12;
  }

  static uint8_t SparseForm(const target::MmaInstruction& mma, const SparseMetadata& metadata) {
    return mma.IsSparse() ? uint8_t(1 + metadata.selector) : uint8_t(0);
  }

  // The thread's array of words that travel in memory.
  Value* Words() {
    if (words_ == nullptr) {
      llvm::IRBuilderBase::InsertPointGuard guard(builder());
      llvm::BasicBlock& entry = kernel_->getEntryBlock();
      builder().SetInsertPoint(&entry, entry.begin());
      words_ = builder().CreateAlloca(llvm::ArrayType::get(builder().getInt32Ty(), kMatrixWords), nullptr, "words");
      words_->setAlignment(llvm::Align(16));
    }
    return words_;
  }
  Value* Array(size_t words) {
    llvm::IRBuilderBase::InsertPointGuard guard(builder());
    llvm::BasicBlock& entry = kernel_->getEntryBlock();
    builder().SetInsertPoint(&entry, entry.begin());
    return builder().CreateAlloca(llvm::ArrayType::get(builder().getInt32Ty(), words), nullptr, "words");
  }
  Value* Element(Value* array, size_t index) { return builder().CreateConstGEP1_32(builder().getInt32Ty(), array, unsigned(index)); }
  Value* StoreAll(std::span<Value* const> values) {
    Value* array = Array(values.size());
    for (size_t i = 0; i < values.size(); ++i) builder().CreateStore(values[i], Element(array, i));
    return array;
  }
  std::vector<Value*> LoadAll(Value* array, std::span<Value* const> like) {
    std::vector<Value*> results;
    for (size_t i = 0; i < like.size(); ++i) results.push_back(builder().CreateLoad(like[i]->getType(), Element(array, i)));
    return results;
  }
  void StoreTensor(TensorOp op, Value* map, std::span<Value* const> at, Value* shared) {
    CallRuntime(k_tensor_store, {I32(int(op)), map, StoreAll(at), I32(int(at.size())), shared, Location()});
  }
  // What `then` appends runs only where `when` holds; null: always.
  template <typename Then>
  void Where(Value* when, Then&& then) {
    if (when == nullptr) return then();
    auto* yes = llvm::BasicBlock::Create(builder().getContext(), "then", kernel_);
    auto* end = llvm::BasicBlock::Create(builder().getContext(), "end", kernel_);
    builder().CreateCondBr(when, yes, end);
    builder().SetInsertPoint(yes);
    then();
    builder().CreateBr(end);
    builder().SetInsertPoint(end);
  }
  Value* Word(uint32_t index) { return builder().CreateConstGEP1_32(builder().getInt32Ty(), Words(), index); }

  llvm::Type* TypeOf(char letter) {
    llvm::IRBuilderBase& b = builder();
    switch (letter) {
      case 'v': return b.getVoidTy();
      case 'i': return b.getInt32Ty();
      case 'l': return b.getInt64Ty();
      case 'g': return b.getPtrTy(llvm_ir::kGlobalSpace);
      case 's': return b.getPtrTy(llvm_ir::kSharedSpace);
      case 'd': return b.getPtrTy(llvm_ir::kClusterSpace);
      default: return b.getPtrTy();
    }
  }

  llvm::Function* Declare(const Signature& call) {
    llvm::Module& module = *kernel_->getParent();
    if (llvm::Function* known = module.getFunction(call.name)) return known;
    std::vector<llvm::Type*> params;
    for (const char* letter = call.letters + 1; *letter != '\0'; ++letter) {
      if (*letter != ',' && *letter != ' ') params.push_back(TypeOf(*letter));
    }
    auto* type = llvm::FunctionType::get(TypeOf(call.letters[0]), params, false);
    auto* function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, call.name, module);
    function->addFnAttr(llvm::Attribute::NoUnwind);
    if (call.effect == Effect::kPure) {
      function->setDoesNotAccessMemory();
      function->addFnAttr(llvm::Attribute::WillReturn);
      return function;
    }
    function->addFnAttr(llvm::Attribute::Convergent);
    if (call.effect == Effect::kWarp) {
      function->setMemoryEffects(llvm::MemoryEffects::inaccessibleOrArgMemOnly());
    }
    for (unsigned i = 0; i < params.size(); ++i) {
      if (params[i] == builder().getPtrTy()) {
        function->addParamAttr(i, llvm::Attribute::getWithCaptureInfo(module.getContext(), llvm::CaptureInfo::none()));
      }
    }
    return function;
  }

  llvm::CallInst* CallRuntime(CallId id, std::initializer_list<Value*> args) {
    return builder().CreateCall(Declare(kCalls[id]), llvm::ArrayRef<Value*>(args.begin(), args.size()));
  }

  static llvm::DISubprogram* MakeSubprogram(llvm::Module& module) {
    if (!module.getModuleFlag("Debug Info Version")) {
      module.addModuleFlag(llvm::Module::Warning, "Debug Info Version", llvm::DEBUG_METADATA_VERSION);
    }
    llvm::DIBuilder debug(module);
    llvm::DIFile* file = debug.createFile("statements", "");
    llvm::DICompileUnit* unit =
        debug.createCompileUnit(llvm::DISourceLanguageName(llvm::dwarf::DW_LANG_C), file, "kiln", true, "", 0, "", llvm::DICompileUnit::NoDebug);
    llvm::DISubprogram* subprogram = debug.createFunction(unit, "kernel", "", file, 0, debug.createSubroutineType(debug.getOrCreateTypeArray({})), 0,
                                                          llvm::DINode::FlagZero, llvm::DISubprogram::SPFlagDefinition);
    debug.finalize();
    return subprogram;
  }

  llvm::Function* kernel_ = nullptr;
  llvm::AllocaInst* words_ = nullptr;
  uint32_t threads_ = 1024;
  uint32_t registers_ = 0;  // of each thread when the kernel starts
  uint32_t location_ = 0;
  uint32_t sites_ = 0;
};

}  // namespace

std::unique_ptr<llvm_ir::Device> MakeEmulatorDevice(const target::Target& target, llvm::IRBuilderBase& builder) {
  return std::make_unique<EmulatorDevice>(target, builder);
}

}  // namespace kiln::emulator
