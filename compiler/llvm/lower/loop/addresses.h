// SPDX-License-Identifier: Apache-2.0
//
// Splits the address of each access of a parallel loop into a part that all registers share, which is computed once, and a constant for
// each register.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/llvm/lower/loop/iterations.h"
#include "compiler/llvm/lower/memory.h"

namespace kiln::llvm_ir {

// Where one access of a parallel loop goes, prepared before the loop's registers are walked.
struct ElementAddress {
  ir::BufferId buffer{};
  std::vector<int64_t> registers;  // fragments: register of the loop → register of the fragment
  // Memory whose offset is linear in digits of the loop's variables: offset = base + Σ step · (digits of the register part), in bytes.
  struct Step {
    compiler::LoopDigits digits;
    int64_t bytes = 0;
    Value* value = nullptr;  // added to bytes, where a stride is not constant
    int blocked = -1;        // dimension of a shared buffer that these digits index by blocks instead of by a constant step
  };
  std::optional<compiler::SplitAccess> split;  // absent: each register has an address of its own, from `indices`
  std::vector<ir::ExprId> indices;
  bool may_be_outside = false;  // of a global buffer, without `split`
  SplitOffset base;
  Value* after = nullptr;    // shared: added after the swizzle
  Value* pointer = nullptr;  // global: the buffer plus base.variable
  std::vector<Step> steps;
  // Dimensions that may be outside of a global buffer: index = value + Σ coefficient · (digits of the register part).
  struct Check {
    Value* index;
    std::vector<std::pair<compiler::LoopDigits, int64_t>> coefficients;
    Value* limit;
    bool may_be_negative;
    Value* room = nullptr;                              // of many registers: what each adds to the index is less (32 bits, unsigned)
    int64_t ConstantAt(const ir::Indices& part) const;  // what a register adds to the index
  };
  std::vector<Check> checks;
  std::vector<ir::ExprId> unproven;  // the indices, where one of them may lie outside of its tile
};

class Addresses : Part {
 public:
  Addresses(KernelContext& context, Evaluator& evaluator, Memory& memory, Iterations& iterations)
      : Part(context),
        evaluator_(evaluator),
        memory_(memory),
        places_(memory.places()),
        shared_(memory.shared()),
        iterations_(iterations),
        loop_(iterations.loop()) {}

  // `mask`: the element is accessed only where it holds, so bounds that it implies are not checked.
  const ElementAddress& Of(ir::BufferId buffer, std::span<const ir::ExprId> indices, std::optional<ir::ExprId> mask = {});

  // Of the register's element: the offset (for shared memory before the swizzle), the pointer, and whether it is accessed (i1; nullptr:
  // always). Of an address of its own, the register's iteration is entered.
  SplitOffset OffsetAt(const ElementAddress& address, int64_t reg) const;
  Value* PointerAt(const ElementAddress& address, int64_t reg) const;
  Value* ConditionAt(const ElementAddress& address, int64_t reg) const;
  // How many of `width` neighbours from the register on are inside of a global buffer, if the first is (i32; nullptr: all of them). They count up in
  // its last dimension. With `split`.
  Value* CountAt(const ElementAddress& address, int64_t reg, int64_t width) const;
  // How many of the neighbours lie before the first element of their row, and whether any of them is inside (i1; nullptr: always). With `split`.
  struct Begin {
    Value* before;  // i32; nullptr: none
    Value* any;
  };
  Begin BeginAt(const ElementAddress& address, int64_t reg, int64_t width) const;
  // Whether the elements of all registers are inside (i1; nullptr: that takes a look at each). With `split`.
  Value* AllInside(const ElementAddress& address) const;
  // Whether two registers access the same place, as where several elements are packed into one.
  bool IsSamePlace(const ElementAddress& address, int64_t reg, int64_t other) const;

 private:
  ElementAddress Make(ir::BufferId buffer, std::span<const ir::ExprId> indices, const compiler::Facts& known);
  std::vector<int64_t> RegistersOf(ir::BufferId fragment, std::span<const ir::ExprId> indices) const;
  void MakeLinear(ElementAddress& address);
  Value* IndexAt(const ElementAddress::Check& check, int64_t reg) const;
  Value* IsInside(const ElementAddress::Check& check, int64_t reg) const;
  void MakeRoom(ElementAddress::Check& check, ir::BufferId buffer) const;
  int64_t WidthOf(ir::BufferId buffer) const;
  void MakeChecks(ElementAddress& address, std::span<const ir::ExprId> indices, const compiler::Facts& known);

  Evaluator& evaluator_;
  Memory& memory_;
  Places& places_;
  SharedMemory& shared_;
  Iterations& iterations_;
  const compiler::ThreadLoop& loop_;
  std::map<std::pair<uint32_t, std::vector<uint32_t>>, ElementAddress> addresses_;  // by buffer, and indices and mask
};

}  // namespace kiln::llvm_ir
