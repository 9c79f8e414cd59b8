// SPDX-License-Identifier: Apache-2.0
//
// Statements to test each op by. An op without a row does not compile here.
#pragma once

#include <cstddef>
#include <ostream>
#include <string_view>

namespace kiln::emulator::testing {

inline constexpr std::string_view kOneBlock = "grid(1) threads 64 blocks(%bx)";
inline constexpr std::string_view kTwoBlocks = "grid(2) threads 64 blocks(%bx)";
inline constexpr std::string_view kPair = "grid(2) threads 64 cluster(2) blocks(%bx)";

// Statements with the op. %v is 1; each operand that is an expression depends on it in one of the op's rows. TextOf (program.h) tells which
// buffers there are.
// They are written as they are printed. Every element that they say they write, they do write, whatever integers from 1 to 4 the buffers hold,
// and each element that they read and write changes for one of eight such inputs at least (access_test.cc).
struct Row {
  std::string_view op, statements;
  std::string_view kernel = kOneBlock;
  int writer = -1;  // the only block that writes all it says; −1: each does
};
inline constexpr Row kRows[] = {
    {"alloc", R"(
      %z = alloc shared f32[16]
      copy %X[%v, 0; 1, 16] -> %z[0; 16]
      copy %z[0; 16] -> %s[%v + 2, 0; 1, 16])"},
    {"for", R"(
      for serial %j in %v + 2 {
        fill %s[%v, %j + 1; 1, 2] = f32(%j)
      })"},
    {"for", R"(
      for serial %j in i32(%X[%v, %v]) {
        fill %r[%v, 0; 1, 16] = f32(%j)
      })"},
    {"for", R"(
      for unroll %j in %v + 2 {
        copy %X[%v + %j, 0; 1, 16] -> %s[%j, 0; 1, 16]
      })"},
    {"for", R"(
      for parallel %i, %j in 4, 8 {
        let %w = %X[%i, %v + %j]
        store %Y[%v + %i, %j] = %w + %s[%j // 2, %v]
      })"},
    {"for", R"(
      for parallel %i in 4 {
        for vectorized %j in %v + 3 {
          store %s[%v + %i, %v * 4 + %j] = %t[%i, %j] + %X[%v, %v]
        }
      })"},
    {"for", R"(
      for pipelined %j in %v + 3 stages 2 {
        copy %X[%v + %j, 0; 1, 16] -> %t[%v + %j, 0; 1, 16]
        copy %s[%v + %j, 0; 1, 16] -> %Y[%j, 0; 1, 16]
      })"},
    {"for", R"(
      for persistent %j in %v + 3 {
        copy %s[%v + %j, 0; 1, 16] -> %Y[%j, 0; 1, 16]
      })"},
    {"if", R"(
      if %X[%v, %v + 1] > f32(%v) + 1.0 {
        fill %s[%v, 0; 1, 16] = 5.0
      } else {
        fill %s[%v, 0; 1, 16] = 6.0
      })"},
    {"while", R"(
      %n = alloc local f32[1]
      store %n[0] = 0.0
      while %n[%v - 1] < %X[%v, %v] + f32(%v) {
        store %n[0] = %n[0] + 1.0
      }
      fill %s[%v, 0; 1, 16] = %n[0])"},
    {"let", R"(
      let %w = %X[%v, %v] + f32(%v)
      fill %r[%v, 0; 2, 16] = %w)"},
    {"store", R"(
      store %s[%v, %v + 2] = %X[%v + 1, %v] + f32(%v))"},
    {"store", R"(
      for parallel %i, %j in 4, 8 {
        store %r[%v + %i, %v + %j] = %t[%i, %v + %j] * f32(%v)
      })"},
    {"assume", R"(
      assume %X[%v, %v] > f32(%v) - 1.0)"},
    {"copy", R"(
      copy %X[%v, %v * 2; 4, 8] -> %s[%v + 1, %v + 3; 4, 8])"},
    {"copy", R"(
      copy %s[%v, %v - 1; 2, 16] -> %Y[%v + 4, %v - 1; 2, 16])"},
    {"copy", R"(
      copy %X[%v, %v + 3; 4, 4] -> %r[%v + 2, %v * 4; 4, 4])"},
    {"copy", R"(
      copy %r[%v, %v - 1; 4, 16] -> %t[%v + 2, %v - 1; 4, 16] coalesced 4)"},
    {"gemm", R"(
      gemm %a[%v, %v - 1, %v - 1; 1, 16, 16], %b[%v + 1, %v - 1, %v - 1; 1, 16, 16] -> %c[%v - 1, %v - 1; 16, 16])"},
    {"gemm", R"(
      gemm %a[%v, 0, 0; 1, 16, 16], %b[%v, 0, 0; 1, 16, 16] -> %c[%v - 1, 0; 16, 16] transpose_a transpose_b clear)"},
    {"mma", R"(
      %p = alloc local f16[9]
      %o = alloc local f16[5]
      %z = alloc local f32[5]
      fill %p[0; 9] = f16(%X[%v, %v])
      fill %o[0; 5] = f16(%X[%v + 1, %v])
      fill %z[0; 5] = %X[%v + 2, %v]
      mma %p[%v; 8], %o[%v; 4] -> %z[%v; 4] m 16 n 8 k 16
      atomic add %Y[%v, %v] = %z[%v + 1] each_thread)"},
    {"call", R"(
      call @f0(&%s[%v - 1], %X[%v, %v] + f32(%v)))"},
    {"fill", R"(
      fill %s[%v, %v + 1; 3, 4] = %X[%v, %v] + f32(%v))"},
    {"fill", R"(
      fill %r[%v * 2, %v - 1; 3, 16] = %X[%v, %v] + f32(%v))"},
    {"fill", R"(
      fill %Y[%v, %v; 3, 5] = %X[%v, %v] + f32(%v))"},
    {"reduce", R"(
      reduce sum %r[%v, %v - 1; 4, 16] -> %q[%v * 2; 4] dim 1)"},
    {"reduce", R"(
      reduce max %s[%v - 1, %v * 4; 8, 8] -> %t[%v, %v * 4; 1, 8] dim 0)"},
    {"reduce", R"(
      reduce sum %r[%v - 1, %v - 1; 8, 16] -> %q[%v - 1; 8] dim 1 accumulate)"},
    {"atomic", R"(
      for parallel %i in 8 {
        atomic add %Y[%v, %i + %v] = %X[%v, %i] + f32(%v)
      })"},
    {"atomic", R"(
      for parallel %i in 8 {
        atomic add %s[%v, %i // 4 + %v] = %X[%i, %v] + f32(%v)
      })"},
    {"atomic", R"(
      for parallel %i in 8 {
        atomic min %Y[%v, %i + %v] = %X[%v, %i] order acq_rel
      })"},
    {"atomic", R"(
      barrier cluster
      for parallel %i in 8 {
        atomic max %s[%v, %i // 4 + %v] = %X[%i, %v] + f32(%v) block %v
      }
      barrier cluster)",
     kPair, 1},
    {"barrier", R"(
      barrier)"},
    {"barrier", R"(
      barrier cluster)",
     kPair},
    {"break", R"(
      for serial %j in 5 {
        if %j > %v + 1 {
          break
        }
        fill %s[%v, 0; 1, 16] = f32(%j)
      })"},
    {"continue", R"(
      for serial %j in 5 {
        if %j > %v + 1 {
          continue
        }
        fill %s[%v, 0; 1, 16] = f32(%j)
      })"},
    {"arrive", R"(
      %e = alloc barrier i64[2] arrivals(64, 64)
      arrive %e[%v])"},
    {"arrive", R"(
      %e = alloc barrier i64[2] arrivals(64, 64)
      arrive %e[%v] block %v)",
     kPair},
    {"await", R"(
      %e = alloc barrier i64[2] arrivals(64, 64)
      await %e[%v] parity %v)"},
    {"registers", R"(
      registers 240)"},
    {"async_commit", R"(
      async_commit)"},
    {"async_wait", R"(
      async_wait 0)"},
    {"pair_sum", R"(
      gemm %a[%v, 0, 0; 1, 16, 16], %b[%v, 0, 0; 1, 16, 16] -> %c[%v - 1, 0; 16, 16]
      pair_sum %c -> %h dim 0)",
     kPair},
    {"pair_sum", R"(
      pair_sum %r)",
     kPair, 0},
    {"stream_sum", R"(
      stream_sum %r partials %P flags %F block %bx + %v - 1 owns %bx == %v parts %v)",
     kTwoBlocks, 1},
};

// The function that rows call: the block's threads add a number to each of 128 elements.
inline constexpr std::string_view kFunction = R"text(  function @f0 llvm "shift" {
    "define void @shift(ptr addrspace(3) %tile, float %by) {"
    "  %first = call i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
    "  %step = call i32 @llvm.nvvm.read.ptx.sreg.ntid.x()"
    "  br label %loop"
    "loop:"
    "  %i = phi i32 [ %first, %0 ], [ %next, %loop ]"
    "  %place = getelementptr float, ptr addrspace(3) %tile, i32 %i"
    "  %before = load float, ptr addrspace(3) %place"
    "  %after = fadd float %before, %by"
    "  store float %after, ptr addrspace(3) %place"
    "  %next = add i32 %i, %step"
    "  %more = icmp slt i32 %next, 128"
    "  br i1 %more, label %loop, label %end"
    "end:"
    "  ret void"
    "}"
    "declare i32 @llvm.nvvm.read.ptx.sreg.tid.x()"
    "declare i32 @llvm.nvvm.read.ptx.sreg.ntid.x()"
  }
)text";

// Statements with the op for the body of a pipelined loop over %k (LoopTextOf). What they do differs from one iteration to the next.
struct LoopRow {
  std::string_view op, statements;
};
inline constexpr LoopRow kLoopRows[] = {
    {"alloc", R"(
      %z = alloc shared f32[64]
      copy %X[%k, 0; 1, 64] -> %z[0; 64]
      copy %z[0; 64] -> %Y[%k, 0; 1, 64])"},
    {"for", R"(
      for parallel %i in 64 {
        store %Y[%k, %i] = f32(%a[%k, %i]) + f32(%w[%i, %k])
      })"},
    {"for", R"(
      for serial %j in %k {
        fill %s[%j, 0; 1, 64] = f32(%j) + f32(%a[%k, %j])
      })"},
    {"if", R"(
      if floormod(%k, 2) == 0 {
        fill %a[%k, 0; 1, 64] = 2.0:f16
      } else {
        fill %s[%k, 0; 1, 64] = %X[%k, 0]
      })"},
    {"while", R"(
      %n = alloc local i32[1]
      store %n[0] = 0
      while %n[0] < %k {
        store %n[0] = %n[0] + 1
        fill %s[%n[0], 0; 1, 64] = f32(%w[%k, %n[0]])
      })"},
    {"let", R"(
      let %u = f32(%w[%k, %k]) + %X[%k, 3]
      fill %s[%k, 0; 1, 64] = %u)"},
    {"store", R"(
      store %a[%k, %k] = f16(%k))"},
    {"store", R"(
      for parallel %i, %j in 8, 64 {
        store %r[%i, %j] = %r[%i, %j] + f32(%a[%i, %j]) * f32(%k)
      })"},
    {"assume", R"(
      assume %k < 6
      assume %X[%k, 0] > 0.0)"},
    {"copy", R"(
      copy %X[%k, 0; 1, 64] -> %a[2 * %k, 0; 1, 64])"},
    {"copy", R"(
      copy %a[8 * %k, 0; 8, 64] -> %s[0, 0; 8, 64])"},
    {"copy", R"(
      copy %w[8 * %k, 0; 8, 16] -> %r[0, 8 * %k; 8, 16])"},
    {"copy", R"(
      copy %a[%k, 0; 1, 64] -> %Y[%k, 0; 1, 64])"},
    {"copy", R"(
      copy %c[0, 0; 8, 16] -> %Y[0, 8 * %k; 8, 16])"},
    {"gemm", R"(
      %e = alloc fragment f32[32, 16]
      gemm %a[32 * floormod(%k, 2), 0; 32, 64], %w[0, 0; 64, 16] -> %e[0, 0; 32, 16] clear
      copy %e[16, 0; 8, 16] -> %s[0, 8 * %k; 8, 16])"},
    {"gemm", R"(
      gemm %a[0, 0; 64, 64], %a[0, 8 * %k; 64, 16] -> %c[0, 0; 64, 16])"},
    {"mma", R"(
      %p = alloc local f16[8]
      %o = alloc local f16[4]
      %z = alloc local f32[4]
      fill %p[0; 8] = %a[%k, %k]
      fill %o[0; 4] = %w[%k, %k]
      fill %z[0; 4] = %X[%k, 0]
      mma %p[0; 8], %o[0; 4] -> %z[0; 4] m 16 n 8 k 16
      atomic add %Y[%k, 0] = %z[floormod(%k, 4)] each_thread)"},
    {"call", R"(
      call @f0(&%s[%k * 64], f32(%a[%k, %k])))"},
    {"fill", R"(
      fill %s[%k, 0; 1, 64] = f32(%k))"},
    {"fill", R"(
      fill %w[0, %k; 64, 1] = f16(%k))"},
    {"fill", R"(
      fill %c[0, 0; 64, 16] = f32(%k))"},
    {"reduce", R"(
      %m = alloc fragment f32[64]
      reduce sum %c[0, 0; 64, 16] -> %m[0; 64] dim 1
      copy %m[0; 64] -> %Y[%k, 0; 1, 64])"},
    {"reduce", R"(
      reduce max %a[0, 8 * %k; 64, 16] -> %w[%k, 0; 1, 16] dim 0)"},
    {"reduce", R"(
      reduce sum %a[0, 0; 64, 16] -> %w[%k, 0; 1, 16] dim 0 accumulate)"},
    {"atomic", R"(
      for parallel %i in 64 {
        atomic add %Y[%k, floormod(%i, 8)] = f32(%a[%k, %i])
      })"},
    {"atomic", R"(
      for parallel %i in 64 {
        atomic max %s[%i // 8, %k] = f32(%w[%i, %k])
      })"},
    {"barrier", R"(
      barrier)"},
    {"break", R"(
      if %k == 4 {
        break
      })"},
    {"continue", R"(
      if floormod(%k, 3) == 1 {
        continue
      })"},
    {"arrive", R"(
      %e = alloc barrier i64[1] arrivals(1)
      arrive %e[0])"},
    {"await", R"(
      %e = alloc barrier i64[1] arrivals(1)
      await %e[0] parity 1)"},
    {"registers", R"(
      registers 240)"},
    {"async_commit", R"(
      async_commit)"},
    {"async_wait", R"(
      async_wait 0)"},
};

// An op that passes alone make: the pass behind which the program of MadeTextOf has it.
struct MadeRow {
  std::string_view op, pass, target;
};
inline constexpr MadeRow kMadeRows[] = {
    {"async_commit", "pipeline", "emu:sm_80"}, {"async_wait", "synchronize", "emu:sm_80"}, {"ring", "rings", "emu:sm_90a"},
    {"pair_sum", "split_pairs", "emu:sm_90a"}, {"stream_sum", "stream_k", "emu:sm_90a"},
};

inline void PrintTo(const Row& row, std::ostream* out) { *out << row.op << row.statements; }
inline void PrintTo(const LoopRow& row, std::ostream* out) { *out << row.op << row.statements; }
inline void PrintTo(const MadeRow& row, std::ostream* out) { *out << row.op; }

template <typename R, size_t count>
constexpr bool HasRow(const R (&rows)[count], std::string_view op) {
  for (const R& row : rows) {
    if (row.op == op) return true;
  }
  return false;
}
#define KILN_OP(number, Type, name, family, since)                                                     \
  static_assert(HasRow(kRows, name) || HasRow(kMadeRows, name), "no row tests the op " name);          \
  static_assert(HasRow(kLoopRows, name) || HasRow(kMadeRows, name), "no row puts " name " in a loop"); \
  static_assert(number != 0 || HasRow(kMadeRows, name), "no row tests what passes make of " name);
#include "ir/ops.def"

}  // namespace kiln::emulator::testing
