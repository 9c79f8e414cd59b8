// SPDX-License-Identifier: Apache-2.0
//
// What the code of a thread calls (abi.h): the instructions of the hardware.
#include "compiler/emulator/runtime/entry.h"

#include <cstring>

#include "compiler/emulator/runtime/atomic.h"
#include "compiler/emulator/runtime/check/check.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

Block& Current() { return Block::Current(); }

void Change(const AtomicCall& call, ir::DType dtype, std::byte* data, void* value) {
  const void* compare = static_cast<const uint32_t*>(value) + kWordsOfCompared;
  call.gives_old || call.op == TensorOp::kCompareExchange ? AtomicallyGivingOld(uint32_t(call.op), dtype, data, value, compare)
                                                          : Atomically(uint32_t(call.op), dtype, data, value);
}

void Move(const AsyncCopy& copy) {
  if (copy.copied > 0) std::memcpy(copy.to, copy.from, copy.copied);
  std::memset(copy.to + copy.copied, 0, copy.bytes - copy.copied);
}

struct ShuffleOperands {
  uint32_t value, lane, result;
};

struct MatrixOperands {
  std::byte* row;
  uint32_t* words;
};

// A matrix of 8 rows of 8 16-bit elements; lane l has row l / 4, columns 2 · (l % 4) and the next of each. Transposed: rows and
// columns change places. (PTX ISA, ldmatrix and stmatrix.)
struct Piece {
  uint32_t row, byte;
};
Piece PieceOf(uint32_t lane, uint32_t half, bool transpose) {
  const uint32_t major = lane / 4, minor = lane % 4 * 2 + half;
  return transpose ? Piece{minor, 2 * major} : Piece{major, 2 * minor};
}

void MoveMatrices(std::span<Thread> warp, uint32_t count, bool transpose, bool load) {
  Block& block = Current();
  const auto operands = [&](size_t lane) { return static_cast<MatrixOperands*>(warp[lane].operands); };
  for (uint32_t i = 0; i < count; ++i) {
    for (uint32_t lane = 0; lane < 32; ++lane) {
      auto* word = reinterpret_cast<std::byte*>(&operands(lane)->words[i]);
      const Access access{warp[lane].index, warp[lane].location, load ? Touch::kRead : Touch::kWrite};
      // Not transposed, both halves lie in one row.
      const uint32_t pieces = transpose ? 2 : 1, bytes = 4 / pieces;
      for (uint32_t half = 0; half < pieces; ++half) {
        const Piece piece = PieceOf(lane, half, transpose);
        std::byte *at = operands(8 * i + piece.row)->row + piece.byte, *part = word + 2 * half;
        if (block.shadow() != nullptr) CheckShared(block, access, at, bytes, bytes, load ? nullptr : part);
        std::memcpy(load ? part : at, load ? at : part, bytes);
      }
    }
  }
}

void CheckRows(std::span<Thread> warp, uint32_t count) {
  Block& block = Current();
  if (warp.size() != 32) block.Fault(FindingKind::kOperands, warp[0].location, "ldmatrix or stmatrix in a part of a warp");
  for (uint32_t lane = 0; lane < 8 * count; ++lane) {
    const auto* row = static_cast<MatrixOperands*>(warp[lane].operands)->row;
    if (reinterpret_cast<uintptr_t>(row) % 16 != 0) {
      NamedPlace at = SharedPlace(block, uint64_t(row - block.shared()), block);
      block.Fault(FindingKind::kMisaligned, {warp[lane].index, warp[lane].location},
                  block.ThreadName(warp[lane].index) + " gives ldmatrix or stmatrix a row in " + at.text + ", which is not a multiple of 16",
                  std::move(at.place));
    }
  }
}

}  // namespace

namespace calls {
extern "C" {

uint32_t kiln_emu_thread_index() { return Current().thread().index; }
uint32_t kiln_emu_block_index(uint32_t axis) { return Current().index()[axis]; }
uint32_t kiln_emu_grid_size(uint32_t axis) { return Current().grid().size[axis]; }
std::byte* kiln_emu_shared_memory() { return Current().shared(); }

void kiln_emu_barrier(uint32_t shared_only, uint32_t site, uint32_t location) { Current().Barrier(shared_only != 0, site, location); }
void kiln_emu_lanes_barrier(uint32_t first, uint32_t count, uint32_t site, uint32_t location) {
  Current().LanesBarrier(first, count, site, location);
}

uint32_t kiln_emu_shuffle_xor(uint32_t value, uint32_t mask, uint32_t site, uint32_t location) {
  Block& block = Current();
  const uint32_t lane = block.thread().index % block.grid().warp_size;
  ShuffleOperands own{value, lane ^ mask, value};
  block.MeetWarp(Meeting::kShuffle, site, location, &own, [](std::span<Thread> warp) {
    for (Thread& thread : warp) {
      auto& operands = *static_cast<ShuffleOperands*>(thread.operands);
      if (operands.lane < warp.size()) operands.result = static_cast<ShuffleOperands*>(warp[operands.lane].operands)->value;
    }
  });
  return own.result;
}

uint32_t kiln_emu_uniform(uint32_t value, uint32_t site, uint32_t location) {
  Block& block = Current();
  ShuffleOperands own{value, 0, value};
  block.MeetWarp(Meeting::kUniform, site, location, &own, [&](std::span<Thread> warp) {
    const uint32_t first = static_cast<ShuffleOperands*>(warp[0].operands)->value;
    for (Thread& thread : warp) {
      if (static_cast<ShuffleOperands*>(thread.operands)->value == first) continue;
      block.Fault(FindingKind::kNotUniform, {thread.index, location},
                  "lane " + std::to_string(thread.index - warp[0].index) +
                      " has another value than lane 0 where the compiler relies on one value for the warp");
    }
  });
  return value;
}

// PTX ISA, vote.sync: all, any, ballot.
uint32_t kiln_emu_vote(uint32_t op, uint32_t value, uint32_t site, uint32_t location) {
  ShuffleOperands own{value, 0, 0};
  Current().MeetWarp(Meeting::kVote, site, location, &own, [&](std::span<Thread> warp) {
    uint32_t ballot = 0, all = 0;
    for (size_t lane = 0; lane < warp.size(); ++lane) {
      all |= 1u << lane;
      ballot |= static_cast<ShuffleOperands*>(warp[lane].operands)->value << lane;
    }
    const uint32_t answers[] = {ballot == all, ballot != 0, ballot};
    for (Thread& thread : warp) static_cast<ShuffleOperands*>(thread.operands)->result = answers[op];
  });
  return own.result;
}

// PTX ISA, redux.sync: add, min, max, and, or, xor.
uint32_t kiln_emu_warp_reduce(uint32_t op, uint32_t is_signed, uint32_t value, uint32_t site, uint32_t location) {
  ShuffleOperands own{value, 0, 0};
  Current().MeetWarp(Meeting::kReduce, site, location, &own, [&](std::span<Thread> warp) {
    const uint32_t flip = is_signed != 0 ? 0x80000000 : 0;  // orders signed numbers as unsigned ones
    uint32_t result = static_cast<ShuffleOperands*>(warp[0].operands)->value;
    for (const Thread& thread : warp.subspan(1)) {
      const uint32_t v = static_cast<ShuffleOperands*>(thread.operands)->value;
      const bool below = (v ^ flip) < (result ^ flip);
      const uint32_t results[] = {result + v, below ? v : result, below ? result : v, result & v, result | v, result ^ v};
      result = results[op];
    }
    for (Thread& thread : warp) static_cast<ShuffleOperands*>(thread.operands)->result = result;
  });
  return own.result;
}

void kiln_emu_copy_async(std::byte* to, std::byte* from, uint32_t bytes, uint32_t copied, uint32_t location) {
  Block& block = Current();
  const AsyncCopy copy{to, from, bytes, copied, location};
  CheckStart(block, block.thread().index, copy);
  if (!block.lands_late()) Move(copy);
  block.thread().open.push_back(copy);
}

void kiln_emu_async_commit(uint32_t) {
  Thread& thread = Current().thread();
  thread.groups.push_back(std::move(thread.open));
  thread.open.clear();
}

void kiln_emu_async_wait(uint32_t pending, uint32_t) {
  Block& block = Current();
  auto& groups = block.thread().groups;
  if (groups.size() <= pending) return;
  const auto landed = groups.end() - ptrdiff_t(pending);
  for (auto group = groups.begin(); group != landed; ++group) {
    for (const AsyncCopy& copy : *group) {
      if (block.lands_late()) Move(copy);
      CheckLand(block, block.thread().index, copy);
    }
  }
  groups.erase(groups.begin(), landed);
}

void kiln_emu_load_matrix(std::byte* row, uint32_t count, uint32_t transpose, void* words, uint32_t site, uint32_t location) {
  MatrixOperands own{row, static_cast<uint32_t*>(words)};
  Current().MeetWarp(Meeting::kLoadMatrix, site, location, &own, [&](std::span<Thread> warp) {
    CheckRows(warp, count);
    MoveMatrices(warp, count, transpose != 0, true);
  });
}

void kiln_emu_store_matrix(std::byte* row, uint32_t count, uint32_t transpose, void* words, uint32_t site, uint32_t location) {
  MatrixOperands own{row, static_cast<uint32_t*>(words)};
  Current().MeetWarp(Meeting::kStoreMatrix, site, location, &own, [&](std::span<Thread> warp) {
    CheckRows(warp, count);
    MoveMatrices(warp, count, transpose != 0, false);
  });
}

void kiln_emu_matrix(uint64_t form, void* words, uint32_t site, uint32_t location) {
  Block& block = Current();
  block.MeetWarp(Meeting::kMatrix, site, location, words, [&](std::span<Thread> warp) {
    std::array<uint32_t*, 64> operands;
    for (size_t lane = 0; lane < warp.size(); ++lane) operands[lane] = static_cast<uint32_t*>(warp[lane].operands);
    std::string problem = block.matrix().Run(form, {operands.data(), warp.size()});
    if (!problem.empty()) block.Fault(FindingKind::kOperands, location, std::move(problem));
  });
}

void kiln_emu_atomic_global(uint32_t form, uint32_t dtype, std::byte* data, void* value, uint32_t location) {
  Block& block = Current();
  const uint32_t bytes = uint32_t(ir::Bits(ir::DType(dtype))) / 8;
  CheckGlobal(block, {block.thread().index, location, Touch::kAtomic}, data, bytes, bytes);
  const AtomicCall call = AtomicCall::Unpack(form);
  const bool ordered = block.grid().orders_atomics || call.IsStore() || DependsOnOrder(uint32_t(call.op), ir::DType(dtype));
  if (ordered) block.gang().AwaitTurn();
  Change(call, ir::DType(dtype), data, value);
}

void kiln_emu_atomic_shared(uint32_t form, uint32_t dtype, std::byte* data, void* value, uint32_t location) {
  Block& block = Current();
  const uint32_t bytes = uint32_t(ir::Bits(ir::DType(dtype))) / 8;
  CheckShared(block, {block.thread().index, location, Touch::kAtomic}, data, bytes, bytes);
  Change(AtomicCall::Unpack(form), ir::DType(dtype), data, value);
}

// Before an atomic that may tell a thread how far others are.
void kiln_emu_give_way(uint32_t location) { Current().gang().GiveWay(location); }
void kiln_emu_meet_global(std::byte* data, uint32_t form, uint32_t location) { Current().gang().Meet(data, AtomicCall::Unpack(form), location); }
void kiln_emu_meet_shared(std::byte* data, uint32_t form, uint32_t location) { Current().gang().Meet(data, AtomicCall::Unpack(form), location); }

// `flags`: 1 a write of `value`, 2 shared memory.
void kiln_emu_access(void* data, uint32_t bytes, uint32_t align, uint32_t flags, void* value, uint32_t location) {
  Block& block = Current();
  const bool write = (flags & 1) != 0;
  const Access access{block.thread().index, location, write ? Touch::kWrite : Touch::kRead};
  ((flags & 2) != 0 ? CheckShared : CheckGlobal)(block, access, static_cast<const std::byte*>(data), bytes, align,
                                                 write ? static_cast<const std::byte*>(value) : nullptr);
}

void kiln_emu_own(std::byte* data, uint32_t bytes, uint32_t write) { Own(Current(), data, bytes, write != 0 ? Touch::kWrite : Touch::kRead); }

void kiln_emu_allocate(uint32_t buffer) {
  Block& block = Current();
  if (block.shadow() != nullptr) block.shadow()->lives().Begin(block.thread().index, buffer);
}

// `threads`: of the block, that do the statement together.
uint32_t kiln_emu_claim_begin(uint32_t threads, uint32_t site, uint32_t location) {
  Block& block = Current();
  return block.claims().Begin(block.thread().index, threads, site, location) ? 1 : 0;
}
void kiln_emu_claim_shared(std::byte* data, uint32_t bytes) { Current().claims().Add(Current().thread().index, data, bytes, true); }
void kiln_emu_claim_global(std::byte* data, uint32_t bytes) { Current().claims().Add(Current().thread().index, data, bytes, false); }
void kiln_emu_claim_end(uint32_t) { Current().claims().End(Current().thread().index); }

void kiln_emu_time_over(uint32_t location) { Current().gang().EndByTime(location); }

// `numbers`: the indices, then the extents, `rank` of each; `bytes` of an element.
void kiln_emu_index_outside(uint32_t buffer, void* numbers, uint32_t rank, uint32_t bytes, uint32_t write, uint32_t location) {
  const auto all = std::span(static_cast<const int64_t*>(numbers), size_t{2} * rank);
  StopOutside(Current(), {"%b" + std::to_string(buffer), all.first(rank), all.last(rank), bytes, write != 0}, location);
}

// The same numbers.
void kiln_emu_unwritten(uint32_t buffer, void* numbers, uint32_t rank, uint32_t bytes, uint32_t location) {
  const auto all = std::span(static_cast<const int64_t*>(numbers), size_t{2} * rank);
  ReportUnwritten(Current(), {"%b" + std::to_string(buffer), all.first(rank), all.last(rank), bytes, /*write=*/false}, location);
}

}  // extern "C"
}  // namespace calls

std::span<const EntryPoint> EntryPoints() {
#define KILN_EMU_CALL(name, ...) {"kiln_emu_" #name, reinterpret_cast<void*>(&calls::kiln_emu_##name)},
  static const EntryPoint entries[] = {KILN_EMU_CALLS(KILN_EMU_CALL)};
#undef KILN_EMU_CALL
  return entries;
}

}  // namespace kiln::emulator
