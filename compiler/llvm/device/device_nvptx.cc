// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>

#include "compiler/llvm/device/device_nvptx_async.h"

namespace kiln::llvm_ir {
namespace {

using ir::DType;
using llvm::Value;
using target::Feature;
namespace Intrinsic = llvm::Intrinsic;

class NvptxDevice final : public NvptxAsyncDevice {
 public:
  NvptxDevice(const target::Target& target, llvm::IRBuilderBase& builder) : NvptxAsyncDevice(target, builder) {}

  llvm::Function* CreateKernel(llvm::Module& module, std::string_view name, std::span<llvm::Type* const> params, uint32_t threads,
                               uint32_t max_registers, uint32_t min_blocks) override {
    std::vector<llvm::Type*> types(params.begin(), params.end());
    for (llvm::Type*& type : types)
      if (type->isArrayTy()) type = llvm::PointerType::get(builder().getContext(), 0);
    auto* type = llvm::FunctionType::get(builder().getVoidTy(), types, false);
    auto* kernel = llvm::Function::Create(type, llvm::Function::ExternalLinkage, llvm::StringRef(name.data(), name.size()), module);
    kernel->setCallingConv(llvm::CallingConv::PTX_Kernel);
    kernel->addFnAttr(llvm::Attribute::NoUnwind);
    for (unsigned i = 0; i < params.size(); ++i) {
      if (!params[i]->isArrayTy()) continue;
      llvm::AttrBuilder map(builder().getContext());
      map.addByValAttr(params[i]);
      map.addAlignmentAttr(64);
      map.addAttribute("nvvm.grid_constant");
      kernel->addParamAttrs(i, map);
    }
    kernel->addFnAttr("nvvm.reqntid", std::to_string(threads));
    // Without either attribute ptxas may assume that many blocks share a multiprocessor, and spill nearly everything.
    if (max_registers != 0) {
      kernel->addFnAttr("nvvm.maxnreg", std::to_string(max_registers));
    } else {
      kernel->addFnAttr("nvvm.minctasm", std::to_string(std::max(min_blocks, 1u)));
    }
    threads_ = threads;
    return kernel;
  }

  Value* ThreadIndex() override { return Below(Call(Intrinsic::nvvm_read_ptx_sreg_tid_x, {}), threads_); }

  Value* BlockIndex(int axis) override {
    constexpr Intrinsic::ID kIds[] = {Intrinsic::nvvm_read_ptx_sreg_ctaid_x, Intrinsic::nvvm_read_ptx_sreg_ctaid_y,
                                      Intrinsic::nvvm_read_ptx_sreg_ctaid_z};
    return Below(Call(kIds[axis], {}), kLargestGrid[axis]);
  }

  Value* GridSize(int axis) override {
    constexpr Intrinsic::ID kIds[] = {Intrinsic::nvvm_read_ptx_sreg_nctaid_x, Intrinsic::nvvm_read_ptx_sreg_nctaid_y,
                                      Intrinsic::nvvm_read_ptx_sreg_nctaid_z};
    return Below(Call(kIds[axis], {}), kLargestGrid[axis] + 1);
  }

  Value* Uniform(Value* v) override {
    return ByWords(v, [&](Value* word) { return Call(Intrinsic::nvvm_shfl_sync_idx_i32, {I32(-1), word, I32(0), I32(31)}); });
  }

  void Barrier(bool) override { Call(Intrinsic::nvvm_barrier_cta_sync_aligned_all, {I32(0)}); }
  void LanesBarrier(uint32_t first, uint32_t count) override {
    const uint32_t lanes = uint32_t(((uint64_t{1} << count) - 1) << first);
    Call(Intrinsic::nvvm_bar_warp_sync, {I32(int(lanes))});
  }

  // ptxas merges an `and` with an `or` only if at most one of their constants is an immediate. For lop3 it keeps one of them in a register.
  Value* AndOr(Value* v, Value* mask, Value* bits) override {
    llvm::Type* word = builder().getInt32Ty();
    auto* logic = llvm::InlineAsm::get(llvm::FunctionType::get(word, {word, word, word}, false), "lop3.b32 $0, $1, $2, $3, 0xEA;", "=r,r,r,r", false);
    return builder().CreateCall(logic, {v, mask, bits});
  }
  Value* LoadOnce(llvm::Type* type, Value* pointer) override {
    llvm::Type* word = builder().getInt32Ty();
    auto* words = llvm::StructType::get(word, word, word, word);
    auto* load = llvm::InlineAsm::get(llvm::FunctionType::get(words, {pointer->getType()}, false),
                                      "ld.global.nc.L1::no_allocate.v4.b32 {$0, $1, $2, $3}, [$4];", "=r,=r,=r,=r,l", /*hasSideEffects=*/false);
    return FromWords(Results(builder().CreateCall(load, {pointer})), type);
  }

  void StoreKept(Value* v, Value* pointer) override {
    if (!target().Has(Feature::kTma)) return DeviceBase::StoreKept(v, pointer);
    llvm::Type *word = builder().getInt32Ty(), *policy = builder().getInt64Ty();
    auto* create = llvm::InlineAsm::get(llvm::FunctionType::get(policy, false), "createpolicy.fractional.L2::evict_last.b64 $0, 1.0;", "=l",
                                        /*hasSideEffects=*/false);
    auto* store = llvm::InlineAsm::get(llvm::FunctionType::get(builder().getVoidTy(), {pointer->getType(), word, word, word, word, policy}, false),
                                       "st.global.L2::cache_hint.v4.b32 [$0], {$1, $2, $3, $4}, $5;", "l,r,r,r,r,l", /*hasSideEffects=*/true);
    std::vector<Value*> arguments = {pointer};
    std::ranges::copy(ElementsOf(builder().CreateBitCast(v, llvm::FixedVectorType::get(word, 4))), std::back_inserter(arguments));
    arguments.push_back(builder().CreateCall(create, {}));
    builder().CreateCall(store, arguments)->setMemoryEffects(llvm::MemoryEffects::argMemOnly(llvm::ModRefInfo::Mod));
  }

  std::vector<Value*> LoadMatrix(Value* row, int count, bool transpose) override {
    const Intrinsic::ID plain = count == 1   ? Intrinsic::nvvm_ldmatrix_sync_aligned_m8n8_x1_b16
                                : count == 2 ? Intrinsic::nvvm_ldmatrix_sync_aligned_m8n8_x2_b16
                                             : Intrinsic::nvvm_ldmatrix_sync_aligned_m8n8_x4_b16;
    const Intrinsic::ID transposed = count == 1   ? Intrinsic::nvvm_ldmatrix_sync_aligned_m8n8_x1_trans_b16
                                     : count == 2 ? Intrinsic::nvvm_ldmatrix_sync_aligned_m8n8_x2_trans_b16
                                                  : Intrinsic::nvvm_ldmatrix_sync_aligned_m8n8_x4_trans_b16;
    return Results(Call(transpose ? transposed : plain, {row}, {row->getType()}));
  }

  void StoreMatrix(Value* row, std::span<Value* const> words, bool transpose) override {
    const size_t count = words.size();
    const Intrinsic::ID plain = count == 1   ? Intrinsic::nvvm_stmatrix_sync_aligned_m8n8_x1_b16
                                : count == 2 ? Intrinsic::nvvm_stmatrix_sync_aligned_m8n8_x2_b16
                                             : Intrinsic::nvvm_stmatrix_sync_aligned_m8n8_x4_b16;
    const Intrinsic::ID transposed = count == 1   ? Intrinsic::nvvm_stmatrix_sync_aligned_m8n8_x1_trans_b16
                                     : count == 2 ? Intrinsic::nvvm_stmatrix_sync_aligned_m8n8_x2_trans_b16
                                                  : Intrinsic::nvvm_stmatrix_sync_aligned_m8n8_x4_trans_b16;
    std::vector<Value*> args = {row};
    args.insert(args.end(), words.begin(), words.end());
    llvm::Type* types[] = {row->getType()};
    Call(transpose ? transposed : plain, args, types);
  }

  Value* Vote(VoteOp op, Value* v) override {
    constexpr Intrinsic::ID kIds[] = {Intrinsic::nvvm_vote_all_sync, Intrinsic::nvvm_vote_any_sync, Intrinsic::nvvm_vote_ballot_sync};
    return Call(kIds[size_t(op)], {I32(-1), v});
  }
  Value* WarpReduce(WarpReduceOp op, DType dtype, Value* v) override {
    constexpr Intrinsic::ID kSigned[] = {Intrinsic::nvvm_redux_sync_add, Intrinsic::nvvm_redux_sync_min, Intrinsic::nvvm_redux_sync_max,
                                         Intrinsic::nvvm_redux_sync_and, Intrinsic::nvvm_redux_sync_or,  Intrinsic::nvvm_redux_sync_xor};
    if (!ir::IsSigned(dtype) && op == WarpReduceOp::kMin) return Call(Intrinsic::nvvm_redux_sync_umin, {v, I32(-1)});
    if (!ir::IsSigned(dtype) && op == WarpReduceOp::kMax) return Call(Intrinsic::nvvm_redux_sync_umax, {v, I32(-1)});
    return Call(kSigned[size_t(op)], {v, I32(-1)});
  }

  Value* Dp4a(Value* a, Value* b, Value* c, bool a_signed, bool b_signed) override {
    if (!target().Has(Feature::kDp4a)) return PlainDp4a(a, b, c, a_signed, b_signed);
    constexpr Intrinsic::ID kIds[2][2] = {{Intrinsic::nvvm_idp4a_u_u, Intrinsic::nvvm_idp4a_u_s},
                                          {Intrinsic::nvvm_idp4a_s_u, Intrinsic::nvvm_idp4a_s_s}};
    return Call(kIds[a_signed][b_signed], {a, b, c});
  }

 protected:
  Value* ShuffleXorWord(Value* word, int mask) override { return Call(Intrinsic::nvvm_shfl_sync_bfly_i32, {I32(-1), word, I32(mask), I32(31)}); }

  // Each word of A and B is an argument; f16 accumulators travel as pairs.
  std::vector<Value*> CallMma(const target::MmaInstruction& instruction, Intrinsic::ID id, std::span<Value* const> a, std::span<Value* const> b,
                              std::span<Value* const> c, const SparseMetadata& metadata) override {
    llvm::FunctionType* type = Intrinsic::getType(builder().getContext(), id);
    std::vector<Value*> args;
    for (auto words : {a, b}) {
      for (Value* word : words) args.push_back(builder().CreateBitCast(word, type->getParamType(unsigned(args.size()))));
    }
    const bool pairs = instruction.c == DType::kF16;
    for (size_t i = 0; i < c.size(); i += pairs ? 2 : 1) args.push_back(pairs ? VectorOf(c.subspan(i, 2)) : c[i]);
    if (instruction.IsSparse()) args.insert(args.end(), {metadata.word, I32(metadata.selector)});
    llvm::CallInst* call = Call(id, args);
    call->setConvergent();  // which LLVM 22's declaration is not
    std::vector<Value*> results = Results(call);
    if (!pairs) return results;
    std::vector<Value*> elements;
    for (Value* pair : results) {
      for (uint64_t i : {0, 1}) elements.push_back(builder().CreateExtractElement(pair, i));
    }
    return elements;
  }

  std::string_view DeviceScope() const override { return "device"; }
  bool NeedsFences() const override { return true; }  // its atom and red are all relaxed

  Value* NativePacked(std::span<Value* const> v, DType from, DType to) override {
    if (from != DType::kF32 && from != DType::kTF32) return nullptr;
    const bool ampere = target().Has(Feature::kBf16);
    if (to == DType::kF16 && ampere) return Pack(Call(Intrinsic::nvvm_ff2f16x2_rn, {v[1], v[0]}));
    if (to == DType::kBF16 && ampere) return Pack(Call(Intrinsic::nvvm_ff2bf16x2_rn, {v[1], v[0]}));
    if (!IsOcp(to) || !target().Has(Feature::kFp8Convert)) return nullptr;
    Value* low = Call(NarrowId(to), {v[1], v[0]});
    Value* high = Call(NarrowId(to), {v[3], v[2]});
    return Pack(VectorOf(std::array{low, high}));
  }

  // A constant is converted by arithmetic on its bits, which LLVM folds: no instruction is left.
  Value* NarrowFp8(llvm::IRBuilderBase& b, Value* v, DType to) const override {
    if (!IsOcp(to) || !target().Has(Feature::kFp8Convert) || llvm::isa<llvm::Constant>(v)) return nullptr;
    Value* pair = b.CreateIntrinsic(NarrowId(to), {}, {llvm::ConstantFP::get(b.getFloatTy(), 0), v});
    return b.CreateTrunc(pair, b.getInt8Ty());
  }

  Value* WidenFp8(llvm::IRBuilderBase& b, Value* v, DType from) const override {
    if (!IsOcp(from) || !target().Has(Feature::kFp8Convert) || llvm::isa<llvm::Constant>(v)) return nullptr;
    const Intrinsic::ID id = from == DType::kF8E4M3 ? Intrinsic::nvvm_e4m3x2_to_f16x2_rn : Intrinsic::nvvm_e5m2x2_to_f16x2_rn;
    Value* pair = b.CreateIntrinsic(id, {}, {b.CreateZExt(v, b.getInt16Ty())});
    return b.CreateFPExt(b.CreateExtractElement(pair, uint64_t{0}), b.getFloatTy());
  }

  Value* RoundTf32(llvm::IRBuilderBase& b, Value* v) const override {
    if (!target().Has(Feature::kTma)) return nullptr;  // cvt.rn.tf32 is sm_90's; sm_80 has only rounding away
    return b.CreateBitCast(b.CreateIntrinsic(Intrinsic::nvvm_f2tf32_rn, {}, {v}), b.getFloatTy());
  }

  // PTX ISA, ex2: relative error at most 2^-22 over the full range, without .ftz subnormals included.
  Value* Exp2(llvm::IRBuilderBase& b, Value* v, bool flush) const override {
    return b.CreateIntrinsic(flush ? Intrinsic::nvvm_ex2_approx_ftz : Intrinsic::nvvm_ex2_approx, {v->getType()}, {v});
  }
  // PTX ISA, rsqrt: relative error at most 2^-22.9.
  Value* Rsqrt(llvm::IRBuilderBase& b, Value* v, bool flush) const override {
    return b.CreateIntrinsic(flush ? Intrinsic::nvvm_rsqrt_approx_ftz_f : Intrinsic::nvvm_rsqrt_approx_f, {}, {v});
  }
  Value* DivFull(llvm::IRBuilderBase& b, Value* x, Value* y) const override { return b.CreateIntrinsic(Intrinsic::nvvm_div_full, {}, {x, y}); }
  Value* FastLog2(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::nvvm_lg2_approx_ftz_f, {}, {v}); }
  Value* FastSin(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::nvvm_sin_approx_ftz_f, {}, {v}); }
  Value* FastCos(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::nvvm_cos_approx_ftz_f, {}, {v}); }
  Value* FastSqrt(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::nvvm_sqrt_approx_ftz_f, {}, {v}); }
  Value* FastReciprocal(llvm::IRBuilderBase& b, Value* v) const override { return b.CreateIntrinsic(Intrinsic::nvvm_rcp_approx_ftz_f, {}, {v}); }
  // tanh.approx, relative error 2^-11.
  Value* FastTanh(llvm::IRBuilderBase& b, Value* v) const override {
    llvm::CallInst* call = b.CreateIntrinsic(Intrinsic::tanh, {v->getType()}, {v});
    llvm::FastMathFlags flags;
    flags.setApproxFunc();
    call->setFastMathFlags(flags);
    return call;
  }
  unsigned ConstantSpace() const override { return kGlobalSpace; }

 private:
  // Largest block index along each axis: CUDA C++ Programming Guide, technical specifications.
  static constexpr uint32_t kLargestGrid[] = {0x7fffffff, 65535, 65535};

  Value* Pack(Value* v) { return builder().CreateBitCast(v, builder().getInt32Ty()); }
  static bool IsOcp(DType t) { return t == DType::kF8E4M3 || t == DType::kF8E5M2; }
  static Intrinsic::ID NarrowId(DType to) { return to == DType::kF8E4M3 ? Intrinsic::nvvm_ff_to_e4m3x2_rn : Intrinsic::nvvm_ff_to_e5m2x2_rn; }

  Value* Below(llvm::CallInst* call, uint32_t end) {
    call->addRangeRetAttr(llvm::ConstantRange(llvm::APInt(32, 0), llvm::APInt(32, end)));
    return call;
  }

  // A value or the members of a struct.
  std::vector<Value*> Results(Value* result) {
    auto* type = llvm::dyn_cast<llvm::StructType>(result->getType());
    if (type == nullptr) return {result};
    std::vector<Value*> members;
    for (unsigned i = 0; i < type->getNumElements(); ++i) members.push_back(builder().CreateExtractValue(result, i));
    return members;
  }

  uint32_t threads_ = 1024;
};

}  // namespace

std::unique_ptr<Device> MakeNvptxDevice(const target::Target& target, llvm::IRBuilderBase& builder) {
  return std::make_unique<NvptxDevice>(target, builder);
}

}  // namespace kiln::llvm_ir
