// SPDX-License-Identifier: Apache-2.0
//
// Forms of several blocks, and of warps of one block that meet apart from others.
#include "tests/emulator/instructions/conformance_kernel.h"

namespace kiln::emulator::conformance {
namespace {

using ir::DType;
using llvm_ir::AtomicOp;

constexpr uint32_t kWords = 128, kBarrier = 4 * kWords, kShared = kBarrier + 128;  // bytes; an mbarrier behind the words
constexpr uint32_t kBlocks = 2;

llvm::Value* Word(FormKernel& k, llvm::Value* base, llvm::Value* index) { return k.b.CreateGEP(k.b.getInt32Ty(), base, index); }

// Each block's words as its neighbour sees them, and what the neighbour leaves there.
void AddDistributed(std::vector<Form>& forms) {
  enum class Access { kLoad, kStore, kAdd };
  for (const auto& [name, access] :
       {std::pair{"ld.shared::cluster", Access::kLoad}, {"st.shared::cluster", Access::kStore}, {"atom.shared::cluster.add", Access::kAdd}}) {
    forms.push_back({.name = name,
                     .build =
                         [access](FormKernel& k) {
                           k.FillShared(4 * kWords, {});
                           k.device.ClusterBarrier();
                           llvm::Value* other = k.b.CreateXor(k.device.ClusterRank(), k.I32(1));
                           llvm::Value* place = Word(k, k.device.ClusterAddress(k.shared, other), k.b.CreateXor(k.thread, k.I32(5)));
                           if (access == Access::kLoad) k.Out(k.b.CreateLoad(k.b.getInt32Ty(), place));
                           if (access == Access::kStore) k.b.CreateStore(k.In(), place);
                           if (access == Access::kAdd) k.device.Atomic({AtomicOp::kAdd, DType::kI32}, place, k.In());
                           k.device.ClusterBarrier();
                           k.OutShared(4 * kWords);
                         },
                     .threads = 64,
                     .blocks = kBlocks,
                     .cluster = kBlocks,
                     .shared_bytes = kShared});
  }
}

void StartBarrier(FormKernel& k, uint32_t arrivals) {
  k.IfFirst([&] {
    k.device.PhaseInit(k.SharedByte(kBarrier), arrivals);
    k.device.PhaseInitFence();
  });
  k.device.ClusterBarrier();
}

// Block 1's threads arrive at block 0's mbarrier, behind words that they have put there.
void AddRemoteArrival(std::vector<Form>& forms) {
  forms.push_back({.name = "mbarrier.arrive.shared::cluster",
                   .build =
                       [](FormKernel& k) {
                         llvm::Value *rank = k.device.ClusterRank(), *mbarrier = k.SharedByte(kBarrier), *v = k.In();
                         StartBarrier(k, 64);
                         k.If(k.b.CreateICmpEQ(rank, k.I32(1)), [&] {
                           k.b.CreateStore(v, Word(k, k.device.ClusterAddress(k.shared, k.I32(0)), k.thread));
                           k.device.PhaseArriveAt(mbarrier, k.I32(0), nullptr);
                         });
                         k.If(k.b.CreateICmpEQ(rank, k.I32(0)), [&] { k.device.PhaseWait(mbarrier, k.I32(0)); });
                         k.device.ClusterBarrier();
                         k.If(k.b.CreateICmpEQ(rank, k.I32(0)), [&] { k.Out(k.b.CreateLoad(k.b.getInt32Ty(), Word(k, k.shared, k.thread))); });
                       },
                   .threads = 64,
                   .blocks = kBlocks,
                   .cluster = kBlocks,
                   .shared_bytes = kShared});
}

// Words that come to a block in time, counted by its mbarrier.
void AddAsyncStores(std::vector<Form>& forms) {
  for (const unsigned bits : {32u, 64u}) {
    forms.push_back({.name = "st.async.b" + std::to_string(bits),
                     .build =
                         [bits](FormKernel& k) {
                           llvm::Value *mbarrier = k.SharedByte(kBarrier), *other = k.b.CreateXor(k.device.ClusterRank(), k.I32(1));
                           k.FillShared(4 * kWords, {});
                           StartBarrier(k, 1);
                           k.IfFirst([&] { k.device.PhaseExpect(mbarrier, k.I32(int(64 * bits / 8))); });
                           llvm::Value* v = k.b.CreateZExt(k.In(), k.b.getIntNTy(bits));
                           k.device.StoreAsyncAt(k.b.CreateGEP(k.b.getIntNTy(bits), k.shared, k.b.CreateXor(k.thread, k.I32(5))), other, v, mbarrier);
                           k.device.PhaseWait(mbarrier, k.I32(0));
                           k.OutShared(4 * kWords);
                         },
                     .threads = 64,
                     .blocks = kBlocks,
                     .cluster = kBlocks,
                     .shared_bytes = kShared});
  }
}

// One box to both blocks, whose threads wait at their own mbarriers.
void AddMulticast(std::vector<Form>& forms) {
  const TensorMapSpec spec{.type = TensorType::kU32, .rank = 2, .dims = {32, 16}, .box = {32, 4}};
  forms.push_back({.name = "tensor.load.multicast",
                   .build =
                       [](FormKernel& k) {
                         llvm::Value *rank = k.device.ClusterRank(), *mbarrier = k.SharedByte(kBarrier);
                         StartBarrier(k, 1);
                         k.IfFirst([&] {
                           k.device.PhaseExpect(mbarrier, k.b.getInt32(4 * kWords));
                           k.If(k.b.CreateICmpEQ(rank, k.I32(0)), [&] {
                             llvm::Value* at[] = {k.I32(0), k.I32(6)};
                             k.device.TensorLoad(k.shared, k.map, at, mbarrier, k.b.getInt16(3));
                           });
                         });
                         k.device.PhaseWait(mbarrier, k.I32(0));
                         k.OutShared(4 * kWords);
                         k.device.ClusterBarrier();
                       },
                   .threads = 64,
                   .blocks = kBlocks,
                   .cluster = kBlocks,
                   .shared_bytes = kShared,
                   .map = spec,
                   .tensor_words = 512});
}

// Words that go round the blocks of a grid. After an even number of rounds the counter is what it was.
void AddGrid(std::vector<Form>& forms) {
  constexpr int kRounds = 4;
  forms.push_back({.name = "grid barrier",
                   .build =
                       [](FormKernel& k) {
                         llvm::Value* v = k.In();
                         for (int round = 0; round < kRounds; ++round) {
                           llvm::Value* next = k.b.CreateAnd(k.b.CreateAdd(k.block, k.I32(1)), k.I32(3));
                           const auto place = [&](llvm::Value* of) {
                             return Word(k, k.global_out,
                                         k.b.CreateAdd(k.b.CreateMul(of, k.I32(32)), k.b.CreateAdd(k.thread, k.I32(256 + round * 128))));
                           };
                           k.b.CreateStore(v, place(k.block));
                           k.device.GridBarrier(Word(k, k.global_out, k.I32(256 + kRounds * 128)));
                           v = k.b.CreateAdd(v, k.b.CreateLoad(k.b.getInt32Ty(), place(next)));
                         }
                         k.Out(v);
                       },
                   .blocks = 4,
                   .result_words = 256 + kRounds * 128 + 1});
}

// Half of the block hands words to the other half.
void AddNamedBarriers(std::vector<Form>& forms) {
  forms.push_back({.name = "barrier.cta.sync and arrive",
                   .build =
                       [](FormKernel& k) {
                         llvm::Value *first = k.b.CreateICmpULT(k.thread, k.I32(64)), *v = k.In();
                         k.If(first, [&] {
                           k.b.CreateStore(v, Word(k, k.shared, k.thread));
                           k.device.NamedBarrierArrive(3, 128);
                         });
                         k.If(k.b.CreateNot(first), [&] {
                           k.device.NamedBarrier(3, 128);
                           k.b.CreateStore(k.b.CreateLoad(k.b.getInt32Ty(), Word(k, k.shared, k.b.CreateSub(k.I32(127), k.thread))),
                                           Word(k, k.shared, k.thread));
                         });
                         k.OutShared(4 * kWords);
                       },
                   .threads = 128,
                   .shared_bytes = kShared});
  forms.push_back({.name = "elect.sync", .build = [](FormKernel& k) {  // which lane is the hardware's choice
                     llvm::Value* ballot = k.device.Vote(llvm_ir::VoteOp::kBallot, k.device.ElectOne());
                     k.Out(k.b.CreateUnaryIntrinsic(llvm::Intrinsic::ctpop, ballot));
                   }});
}

}  // namespace

void AddBlockForms(std::vector<Form>& forms) {
  AddDistributed(forms);
  AddRemoteArrival(forms);
  AddAsyncStores(forms);
  AddMulticast(forms);
  AddGrid(forms);
  AddNamedBarriers(forms);
}

}  // namespace kiln::emulator::conformance
