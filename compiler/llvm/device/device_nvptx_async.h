// SPDX-License-Identifier: Apache-2.0
//
// What an NVIDIA GPU does behind a thread's back, as inline assembly: wgmma, mbarriers, tensor copies, roles of warps. PTX ISA 8.0
// and later, chapters "Asynchronous warpgroup level matrix instructions", "mbarrier" and "Data movement and conversion".
#pragma once

#include <map>

#include "compiler/llvm/device/device_base.h"

namespace kiln::llvm_ir {

class NvptxAsyncDevice : public DeviceBase {
 public:
  void CopyAsync(llvm::Value* shared, llvm::Value* global, int bytes, llvm::Value* copied) override;
  void AsyncCommit() override;
  void AsyncWait(int pending) override;

  llvm::Value* JoinDescriptor(llvm::Value* low, uint32_t high) override;
  void ExpectDescriptors(int64_t standing) override { standing_descriptors_ = standing; }
  std::vector<llvm::Value*> MmaGroup(const target::MmaInstruction& mma, std::span<llvm::Value* const> a, std::span<llvm::Value* const> b,
                                     std::span<llvm::Value* const> c, bool clear, bool a_by_rows, bool b_by_rows,
                                     std::span<const SparseMetadata> metadata) override;
  std::vector<llvm::Value*> MmaWait(std::span<llvm::Value* const> c, int pending) override;
  std::vector<llvm::Value*> Settled(std::span<llvm::Value* const> values) override { return Tied("", values, {}); }
  void FenceAsyncProxy() override;

  void PhaseInit(llvm::Value* mbarrier, uint32_t arrivals) override;
  void PhaseInitFence() override;
  void PhaseArrive(llvm::Value* mbarrier, llvm::Value* when) override;
  void PhaseArriveAfterCopies(llvm::Value* mbarrier, bool after_accesses) override;
  void PhaseArriveAt(llvm::Value* mbarrier, llvm::Value* rank, llvm::Value* when, bool releases) override;
  void PhaseExpect(llvm::Value* mbarrier, llvm::Value* bytes) override;
  void PhaseExpectMore(llvm::Value* mbarrier, llvm::Value* bytes) override;
  void PhaseWait(llvm::Value* mbarrier, llvm::Value* parity, bool of_cluster) override;

  void TensorPrefetch(llvm::Value* map) override;
  void TensorLoad(llvm::Value* shared, llvm::Value* map, std::span<llvm::Value* const> at, llvm::Value* mbarrier, llvm::Value* multicast) override;
  void TensorStore(llvm::Value* map, std::span<llvm::Value* const> at, llvm::Value* shared) override;
  void TensorReduce(AtomicOp op, llvm::Value* map, std::span<llvm::Value* const> at, llvm::Value* shared) override;
  void TensorStoreCommit() override;
  void TensorStoreWait(int pending, bool read_only) override;

  void NamedBarrier(int id, uint32_t threads) override;
  void NamedBarrierArrive(int id, uint32_t threads) override;
  void SetRegisters(int count, bool more) override;
  llvm::Value* ElectOne() override;
  llvm::Value* ClusterRank() override;
  void ClusterBarrier() override;
  void StoreAsyncAt(llvm::Value* shared, llvm::Value* rank, llvm::Value* v, llvm::Value* mbarrier) override;
  llvm::Value* ClusterAddress(llvm::Value* shared, llvm::Value* rank) override;
  void GridBarrier(llvm::Value* counter) override;
  void RaiseFlag(llvm::Value* flag) override;
  void TakeFlag(llvm::Value* flag) override;

 protected:
  using DeviceBase::DeviceBase;
  llvm::Value* I32(int value) { return builder().getInt32(uint32_t(value)); }

 private:
  // A descriptor: its lower word is the sum of a start and a constant.
  struct Joined {
    llvm::Value* start;
    uint32_t offset, high;
  };
  class Steps;

  // Inline assembly with a result of `type` (void for none), which orders memory. Shared addresses travel as i32.
  llvm::CallInst* Asm(llvm::Type* type, const std::string& text, std::span<llvm::Value* const> inputs, bool convergent);
  void Do(const std::string& text, std::initializer_list<llvm::Value*> inputs);
  // Inline assembly whose outputs are `values`, changed in place, with more inputs behind them.
  std::vector<llvm::Value*> Tied(const std::string& text, std::span<llvm::Value* const> values, std::span<llvm::Value* const> inputs);
  llvm::Value* Address(llvm::Value* shared) { return builder().CreatePtrToInt(shared, builder().getInt32Ty()); }
  // "[$first, {$first+1, …}]" with the map and the coordinates appended to the inputs.
  std::string TensorOperand(llvm::Value* map, std::span<llvm::Value* const> at, std::vector<llvm::Value*>& inputs);

  std::map<llvm::Value*, Joined> joined_;
  int64_t standing_descriptors_ = 0;
};

}  // namespace kiln::llvm_ir
