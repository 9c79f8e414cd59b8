// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/codec/decode.h"
#include "ir/text/print.h"

namespace kiln {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Decodes what Finish gave, so that the bytes are what is compared.
std::string TextOf(const Builder& builder) {
  auto module = builder.Finish();
  if (!module) {
    std::string text = module.error().message;
    for (const Diagnostic& d : module.error().diagnostics) text += "\n" + d.message;
    return text;
  }
  ir::Diagnostics diagnostics;
  auto decoded = ir::Decode(*module, diagnostics);
  return decoded ? ir::Print(*decoded) : diagnostics.all().front().message;
}

TEST(Builder, Gemm) {
  Builder b("gemm");
  const Expr m = b.Symbol("m");
  const Tile a = b.Tensor("A", DType::kF16, {m, 512}), w = b.Tensor("B", DType::kF16, {512, 256}), bias = b.Tensor("bias", DType::kF32, {256});
  const Tile c = b.Output("C", DType::kF16, {m, 256});
  b.Launch({.grid = {2, CeilDiv(m, 128)}, .threads = 256, .raster_panel = 4, .min_blocks = 2}, [&](Expr bx, Expr by) {
    const Tile as = b.Shared("As", DType::kF16, {128, 32}), bs = b.Shared("Bs", DType::kF16, {32, 128});
    const Tile sum = b.Fragment("sum", DType::kF32, {128, 128});
    b.Fill(sum, 0);
    b.Pipelined(16, 3, [&](Expr k) {
      b.Copy(a[by * 128, k * 32], as);
      b.Copy(w[k * 32, bx * 128], bs);
      b.Gemm(as, bs, sum, {.policy = WarpPolicy::kFullRow});
    });
    b.Parallel({128, 128}, [&](Expr i, Expr j) { b.Store(sum[i, j], Max(sum[i, j] + bias[bx * 128 + j], 0)); });
    b.Copy(sum, c[by * 128, bx * 128]);
  });
  EXPECT_THAT(b.ParameterNames(), ElementsAre("A", "B", "bias", "C"));
  EXPECT_EQ(TextOf(b), R"(kiln 1
func @gemm[%m](%A: global f16[%m, 512], %B: global f16[512, 256], %bias: global f32[256], %C: global f16[%m, 256]) outputs(3) {
  kernel @main grid(2, (%m + 127) // 128) threads 256 raster 4 min_blocks 2 blocks(%bx, %by) {
    %As = alloc shared f16[128, 32]
    %Bs = alloc shared f16[32, 128]
    %sum = alloc fragment f32[128, 128]
    fill %sum[0, 0; 128, 128] = 0.0
    for pipelined %i in 16 stages 3 {
      copy %A[%by * 128, %i * 32; 128, 32] -> %As[0, 0; 128, 32]
      copy %B[%i * 32, %bx * 128; 32, 128] -> %Bs[0, 0; 32, 128]
      gemm %As[0, 0; 128, 32], %Bs[0, 0; 32, 128] -> %sum[0, 0; 128, 128] policy full_row
    }
    for parallel %i_1, %j in 128, 128 {
      store %sum[%i_1, %j] = max(%sum[%i_1, %j] + %bias[%bx * 128 + %j], 0.0)
    }
    copy %sum[0, 0; 128, 128] -> %C[%by * 128, %bx * 128; 128, 128]
  }
}
)");
}

TEST(Builder, TensorsMayOverlap) {
  Builder b("shift");
  const Tile x = b.Tensor("x", DType::kF32, {64}), y = b.Output("y", DType::kF32, {64}), z = b.Tensor("z", DType::kF32, {64});
  b.MayAlias(x);
  b.MayAlias(y);
  b.Launch({.grid = {1}, .threads = 32}, [&](Expr) { b.Serial(64, [&](Expr i) { b.Store(y[i], x[i] + z[i]); }); });
  EXPECT_THAT(TextOf(b), HasSubstr("@shift(%x: global f32[64] may_alias, %y: global f32[64] may_alias, %z: global f32[64]) outputs(1)"));
}

TEST(Builder, AFunctionInAnotherLanguage) {
  Builder b("shifted");
  const Tile y = b.Output("y", DType::kF32, {128});
  const Function shift = b.Function(Language::kLlvm, "shift", "define void @shift(ptr %a, i32 %n, i32 %t) {\n  ret void\n}");
  b.Launch({.grid = {1}, .threads = 32, .name = "shifted"}, [&](Expr bx) {
    const Tile tile = b.Shared("tile", DType::kF32, {32});
    b.Call(shift, {{tile}, {bx + 3}, {b.Thread()}});
    b.Call(shift, {{y, bx * 2}, {3}, {b.Thread()}});
  });
  EXPECT_EQ(TextOf(b), R"text(kiln 1
func @shifted(%y: global f32[128]) outputs(0) thread(%tx) {
  function @f0 llvm "shift" {
    "define void @shift(ptr %a, i32 %n, i32 %t) {"
    "  ret void"
    "}"
  }
  kernel @shifted grid(1) threads 32 blocks(%bx) {
    %tile = alloc shared f32[32]
    call @f0(&%tile[0], %bx + 3, %tx)
    call @f0(&%y[%bx * 2], 3, %tx)
  }
}
)text");
}

TEST(Builder, AnInstructionOfEachWarp) {
  Builder b("product");
  const Tile y = b.Output("y", DType::kF32, {128});
  b.Launch({.grid = {1}, .threads = 32, .name = "product"}, [&](Expr) {
    const Tile a = b.Local("a", DType::kF16, {8}), w = b.Local("w", DType::kF16, {4}), sum = b.Local("sum", DType::kF32, {4});
    b.Fill(a, 1);
    b.Fill(w, 2);
    b.Fill(sum, 0);
    b.Mma(a, w, sum, {16, 8, 16});
    b.Store(y[b.Thread()], sum[0]);
  });
  EXPECT_EQ(TextOf(b), R"(kiln 1
func @product(%y: global f32[128]) outputs(0) thread(%tx) {
  kernel @product grid(1) threads 32 blocks(%bx) {
    %a = alloc local f16[8]
    %w = alloc local f16[4]
    %sum = alloc local f32[4]
    fill %a[0; 8] = 1.0:f16
    fill %w[0; 4] = 2.0:f16
    fill %sum[0; 4] = 0.0
    mma %a[0; 8], %w[0; 4] -> %sum[0; 4] m 16 n 8 k 16
    store %y[%tx] = %sum[0]
  }
}
)");
}

TEST(Builder, WarpGroupsWithBarriersOfTheirOwn) {
  Builder b("roles");
  const Tile x = b.Tensor("x", DType::kF32, {64, 64}), y = b.Output("y", DType::kF32, {64, 64});
  b.Launch({.grid = {1}, .threads = 256, .name = "roles"}, [&](Expr) {
    const Tile full = b.Barriers("full", {128, 1}), tile = b.Shared("tile", DType::kF32, {64, 64});
    b.If(
        b.Thread() < 128,
        [&] {
          b.Registers(40, false);
          b.CopySignalling(x, tile, full[0]);
          b.Arrive(full[0]);
        },
        [&] {
          b.Registers(232, true);
          b.Await(full[0], 0);
          b.Copy(tile, y);
        });
  });
  EXPECT_EQ(TextOf(b), R"(kiln 1
func @roles(%x: global f32[64, 64], %y: global f32[64, 64]) outputs(1) thread(%tx) {
  kernel @roles grid(1) threads 256 blocks(%bx) {
    %full = alloc barrier i64[2] arrivals(128, 1)
    %tile = alloc shared f32[64, 64]
    if %tx < 128 {
      registers 40
      copy %x[0, 0; 64, 64] -> %tile[0, 0; 64, 64] -> %full[0]
      arrive %full[0]
    } else {
      registers 232 more
      await %full[0] parity 0
      copy %tile[0, 0; 64, 64] -> %y[0, 0; 64, 64]
    }
  }
}
)");
}

TEST(Builder, OnlyParametersMayOverlap) {
  Builder b("shift"), other("other");
  const Tile x = b.Tensor("x", DType::kF32, {64}), w = b.Workspace("w", DType::kF32, {64});
  b.MayAlias(w);
  b.MayAlias(other.Tensor("x", DType::kF32, {64}));
  b.Launch({.grid = {1}, .threads = 32}, [&](Expr) {
    const Tile tile = b.Shared("tile", DType::kF32, {64});
    b.MayAlias(tile);
    b.Copy(x, tile);
  });
  const std::string text = TextOf(b);
  EXPECT_THAT(text, HasSubstr("w is no tensor parameter"));
  EXPECT_THAT(text, HasSubstr("tile is no tensor parameter"));
  EXPECT_THAT(text, HasSubstr("another builder"));
}

TEST(Builder, EveryStatement) {
  Builder b("all");
  const Expr rows = b.Symbol("rows", DType::kI64), s = b.Scalar("s", DType::kF32), n = b.Scalar("n", DType::kI32);
  const Tile x = b.Tensor("x", DType::kF32, {4, 64, 64}, {rows, 64, 1}), y = b.Tensor("y", DType::kI32, {64});
  const Tile w = b.Workspace("w", DType::kF32, {64});
  b.Launch({.grid = {4}, .threads = 64, .name = "first"}, [&](Expr bx) {
    const Tile t = b.Fragment("t", DType::kF32, {64, 64}), r = b.Fragment("r", DType::kF32, {64}), one = b.Local("one", DType::kF32, {1});
    b.Copy(x[bx, 0, 0], t);
    b.Assume(n > 0 && !(n == 7));
    b.Reduce(ReduceKind::kAbsMax, t, r, 1);
    b.Reduce(ReduceKind::kSum, t.Slice({0, 0}, {64, 64}), r, 1, false);
    b.Store(one[0], s);
    b.Store(one[0], Masked(n > 3, x[bx, 0, 0], 2));
    b.Serial(n, [&](Expr i) { b.If(i >= 3, [&] { b.Break(); }, [&] { b.Store(one[0], one[0] * 2); }); });
    b.While(one[0] < 1e3, [&] { b.Store(one[0], one[0] + 1); });
    b.Parallel({64}, [&](Expr i) {
      const Expr v = b.Let("v", Exp2(r[i] - s) / Sqrt(Abs(s)));
      b.Atomic(AtomicKind::kAdd, w[i], Select(v > 1, v, 1));
      b.Atomic(AtomicKind::kMax, y[i], Cast(DType::kI32, v) & 255);
      b.CompareExchange(y[i], 1, 2, {.order = MemoryOrder::kAcqRel});
    });
    b.Atomic(AtomicKind::kExchange, w[n], s, {.each_thread = true, .old = one[0]});
    b.AtomicLoad(w[0], one[0], MemoryOrder::kAcquire);
    b.Barrier();
    b.GridBarrier();
  });
  b.Launch({.grid = {4}, .threads = 64, .cluster = {2}, .name = "pairs"}, [&](Expr bx) {
    const Tile tile = b.Shared("tile", DType::kF32, {64}), come = b.Barriers("come", {64});
    b.ClusterBarrier();
    b.Parallel({64}, [&](Expr i) { b.Atomic(AtomicKind::kStore, tile[i], 1, {.block = 1 - FloorMod(bx, 2)}); });
    b.ArriveAt(come[0], 1 - FloorMod(bx, 2));
  });
  b.Launch({.grid = {1, 1, 1}, .threads = 32, .name = "second"}, [&](Expr, Expr, Expr) {
    b.Parallel({4, 4, 4}, [&](Expr i, Expr j, Expr k) { b.Store(x[i, j, k], Fma(s, w[k], b.Number(DType::kF32, 2))); });
    b.Unroll(2, [&](Expr i) { b.Store(y[i], FloorMod(-i, 3)); });
    b.Persistent(3, [&](Expr turn) { b.Vectorized(4, [&](Expr lane) { b.Store(y[turn * 4 + lane], turn); }); });
  });
  EXPECT_EQ(TextOf(b), R"(kiln 1
func @all[%rows: i64](%s: f32, %n: i32, %x: global f32[4, 64, 64] strides(%rows, 64, 1), %y: global i32[64]) {
  workspace %w: global f32[64]
  kernel @first grid(4) threads 64 blocks(%bx) {
    %t = alloc fragment f32[64, 64]
    %r = alloc fragment f32[64]
    %one = alloc local f32[1]
    copy %x[%bx, 0, 0; 1, 64, 64] -> %t[0, 0; 64, 64]
    assume %n > 0 && !(%n == 7)
    reduce absmax %t[0, 0; 64, 64] -> %r[0; 64] dim 1
    reduce sum %t[0, 0; 64, 64] -> %r[0; 64] dim 1 accumulate
    store %one[0] = %s
    store %one[0] = masked(%n > 3, %x[%bx, 0, 0], 2.0)
    for serial %i in %n {
      if %i >= 3 {
        break
      } else {
        store %one[0] = %one[0] * 2.0
      }
    }
    while %one[0] < 1000.0 {
      store %one[0] = %one[0] + 1.0
    }
    for parallel %i_1 in 64 {
      let %v = exp2(%r[%i_1] - %s) / sqrt(abs(%s))
      atomic add %w[%i_1] = select(%v > 1.0, %v, 1.0)
      atomic max %y[%i_1] = i32(%v) & 255
      atomic compare_exchange %y[%i_1] = 2 where 1 order acq_rel
    }
    atomic exchange %w[%n] = %s -> %one[0] each_thread
    atomic load %w[0] -> %one[0] order acquire each_thread
    barrier
    barrier grid
  }
  kernel @pairs grid(4) threads 64 cluster(2) blocks(%bx_1) {
    %tile = alloc shared f32[64]
    %come = alloc barrier i64[1] arrivals(64)
    barrier cluster
    for parallel %i_2 in 64 {
      atomic store %tile[%i_2] = 1.0 block 1 - floormod(%bx_1, 2)
    }
    arrive %come[0] block 1 - floormod(%bx_1, 2)
  }
  kernel @second grid(1, 1, 1) threads 32 blocks(%bx_2, %by, %bz) {
    for parallel %i_3, %j, %k in 4, 4, 4 {
      store %x[%i_3, %j, %k] = fma(%s, %w[%k], 2.0)
    }
    for unroll %i_4 in 2 {
      store %y[%i_4] = floormod(-%i_4, 3)
    }
    for persistent %i_5 in 3 {
      for vectorized %i_6 in 4 {
        store %y[%i_5 * 4 + %i_6] = %i_5
      }
    }
  }
}
)");
}

std::vector<Diagnostic> MistakesOf(const Builder& b) {
  auto module = b.Finish();
  EXPECT_FALSE(module);
  return module ? std::vector<Diagnostic>() : module.error().diagnostics;
}

TEST(Builder, MistakesNameTheirLine) {
  Builder b("wrong"), other("other");
  const Tile x = b.Tensor("x", DType::kF16, {64}), y = b.Tensor("y", DType::kF32, {64, b.Symbol("n")});
  const Expr foreign = other.Symbol("f");
  const unsigned line = std::source_location::current().line();
  b.Fill(x, 0);
  b.Launch({.grid = {1}}, [&](Expr bx) {
    b.Store(x[bx], x[bx] + y[bx, 0]);
    b.Store(x[bx], x[bx, 0]);
    b.Store(x[bx + foreign], 0);
    b.Store(x[bx], Expr(2) * 3);
    b.Store(x[bx * 0.5], true);
    b.Copy(x[0], y[0, 0]);
    b.Fill(y, 1);
    b.Parallel({4, 4}, [&](Expr) {});
    b.Launch({.grid = {1}}, [](Expr) {});
  });
  std::vector<std::pair<unsigned, std::string>> found;
  for (const Diagnostic& d : MistakesOf(b)) {
    EXPECT_THAT(d.file, HasSubstr("builder_test.cc"));
    found.emplace_back(d.line - line, d.message);
  }
  const auto says = [](unsigned at, const char* text) { return ::testing::Pair(at, HasSubstr(text)); };
  EXPECT_THAT(found, ElementsAre(says(1, "fill outside a kernel"), says(3, "add of f16 and f32"), says(4, "2 indices of x"), says(5, "two builders"),
                                 says(6, "numbers alone"), says(7, "the number 0.5 where i32"), says(7, "the number true where f16"),
                                 says(8, "neither operand"), says(9, "all of y, whose size is known at launch only"),
                                 says(10, "2 extents and a body of 1"), says(11, "a kernel inside a kernel")));
}

TEST(Builder, SparseGemm) {
  Builder b("sparse");
  b.Launch({.grid = {1}}, [&](Expr) {
    const Tile a = b.Shared("a", DType::kF16, {64, 32}), e = b.Shared("e", DType::kI16, {4, 64}), w = b.Shared("w", DType::kF16, {64, 64});
    b.Gemm(a, w, b.Fragment("c", DType::kF32, {64, 64}), {.clear = true, .metadata = e, .transpose_metadata = true});
  });
  EXPECT_THAT(TextOf(b), HasSubstr("gemm %a[0, 0; 64, 32], %w[0, 0; 64, 64] -> %c[0, 0; 64, 64] metadata %e[0, 0; 4, 64] transpose_metadata clear"));
}

TEST(Builder, TheVerifiersMistakesHaveLinesToo) {
  Builder b("wrong");
  const Tile x = b.Tensor("x", DType::kF16, {64, 64});
  unsigned line = 0;
  b.Launch({.grid = {1}}, [&](Expr) {
    const Tile t = b.Fragment("t", DType::kF16, {64, 64});
    line = std::source_location::current().line() + 1;
    b.Gemm(x, t, t);
  });
  const auto mistakes = MistakesOf(b);
  ASSERT_FALSE(mistakes.empty());
  EXPECT_EQ(mistakes[0].line, line);
  EXPECT_THAT(mistakes[0].message, HasSubstr("a is in global memory"));
  EXPECT_THAT(mistakes[0].statement, HasSubstr("gemm %x"));
}

TEST(Builder, NumbersFitTheirType) {
  Builder b("numbers");
  const Tile x = b.Tensor("x", DType::kI8, {8}), u = b.Tensor("u", DType::kU8, {8});
  b.Launch({.grid = {1}}, [&](Expr bx) {
    for (int fits : {-128, 127}) b.Store(x[bx], fits);
    for (int fits : {0, 255}) b.Store(u[bx], fits);
  });
  EXPECT_TRUE(b.Finish());
  for (int wrong : {-129, 128}) {
    Builder c("numbers");
    const Tile y = c.Tensor("y", DType::kI8, {8});
    c.Launch({.grid = {1}}, [&](Expr bx) { c.Store(y[bx], wrong); });
    EXPECT_THAT(MistakesOf(c).at(0).message, HasSubstr("where i8 is expected")) << wrong;
  }
}

TEST(Builder, ABodyMayThrow) {
  Builder b("throws");
  const Tile x = b.Tensor("x", DType::kF32, {8});
  EXPECT_THROW(b.Launch({.grid = {1}}, [&](Expr) { b.Serial(2, [](Expr) { throw 1; }); }), int);
  b.Launch({.grid = {8}}, [&](Expr bx) { b.Store(x[bx], 1); });
  EXPECT_TRUE(b.Finish());
}

TEST(Builder, MovedBuildersKeepTheirValues) {
  Builder first("moved");
  const Tile x = first.Tensor("x", DType::kF32, {8});
  Builder b = std::move(first);
  b.Launch({.grid = {8}}, [&](Expr bx) { b.Store(x[bx], x[bx] + 1); });
  EXPECT_THAT(TextOf(b), HasSubstr("store %x[%bx] = %x[%bx] + 1.0"));
}

}  // namespace
}  // namespace kiln
