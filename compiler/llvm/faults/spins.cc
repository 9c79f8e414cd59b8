// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/faults/spins.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/ADT/STLExtras.h>
#include <llvm/IR/InstIterator.h>
#include <llvm/Transforms/Utils/BasicBlockUtils.h>
#include <llvm/Transforms/Utils/LowerAtomic.h>
#pragma GCC diagnostic pop

#include <vector>

#include "compiler/llvm/device/device.h"

namespace kiln::llvm_ir {
namespace {

using llvm::Value;

constexpr unsigned kWord = 32;  // bits, the fewest that the GPU compares and exchanges

unsigned BitsOf(const llvm::Type* type) { return unsigned(type->getPrimitiveSizeInBits().getFixedValue()); }

// Whether ptxas makes a loop of attempts of it.
bool Spins(const llvm::AtomicRMWInst& atomic) {
  const unsigned bits = BitsOf(atomic.getType());
  if (bits < kWord) return true;
  if (atomic.getPointerAddressSpace() == kGlobalSpace || atomic.getOperation() == llvm::AtomicRMWInst::Xchg) return false;
  return !atomic.getType()->isIntegerTy(kWord);
}

// The word in memory that holds a value, and how to take it out and to put another one in.
class Word {
 public:
  Word(llvm::IRBuilder<>& b, Value* pointer, llvm::Type* type) : type_(type), bits_(BitsOf(type)) {
    address_ = pointer, word_ = b.getIntNTy(std::max(bits_, kWord));
    if (bits_ >= kWord) return;
    const llvm::DataLayout& layout = b.GetInsertBlock()->getModule()->getDataLayout();
    llvm::Type* index = layout.getIndexType(pointer->getType());
    address_ =
        b.CreateIntrinsic(llvm::Intrinsic::ptrmask, {pointer->getType(), index}, {pointer, llvm::ConstantInt::getSigned(index, -int64_t(kWord / 8))});
    Value* byte = b.CreateAnd(b.CreateTrunc(b.CreatePtrToInt(pointer, layout.getIntPtrType(pointer->getType())), word_), kWord / 8 - 1);
    shift_ = b.CreateShl(byte, 3);
    others_ = b.CreateNot(b.CreateShl(b.getInt32((1U << bits_) - 1), shift_));
  }

  llvm::IntegerType* type() const { return word_; }
  Value* address() const { return address_; }
  llvm::Align align() const { return llvm::Align(word_->getBitWidth() / 8); }

  Value* Taken(llvm::IRBuilder<>& b, Value* word) const {
    Value* part = shift_ == nullptr ? word : b.CreateTrunc(b.CreateLShr(word, shift_), b.getIntNTy(bits_));
    return b.CreateBitCast(part, type_);
  }
  Value* With(llvm::IRBuilder<>& b, Value* word, Value* value) const {
    value = b.CreateBitCast(value, b.getIntNTy(bits_));
    return shift_ == nullptr ? value : b.CreateOr(b.CreateAnd(word, others_), b.CreateShl(b.CreateZExt(value, word_), shift_));
  }

 private:
  llvm::Type* type_;
  unsigned bits_;
  llvm::IntegerType* word_;
  Value *address_, *shift_ = nullptr, *others_ = nullptr;
};

// A loop of attempts in the place of an atomic instruction:
//   word = load;  do { old = value in word; attempt = compare and exchange (word, word with the new value); } while (another thread came first)
class Loop {
 public:
  Loop(llvm::Instruction& atomic, Value* pointer, llvm::Type* type, llvm::SyncScope::ID scope)
      : b_(&atomic), place_(b_, pointer, type), scope_(scope), before_(atomic.getParent()) {
    llvm::LoadInst* first = b_.CreateAlignedLoad(place_.type(), place_.address(), place_.align());
    first->setAtomic(llvm::AtomicOrdering::Monotonic, scope);
    after_ = before_->splitBasicBlock(&atomic, "spun");
    loop_ = llvm::BasicBlock::Create(b_.getContext(), "spin", before_->getParent(), after_);
    before_->getTerminator()->setSuccessor(0, loop_);
    b_.SetInsertPoint(loop_);
    word_ = b_.CreatePHI(place_.type(), 2);
    word_->addIncoming(first, before_);
    old_ = place_.Taken(b_, word_);
  }

  llvm::IRBuilder<>& builder() { return b_; }
  Value* old() const { return old_; }
  llvm::BasicBlock* after() const { return after_; }

  void Try(Value* value) {
    constexpr auto kRelaxed = llvm::AtomicOrdering::Monotonic;
    Value* changed = place_.With(b_, word_, value);
    Value* attempt = b_.CreateAtomicCmpXchg(place_.address(), word_, changed, place_.align(), kRelaxed, kRelaxed, scope_);
    word_->addIncoming(b_.CreateExtractValue(attempt, 0), b_.GetInsertBlock());
    b_.CreateCondBr(b_.CreateExtractValue(attempt, 1), after_, loop_);
  }

 private:
  llvm::IRBuilder<> b_;
  Word place_;
  llvm::SyncScope::ID scope_;
  llvm::BasicBlock *before_, *after_, *loop_;
  llvm::PHINode* word_;
  Value* old_;
};

// What the instruction makes of the old value. The GPU's sums keep subnormal numbers of float16, where the kernel's own arithmetic flushes them
// (--fast-math): they are computed as float32, which is exact before it is rounded.
Value* Updated(llvm::IRBuilder<>& b, llvm::AtomicRMWInst& atomic, Value* old) {
  Value* operand = atomic.getValOperand();
  if (!old->getType()->isHalfTy() || !FlushesSubnormals(*atomic.getFunction()))
    return llvm::buildAtomicRMWValue(atomic.getOperation(), b, old, operand);
  const auto wide = [&](Value* value) { return b.CreateFPExt(value, b.getFloatTy()); };
  return b.CreateFPTrunc(llvm::buildAtomicRMWValue(atomic.getOperation(), b, wide(old), wide(operand)), old->getType());
}

void Write(llvm::AtomicRMWInst& atomic) {
  Loop loop(atomic, atomic.getPointerOperand(), atomic.getType(), atomic.getSyncScopeID());
  loop.Try(Updated(loop.builder(), atomic, loop.old()));
  atomic.replaceAllUsesWith(loop.old());
  atomic.eraseFromParent();
}

// Ends, too, where the value is not the one that is compared with. Attempts are relaxed: fences around the loop give it its order.
void Write(llvm::AtomicCmpXchgInst& atomic) {
  const llvm::AtomicOrdering order = atomic.getMergedOrdering();
  const llvm::SyncScope::ID scope = atomic.getSyncScopeID();
  if (llvm::isReleaseOrStronger(order)) {
    const bool total = order == llvm::AtomicOrdering::SequentiallyConsistent;
    llvm::IRBuilder<>(&atomic).CreateFence(total ? order : llvm::AtomicOrdering::Release, scope);
  }
  Loop loop(atomic, atomic.getPointerOperand(), atomic.getNewValOperand()->getType(), scope);
  llvm::IRBuilder<>& b = loop.builder();
  llvm::BasicBlock* compared = b.GetInsertBlock();
  llvm::BasicBlock* equal = llvm::BasicBlock::Create(b.getContext(), "spin.equal", compared->getParent(), loop.after());
  b.CreateCondBr(b.CreateICmpEQ(loop.old(), atomic.getCompareOperand()), equal, loop.after());
  b.SetInsertPoint(equal);
  loop.Try(atomic.getNewValOperand());

  b.SetInsertPoint(&atomic);
  llvm::PHINode* exchanged = llvm::PHINode::Create(b.getInt1Ty(), 2, "", loop.after()->begin());
  exchanged->addIncoming(b.getFalse(), compared);
  exchanged->addIncoming(b.getTrue(), equal);
  if (llvm::isAcquireOrStronger(order)) b.CreateFence(llvm::AtomicOrdering::Acquire, scope);
  Value* result = b.CreateInsertValue(llvm::PoisonValue::get(atomic.getType()), loop.old(), 0);
  atomic.replaceAllUsesWith(b.CreateInsertValue(result, exchanged, 1));
  atomic.eraseFromParent();
}

}  // namespace

void WriteSpins(llvm::Function& function) {
  std::vector<llvm::AtomicRMWInst*> updates;
  std::vector<llvm::AtomicCmpXchgInst*> exchanges;
  for (llvm::Instruction& instruction : llvm::instructions(function)) {
    if (auto* update = llvm::dyn_cast<llvm::AtomicRMWInst>(&instruction); update != nullptr && Spins(*update)) updates.push_back(update);
    auto* exchange = llvm::dyn_cast<llvm::AtomicCmpXchgInst>(&instruction);
    if (exchange != nullptr && BitsOf(exchange->getNewValOperand()->getType()) < kWord) exchanges.push_back(exchange);
  }
  // The last first: a loop parts its block, and what is behind it moves to another one.
  for (llvm::AtomicRMWInst* update : llvm::reverse(updates)) Write(*update);
  for (llvm::AtomicCmpXchgInst* exchange : llvm::reverse(exchanges)) Write(*exchange);
}

}  // namespace kiln::llvm_ir
