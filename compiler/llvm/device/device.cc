// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/device/device.h"

#include <cstdlib>

#include "compiler/llvm/device/device_base.h"

namespace kiln::llvm_ir {

using ir::DType;
using llvm::Value;

llvm::Type* ValueType(llvm::LLVMContext& context, DType dtype) {
  switch (dtype) {
    case DType::kBool: return llvm::Type::getInt1Ty(context);
    case DType::kF16: return llvm::Type::getHalfTy(context);
    case DType::kBF16: return llvm::Type::getBFloatTy(context);
    case DType::kF32:
    case DType::kTF32: return llvm::Type::getFloatTy(context);
    case DType::kF64: return llvm::Type::getDoubleTy(context);
    default: return llvm::Type::getIntNTy(context, unsigned(ir::Bits(dtype)));  // integers and fp8
  }
}

llvm::Type* MemoryType(llvm::LLVMContext& context, DType dtype) {
  return dtype == DType::kBool ? llvm::Type::getInt8Ty(context) : ValueType(context, dtype);
}

constexpr const char* kSubnormals = "denormal-fp-math-f32";

void FlushSubnormals(llvm::Function& kernel) { kernel.addFnAttr(kSubnormals, "preserve-sign,preserve-sign"); }

bool FlushesSubnormals(const llvm::Function& kernel) { return kernel.hasFnAttribute(kSubnormals); }

llvm::CallInst* DeviceBase::Call(llvm::Intrinsic::ID id, std::span<Value* const> args, std::span<llvm::Type* const> types) {
  return builder().CreateIntrinsic(id, llvm::ArrayRef<llvm::Type*>(types.data(), types.size()), llvm::ArrayRef<Value*>(args.data(), args.size()));
}

llvm::CallInst* DeviceBase::Call(llvm::Intrinsic::ID id, std::initializer_list<Value*> args, std::initializer_list<llvm::Type*> types) {
  return Call(id, std::span(args.begin(), args.size()), std::span(types.begin(), types.size()));
}

Value* DeviceBase::VectorOf(std::span<Value* const> elements) {
  Value* vector = llvm::PoisonValue::get(llvm::FixedVectorType::get(elements[0]->getType(), unsigned(elements.size())));
  for (uint64_t i = 0; i < elements.size(); ++i) vector = builder().CreateInsertElement(vector, elements[i], i);
  return vector;
}

std::vector<Value*> DeviceBase::ElementsOf(Value* vector) {
  std::vector<Value*> elements;
  const unsigned count = llvm::cast<llvm::FixedVectorType>(vector->getType())->getNumElements();
  for (uint64_t i = 0; i < count; ++i) elements.push_back(builder().CreateExtractElement(vector, i));
  return elements;
}

Value* DeviceBase::FromWords(std::span<Value* const> words, llvm::Type* type) {
  return builder().CreateBitCast(words.size() == 1 ? words[0] : VectorOf(words), type);
}

Value* DeviceBase::SharedMemory(uint64_t bytes, std::string_view name) {
  // NVPTX takes its dynamic shared memory at launch; AMDGPU wants the size in the object.
  const bool dynamic = target().family == target::Family::kNvptx;
  auto* type = llvm::ArrayType::get(builder().getInt8Ty(), dynamic ? 0 : bytes);
  auto* global = new llvm::GlobalVariable(*builder().GetInsertBlock()->getModule(), type, false,
                                          dynamic ? llvm::GlobalValue::ExternalLinkage : llvm::GlobalValue::InternalLinkage,
                                          dynamic ? nullptr : llvm::PoisonValue::get(type), llvm::StringRef(name.data(), name.size()), nullptr,
                                          llvm::GlobalValue::NotThreadLocal, kSharedSpace);
  global->setAlignment(llvm::Align(1024));
  return global;
}

Value* DeviceBase::ShuffleXor(Value* v, int mask) {
  return ByWords(v, [&](Value* word) { return ShuffleXorWord(word, mask); });
}

Value* DeviceBase::Math(ir::ExprOp op, DType dtype, std::span<Value* const> args, bool fast) {
  return BuildMath(builder(), *this, op, dtype, args, fast);
}

Value* DeviceBase::Convert(Value* v, DType from, DType to) { return BuildConvert(builder(), *this, v, from, to); }

Value* DeviceBase::ConvertPacked(std::span<Value* const> v, DType from, DType to) {
  if (Value* packed = NativePacked(v, from, to)) return packed;
  std::vector<Value*> narrow;
  for (Value* value : v) narrow.push_back(Convert(value, from, to));
  return builder().CreateBitCast(VectorOf(narrow), builder().getInt32Ty());
}

std::vector<Value*> DeviceBase::Mma(const target::MmaInstruction& instruction, std::span<Value* const> a, std::span<Value* const> b,
                                    std::span<Value* const> c, const SparseMetadata& metadata) {
  const std::string_view name = instruction.intrinsic;
  const llvm::Intrinsic::ID id = llvm::Intrinsic::lookupIntrinsicID(llvm::StringRef(name.data(), name.size()));
  if (id == llvm::Intrinsic::not_intrinsic) std::abort();  // a row of the tables that this LLVM does not have
  return CallMma(instruction, id, a, b, c, metadata);
}

namespace {

llvm::AtomicRMWInst::BinOp AtomicOperation(AtomicOp op, DType dtype) {
  using Rmw = llvm::AtomicRMWInst;
  if (op == AtomicOp::kExchange) return Rmw::Xchg;
  if (op >= AtomicOp::kAnd) return op == AtomicOp::kAnd ? Rmw::And : op == AtomicOp::kOr ? Rmw::Or : Rmw::Xor;
  if (ir::IsFloat(dtype)) {
    return op == AtomicOp::kAdd ? Rmw::FAdd : op == AtomicOp::kMax ? Rmw::FMax : Rmw::FMin;
  }
  if (op == AtomicOp::kAdd) return Rmw::Add;
  if (ir::IsSigned(dtype)) return op == AtomicOp::kMax ? Rmw::Max : Rmw::Min;
  return op == AtomicOp::kMax ? Rmw::UMax : Rmw::UMin;
}

llvm::AtomicOrdering Ordering(ir::MemoryOrder order) {
  using llvm::AtomicOrdering;
  constexpr AtomicOrdering kOrders[] = {AtomicOrdering::Monotonic, AtomicOrdering::Acquire, AtomicOrdering::Release, AtomicOrdering::AcquireRelease,
                                        AtomicOrdering::SequentiallyConsistent};
  return kOrders[size_t(order)];
}

}  // namespace

// Exchanges, comparisons, loads and stores are of bits, which every target has for integers.
Value* DeviceBase::Atomic(const AtomicForm& form, Value* ptr, Value* v, Value* compare) {
  llvm::IRBuilderBase& b = builder();
  const std::string_view name = DeviceScope();
  const llvm::SyncScope::ID scope = b.getContext().getOrInsertSyncScopeID(llvm::StringRef(name.data(), name.size()));
  const llvm::AtomicOrdering order = Ordering(form.order);
  const llvm::Align align(uint64_t(ir::Bytes(form.dtype)));
  llvm::Type* bits = b.getIntNTy(unsigned(ir::Bits(form.dtype)));
  const auto as_bits = [&](Value* value) { return b.CreateBitCast(value, bits); };
  Value* old = nullptr;
  if (form.op == AtomicOp::kLoad) {
    llvm::LoadInst* load = b.CreateAlignedLoad(bits, ptr, align);
    load->setAtomic(order, scope);
    old = load;
  } else if (form.op == AtomicOp::kExchange && !form.gives_old && form.order != ir::MemoryOrder::kAcquire && form.order != ir::MemoryOrder::kAcqRel) {
    b.CreateAlignedStore(as_bits(v), ptr, align)->setAtomic(order, scope);
  } else if (form.op == AtomicOp::kCompareExchange) {
    const llvm::AtomicOrdering failure = llvm::AtomicCmpXchgInst::getStrongestFailureOrdering(order);
    old = b.CreateExtractValue(b.CreateAtomicCmpXchg(ptr, as_bits(compare), as_bits(v), align, order, failure, scope), 0);
  } else {
    Value* operand = form.op == AtomicOp::kExchange ? as_bits(v) : v;
    const bool fenced = FenceAtomics(form.order, /*behind=*/false);
    llvm::AtomicRMWInst* atomic = b.CreateAtomicRMW(AtomicOperation(form.op, form.dtype), ptr, operand, llvm::MaybeAlign(),
                                                    fenced ? llvm::AtomicOrdering::Monotonic : order, scope);
    MarkAtomic(*atomic);
    if (fenced) FenceAtomics(form.order, /*behind=*/true);
    old = atomic;
  }
  return form.gives_old ? b.CreateBitCast(old, ValueType(b.getContext(), form.dtype)) : nullptr;
}

bool DeviceBase::FenceAtomics(ir::MemoryOrder order, bool behind) {
  if (!NeedsFences() || order == ir::MemoryOrder::kRelaxed) return false;
  using llvm::AtomicOrdering;
  const std::string_view name = DeviceScope();
  const llvm::SyncScope::ID scope = builder().getContext().getOrInsertSyncScopeID(llvm::StringRef(name.data(), name.size()));
  if (!behind && order != ir::MemoryOrder::kAcquire)
    builder().CreateFence(order == ir::MemoryOrder::kSeqCst ? AtomicOrdering::SequentiallyConsistent : AtomicOrdering::Release, scope);
  if (behind && order != ir::MemoryOrder::kRelease) builder().CreateFence(AtomicOrdering::Acquire, scope);
  return true;
}

Value* DeviceBase::PlainDp4a(Value* a, Value* b, Value* c, bool a_signed, bool b_signed) {
  llvm::IRBuilderBase& ir = builder();
  llvm::Type* bytes = llvm::FixedVectorType::get(ir.getInt8Ty(), 4);
  Value* av = ir.CreateBitCast(a, bytes);
  Value* bv = ir.CreateBitCast(b, bytes);
  for (uint64_t i = 0; i < 4; ++i) {
    Value* x = ir.CreateIntCast(ir.CreateExtractElement(av, i), ir.getInt32Ty(), a_signed);
    Value* y = ir.CreateIntCast(ir.CreateExtractElement(bv, i), ir.getInt32Ty(), b_signed);
    c = ir.CreateAdd(c, ir.CreateMul(x, y));
  }
  return c;
}

Value* Device::JoinDescriptor(Value* low, uint32_t high) {
  llvm::IRBuilderBase& ir = builder();
  return ir.CreateOr(ir.CreateZExt(low, ir.getInt64Ty()), ir.getInt64(uint64_t{high} << 32));
}

// Asked only where the target has the features that their comments name.
std::vector<llvm::Value*> Device::MmaGroup(const target::MmaInstruction&, std::span<llvm::Value* const>, std::span<llvm::Value* const>,
                                           std::span<llvm::Value* const>, bool, bool, bool, std::span<const SparseMetadata>) {
  std::abort();
}
std::vector<llvm::Value*> Device::MmaWait(std::span<llvm::Value* const>, int) { std::abort(); }
void Device::FenceAsyncProxy() { std::abort(); }
Value* Device::LoadOnce(llvm::Type* type, Value* pointer) { return builder().CreateAlignedLoad(type, pointer, llvm::Align(16)); }
void Device::StoreKept(Value* v, Value* pointer) { builder().CreateAlignedStore(v, pointer, llvm::Align(16)); }
Value* Device::AndOr(Value* v, Value* mask, Value* bits) { return builder().CreateOr(builder().CreateAnd(v, mask), bits); }
Value* Device::Vote(VoteOp, Value*) { std::abort(); }
Value* Device::WarpReduce(WarpReduceOp, DType, Value*) { std::abort(); }
void Device::PhaseInit(Value*, uint32_t) { std::abort(); }
void Device::PhaseInitFence() { std::abort(); }
bool Device::FenceAtomics(ir::MemoryOrder, bool) { return false; }
void Device::PhaseArrive(Value*, Value*) { std::abort(); }
void Device::PhaseArriveAfterCopies(Value*, bool) { std::abort(); }
void Device::PhaseArriveAt(Value*, Value*, Value*, bool) { std::abort(); }
void Device::PhaseExpect(Value*, Value*) { std::abort(); }
void Device::PhaseExpectMore(Value*, Value*) { std::abort(); }
void Device::PhaseWait(Value*, Value*, bool) { std::abort(); }
void Device::TensorLoad(Value*, Value*, std::span<Value* const>, Value*, Value*) { std::abort(); }
void Device::TensorStore(Value*, std::span<Value* const>, Value*) { std::abort(); }
void Device::TensorReduce(AtomicOp, Value*, std::span<Value* const>, Value*) { std::abort(); }
void Device::TensorStoreCommit() { std::abort(); }
void Device::TensorStoreWait(int, bool) { std::abort(); }
void Device::NamedBarrier(int, uint32_t) { std::abort(); }
void Device::NamedBarrierArrive(int, uint32_t) { std::abort(); }
void Device::SetRegisters(int, bool) { std::abort(); }
Value* Device::ElectOne() { std::abort(); }
Value* Device::BeginClaim(uint32_t) { std::abort(); }
void Device::Claim(Value*, int) { std::abort(); }
void Device::EndClaim() { std::abort(); }
void Device::StopOutside(const Outside&) { std::abort(); }
void Device::ReportUnwritten(const Outside&) { std::abort(); }
void Device::TensorPrefetch(Value*) {}
Value* Device::ClusterRank() { std::abort(); }
void Device::ClusterBarrier() { std::abort(); }
void Device::StoreAsyncAt(Value*, Value*, Value*, Value*) { std::abort(); }
Value* Device::ClusterAddress(Value*, Value*) { std::abort(); }
void Device::GridBarrier(llvm::Value*) { std::abort(); }
void Device::RaiseFlag(Value*) { std::abort(); }
void Device::TakeFlag(Value*) { std::abort(); }

}  // namespace kiln::llvm_ir
