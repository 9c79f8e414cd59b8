// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "compiler/llvm/device/device_base.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/IR/MemoryModelRelaxationAnnotations.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using llvm::Value;
using target::Feature;
namespace Intrinsic = llvm::Intrinsic;

// DPP controls (AMD ISA, "DPP16"): lane permutations that VALU instructions do on the way.
constexpr uint32_t kRowMirror = 0x140, kRowHalfMirror = 0x141, kRowRotate8 = 0x128, kRowXmask = 0x160;

class AmdgpuDevice final : public DeviceBase {
 public:
  AmdgpuDevice(const target::Target& target, llvm::IRBuilderBase& builder) : DeviceBase(target, builder) {}

  llvm::Function* CreateKernel(llvm::Module& module, std::string_view name, std::span<llvm::Type* const> params, uint32_t threads,
                               uint32_t max_registers, uint32_t min_blocks) override {
    auto* type = llvm::FunctionType::get(builder().getVoidTy(), llvm::ArrayRef<llvm::Type*>(params.data(), params.size()), false);
    auto* kernel = llvm::Function::Create(type, llvm::Function::ExternalLinkage, llvm::StringRef(name.data(), name.size()), module);
    kernel->setCallingConv(llvm::CallingConv::AMDGPU_KERNEL);
    kernel->addFnAttr(llvm::Attribute::NoUnwind);
    const std::string size = std::to_string(threads);
    kernel->addFnAttr("amdgpu-flat-work-group-size", size + "," + size);
    kernel->addFnAttr("uniform-work-group-size", "true");
    if (max_registers != 0) {
      kernel->addFnAttr("amdgpu-num-vgpr", std::to_string(max_registers));
    } else if (min_blocks != 0) {
      kernel->addFnAttr("amdgpu-waves-per-eu", std::to_string(WavesOfUnit(threads, min_blocks)));
    }
    for (const char* unused : {"dispatch-ptr", "queue-ptr", "dispatch-id", "workitem-id-y", "workitem-id-z", "heap-ptr", "multigrid-sync-arg",
                               "hostcall-ptr", "default-queue", "completion-action", "flat-scratch-init", "lds-kernel-id"}) {
      kernel->addFnAttr(std::string("amdgpu-no-") + unused);
    }
    threads_ = threads;
    return kernel;
  }

  // Waves on one SIMD unit. A compute unit has four of them; RDNA in CU mode has two, each with space for twice as many waves.
  uint32_t WavesOfUnit(uint32_t threads, uint32_t blocks) const {
    const uint32_t wave = target().warp_size, waves = blocks * ((threads + wave - 1) / wave);
    const uint32_t units = wave == 32 ? 2 : 4, most = wave == 32 ? 16 : 8;
    return std::clamp((waves + units - 1) / units, 1u, most);
  }

  Value* ThreadIndex() override { return Below(Call(Intrinsic::amdgcn_workitem_id_x, {}), threads_); }

  Value* BlockIndex(int axis) override {
    constexpr Intrinsic::ID kIds[] = {Intrinsic::amdgcn_workgroup_id_x, Intrinsic::amdgcn_workgroup_id_y, Intrinsic::amdgcn_workgroup_id_z};
    return Below(Call(kIds[axis], {}), 0x7fffffff);
  }

  // hidden_block_count_{x,y,z}, the first of code object 5's implicit arguments.
  Value* GridSize(int axis) override {
    Value* args = Call(Intrinsic::amdgcn_implicitarg_ptr, {});
    llvm::LoadInst* count = builder().CreateAlignedLoad(
        builder().getInt32Ty(), builder().CreateConstGEP1_32(builder().getInt8Ty(), args, unsigned(4 * axis)), llvm::Align(4));
    count->setMetadata(llvm::LLVMContext::MD_invariant_load, llvm::MDNode::get(builder().getContext(), {}));
    count->setMetadata(llvm::LLVMContext::MD_range,
                       llvm::MDBuilder(builder().getContext()).createRange(llvm::APInt(32, 0), llvm::APInt(32, 0x80000000u)));
    return count;
  }

  Value* Uniform(Value* v) override {
    return ByWords(v, [&](Value* word) { return Call(Intrinsic::amdgcn_readfirstlane, {word}, {word->getType()}); });
  }

  void Barrier(bool shared_only) override {
    llvm::LLVMContext& context = builder().getContext();
    const llvm::SyncScope::ID group = context.getOrInsertSyncScopeID("workgroup");
    const auto fence = [&](llvm::AtomicOrdering ordering) {
      llvm::FenceInst* made = builder().CreateFence(ordering, group);
      if (shared_only) made->setMetadata(llvm::LLVMContext::MD_mmra, llvm::MMRAMetadata::getTagMD(context, "amdgpu-synchronize-as", "local"));
    };
    fence(llvm::AtomicOrdering::Release);
    Call(Intrinsic::amdgcn_s_barrier, {});
    fence(llvm::AtomicOrdering::Acquire);
  }

  // The lanes of a wave run in lockstep and its accesses complete in order, so only the compiler must be kept from reordering them.
  void LanesBarrier(uint32_t, uint32_t) override {
    const llvm::SyncScope::ID wave = builder().getContext().getOrInsertSyncScopeID("wavefront");
    builder().CreateFence(llvm::AtomicOrdering::Release, wave);
    Call(Intrinsic::amdgcn_wave_barrier, {});
    builder().CreateFence(llvm::AtomicOrdering::Acquire, wave);
  }

  void CopyAsync(Value*, Value*, int, Value*) override { std::abort(); }  // the contract: only with kCpAsync
  void AsyncCommit() override { std::abort(); }
  void AsyncWait(int) override { std::abort(); }
  std::vector<Value*> LoadMatrix(Value*, int, bool) override { std::abort(); }  // only with kLdMatrix
  void StoreMatrix(Value*, std::span<Value* const>, bool) override { std::abort(); }

  Value* Dp4a(Value* a, Value* b, Value* c, bool a_signed, bool b_signed) override {
    llvm::IRBuilderBase& ir = builder();
    if (!target().Has(Feature::kDp4a)) return PlainDp4a(a, b, c, a_signed, b_signed);
    if (target().Has(Feature::kWmmaReplicated) || target().Has(Feature::kWmma)) {
      return Call(Intrinsic::amdgcn_sudot4, {ir.getInt1(a_signed), a, ir.getInt1(b_signed), b, c, ir.getFalse()});
    }
    if (a_signed != b_signed) return PlainDp4a(a, b, c, a_signed, b_signed);
    return Call(a_signed ? Intrinsic::amdgcn_sdot4 : Intrinsic::amdgcn_udot4, {a, b, c, ir.getFalse()});
  }

 protected:
  Value* ShuffleXorWord(Value* word, int mask) override {
    if (mask & 15) word = ShuffleInRow(word, uint32_t(mask & 15));
    if (mask & 16) word = ShuffleRows(word);
    if (mask & 32) {
      Value* lane = LaneIndex();
      Value* other = builder().CreateXor(lane, builder().getInt32(32));
      word = Call(Intrinsic::amdgcn_ds_bpermute, {builder().CreateShl(other, 2), word});
    }
    return word;
  }

  std::vector<Value*> CallMma(const target::MmaInstruction& instruction, Intrinsic::ID id, std::span<Value* const> a, std::span<Value* const> b,
                              std::span<Value* const> c, const SparseMetadata& metadata) override {
    llvm::IRBuilderBase& ir = builder();
    Value* accumulator = VectorOf(c);
    if (!Intrinsic::isOverloaded(id)) {  // MFMA; cbsz, abid and blgp are 0, so that the lowest bits of metadata count
      llvm::FunctionType* type = Intrinsic::getType(ir.getContext(), id);
      Value* zero = ir.getInt32(0);
      if (instruction.IsSparse())
        return ElementsOf(
            Call(id, {FromWords(a, type->getParamType(0)), FromWords(b, type->getParamType(1)), accumulator, metadata.word, zero, zero}));
      return ElementsOf(Call(id, {FromWords(a, type->getParamType(0)), FromWords(b, type->getParamType(1)), accumulator, zero, zero, zero}));
    }
    llvm::Type* operand = WmmaOperand(instruction.a, unsigned(a.size()));
    Value* av = FromWords(a, operand);
    Value* bv = FromWords(b, operand);
    if (instruction.c != DType::kI32) return ElementsOf(Call(id, {av, bv, accumulator}, {accumulator->getType(), operand}));
    Value* a_signed = ir.getInt1(ir::IsSigned(instruction.a));
    Value* b_signed = ir.getInt1(ir::IsSigned(instruction.b));
    return ElementsOf(Call(id, {a_signed, av, b_signed, bv, accumulator, ir.getFalse()}, {accumulator->getType(), operand}));
  }

  std::string_view DeviceScope() const override { return "agent"; }

  // Tensors are ordinary device memory. In fine-grained memory, or another device's, the hardware's float atomics have no effect.
  void MarkAtomic(llvm::AtomicRMWInst& atomic) override {
    llvm::MDNode* yes = llvm::MDNode::get(builder().getContext(), {});
    for (const char* name : {"amdgpu.no.fine.grained.memory", "amdgpu.no.remote.memory", "amdgpu.ignore.denormal.mode"}) {
      atomic.setMetadata(name, yes);
    }
  }

  Value* NativePacked(std::span<Value* const> v, DType from, DType to) override {
    if ((from != DType::kF32 && from != DType::kTF32) || !IsNativeFp8(to)) return nullptr;
    Value* low = CallNarrow(builder(), to, Saturated(builder(), v[0], to), Saturated(builder(), v[1], to), builder().getInt32(0), false);
    return CallNarrow(builder(), to, Saturated(builder(), v[2], to), Saturated(builder(), v[3], to), low, true);
  }

  Value* NarrowFp8(llvm::IRBuilderBase& b, Value* v, DType to) const override {
    if (!IsNativeFp8(to)) return nullptr;
    Value* saturated = Saturated(b, v, to);
    return b.CreateTrunc(CallNarrow(b, to, saturated, saturated, b.getInt32(0), false), b.getInt8Ty());
  }

  Value* WidenFp8(llvm::IRBuilderBase& b, Value* v, DType from) const override {
    if (!IsNativeFp8(from)) return nullptr;
    return b.CreateIntrinsic(IsE4M3(from) ? Intrinsic::amdgcn_cvt_f32_fp8 : Intrinsic::amdgcn_cvt_f32_bf8, {},
                             {b.CreateZExt(v, b.getInt32Ty()), b.getInt32(0)});
  }

  // v_exp_f32 and v_rsq_f32 are within 1 ulp and flush subnormals; llvm.exp2 scales around that.
  Value* Exp2(llvm::IRBuilderBase& b, Value* v, bool flush) const override {
    if (flush) return b.CreateIntrinsic(Intrinsic::amdgcn_exp2, {v->getType()}, {v});
    return b.CreateUnaryIntrinsic(Intrinsic::exp2, v);
  }
  Value* Rsqrt(llvm::IRBuilderBase& b, Value* v, bool flush) const override {
    return flush ? b.CreateIntrinsic(Intrinsic::amdgcn_rsq, {v->getType()}, {v}) : nullptr;
  }
  Value* FastLog2(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::amdgcn_log, {v->getType()}, {v}); }
  Value* FastSin(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::amdgcn_sin, {v->getType()}, {Turns(b, v)}); }
  Value* FastCos(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::amdgcn_cos, {v->getType()}, {Turns(b, v)}); }
  Value* FastSqrt(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::amdgcn_sqrt, {v->getType()}, {v}); }
  Value* FastReciprocal(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::amdgcn_rcp, {v->getType()}, {v}); }
  unsigned ConstantSpace() const override { return 4; }  // AMDGPU's constant memory

 private:
  Value* Dpp(Value* word, uint32_t control) {
    llvm::IRBuilderBase& b = builder();
    return Call(Intrinsic::amdgcn_update_dpp,
                {llvm::PoisonValue::get(word->getType()), word, b.getInt32(control), b.getInt32(15), b.getInt32(15), b.getTrue()}, {word->getType()});
  }

  // The lanes of a quad as `xor mask` permutes them.
  static uint32_t Quad(uint32_t mask) {
    uint32_t control = 0;
    for (uint32_t lane = 0; lane < 4; ++lane) control |= (lane ^ mask) << (2 * lane);
    return control;
  }

  // Within a row of 16 lanes. RDNA has the permutation; CDNA makes it of rotations and mirrors: half mirror is xor 7,
  // mirror is xor 15, rotation by 8 is xor 8.
  Value* ShuffleInRow(Value* word, uint32_t mask) {
    if (target().warp_size == 32) return Dpp(word, kRowXmask | mask);
    if (mask == 15) return Dpp(word, kRowMirror);
    if (mask & 8) word = Dpp(word, kRowRotate8);
    mask &= 7;
    if (mask & 4) {
      word = Dpp(word, kRowHalfMirror);
      mask ^= 7;
    }
    return mask == 0 ? word : Dpp(word, Quad(mask));
  }

  // xor 16.
  Value* ShuffleRows(Value* word) {
    llvm::IRBuilderBase& b = builder();
    if (target().warp_size == 32) {
      return Call(Intrinsic::amdgcn_permlanex16,
                  {llvm::PoisonValue::get(word->getType()), word, b.getInt32(0x76543210), b.getInt32(0xfedcba98), b.getFalse(), b.getFalse()},
                  {word->getType()});
    }
    return Call(Intrinsic::amdgcn_ds_swizzle, {word, b.getInt32(16 << 10 | 0x1f)});
  }

  Value* LaneIndex() {
    Value* low = Call(Intrinsic::amdgcn_mbcnt_lo, {builder().getInt32(~0u), builder().getInt32(0)});
    return Call(Intrinsic::amdgcn_mbcnt_hi, {builder().getInt32(~0u), low});
  }

  llvm::Type* WmmaOperand(DType type, unsigned words) {
    llvm::IRBuilderBase& b = builder();
    switch (type) {
      case DType::kF16: return llvm::FixedVectorType::get(b.getHalfTy(), 2 * words);
      case DType::kBF16: return llvm::FixedVectorType::get(b.getInt16Ty(), 2 * words);
      default: return llvm::FixedVectorType::get(b.getInt32Ty(), words);
    }
  }

  static bool IsE4M3(DType t) { return t == DType::kF8E4M3 || t == DType::kF8E4M3FNUZ; }
  bool IsNativeFp8(DType t) const {
    if (!ir::IsFp8(t) || !target().Has(Feature::kFp8Convert)) return false;
    const bool fnuz = t == DType::kF8E4M3FNUZ || t == DType::kF8E5M2FNUZ;
    return fnuz == target().Has(Feature::kFp8Fnuz);
  }
  static Value* CallNarrow(llvm::IRBuilderBase& b, DType to, Value* x, Value* y, Value* old, bool high) {
    return b.CreateIntrinsic(IsE4M3(to) ? Intrinsic::amdgcn_cvt_pk_fp8_f32 : Intrinsic::amdgcn_cvt_pk_bf8_f32, {}, {x, y, old, b.getInt1(high)});
  }
  // The conversion makes NaN (or infinity) of what is too large.
  static Value* Saturated(llvm::IRBuilderBase& b, Value* v, DType to) {
    llvm::Constant* limit = llvm::ConstantFP::get(v->getType(), LargestFp8(to));
    llvm::Constant* lower = llvm::ConstantFP::get(v->getType(), -LargestFp8(to));
    Value* bounded = b.CreateIntrinsic(Intrinsic::amdgcn_fmed3, {v->getType()}, {v, limit, lower});
    return b.CreateSelect(b.CreateFCmpUNO(v, v), v, bounded);
  }
  // v_sin and v_cos count in turns.
  static Value* Turns(llvm::IRBuilderBase& b, Value* v) {
    Value* turns = b.CreateFMul(v, llvm::ConstantFP::get(v->getType(), 0.15915494309189535));
    return b.CreateIntrinsic(Intrinsic::amdgcn_fract, {v->getType()}, {turns});
  }

  Value* Below(llvm::CallInst* call, uint32_t end) {
    call->addRangeRetAttr(llvm::ConstantRange(llvm::APInt(32, 0), llvm::APInt(32, end)));
    return call;
  }

  uint32_t threads_ = 1024;
};

}  // namespace

std::unique_ptr<Device> MakeAmdgpuDevice(const target::Target& target, llvm::IRBuilderBase& builder) {
  return std::make_unique<AmdgpuDevice>(target, builder);
}

}  // namespace kiln::llvm_ir
