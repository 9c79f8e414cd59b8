// SPDX-License-Identifier: Apache-2.0
//
// Where the threads that come to a statement wait for each other, and what they make visible before.
#pragma once

#include <functional>
#include <span>

#include "compiler/llvm/lower/part.h"
#include "compiler/llvm/lower/proxy_fences.h"

namespace kiln::llvm_ir {

class Barriers : Part {
 public:
  explicit Barriers(KernelContext& context);

  // A barrier of the program's or of the passes', neither of the grid nor of a cluster.
  void Wait(const ir::Stmt& barrier);
  // Between the writes and the reads of an exchange through scratch in shared memory.
  void WaitForScratch(std::span<const ir::Stmt> reduces);
  // For all that the block's threads did.
  void Wait() { Wait(/*fenced=*/true, /*by_group=*/false, /*shared_only=*/false); }
  // All threads of all blocks; `counter` as Device::GridBarrier has it.
  void WaitForGrid(Value* counter);
  void WaitForCluster();  // all threads of the cluster's blocks
  // Tensor stores read tiles from shared memory, so the block waits until the last has read. The end of the kernel waits for their writes.
  void FinishStores();

 private:
  // `by_group`: each warp group waits for its own threads only, in a kernel with producers. `shared_only`: global memory need not be ordered.
  void Wait(bool fenced, bool by_group, bool shared_only);
  void WaitOfRange();
  void WaitForOthers(const std::function<void()>& wait);
  bool IsOneWarp() const;

  ProxyFences fences_;
  bool has_wgmma_ = false;   // shared memory is read by the asynchronous proxy
  bool has_stores_ = false;  // of tensors
};

}  // namespace kiln::llvm_ir
