// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <stdexcept>

#include "compiler/passes.h"
#include "compiler/plan/estimate.h"
#include "compiler/plan/sharing.h"
#include "compiler/plan/traffic.h"
#include "ir/op.h"
#include "ir/text/parse.h"
#include "ir/visit.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

ir::Module Parsed(const std::string& text) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(text, diagnostics);
  if (!module) throw std::invalid_argument(diagnostics.all()[0].message);
  return *std::move(module);
}

const target::Target& Hopper() { return **target::Find("cuda:sm_90a"); }

Estimate ExpectedOn(const target::Board& board, const std::string& text, const std::map<std::string, int64_t>& symbols = {},
                    std::string_view target = "cuda:sm_90a", const v1::CompileOptions& options = {}) {
  ir::Module module = Parsed(text);
  const Context context{*target::Find(target), options};
  ir::Diagnostics diagnostics;
  v1::WorkerResult result;
  if (!RunPasses(module, context, {}, {}, diagnostics, result)) throw std::invalid_argument(diagnostics.all()[0].message);
  return EstimateOf(module, context, board, symbols);
}

Estimate Expected(const std::string& text, std::string_view board = {}, const std::map<std::string, int64_t>& symbols = {},
                  std::string_view target = "cuda:sm_90a", const v1::CompileOptions& options = {}) {
  return ExpectedOn(target::BoardOf(**target::Find(target), board), text, symbols, target, options);
}

std::string Product(int64_t m, int64_t n, int64_t k, int64_t block_m, int64_t block_n, int64_t stages, int64_t threads = 256) {
  return fmt::format(
      R"(kiln 1
func @f(%A: global bf16[{0}, {2}], %B: global bf16[{1}, {2}], %C: global bf16[{0}, {1}]) outputs(2) {{
  kernel @k grid({5}, {6}) threads {8} blocks(%bx, %by) {{
    %c = alloc fragment f32[{3}, {4}]
    %a = alloc shared bf16[{3}, 64]
    %b = alloc shared bf16[{4}, 64]
    fill %c[0, 0; {3}, {4}] = 0.0
    for pipelined %ko in {7} stages {9} {{
      copy %A[%by * {3}, %ko * 64; {3}, 64] -> %a[0, 0; {3}, 64]
      copy %B[%bx * {4}, %ko * 64; {4}, 64] -> %b[0, 0; {4}, 64]
      gemm %a[0, 0; {3}, 64], %b[0, 0; {4}, 64] -> %c[0, 0; {3}, {4}] transpose_b
    }}
    copy %c[0, 0; {3}, {4}] -> %C[%by * {3}, %bx * {4}; {3}, {4}]
  }}
}}
)",
      m, n, k, block_m, block_n, (n + block_n - 1) / block_n, (m + block_m - 1) / block_m, k / 64, threads, stages);
}

// y = 2 · x, rows of `pitch` elements.
std::string Scale(int64_t rows, int64_t columns, int64_t threads) {
  return fmt::format(
      R"(kiln 1
func @f(%x: global f32[{0}, {1}], %y: global f32[{0}, {1}]) outputs(1) {{
  kernel @k grid({0}) threads {2} blocks(%b) {{
    for parallel %i in {1} {{
      store %y[%b, %i] = %x[%b, %i] * 2.0
    }}
  }}
}}
)",
      rows, columns, threads);
}

double UnitOf(const Estimate& estimate, Unit unit) { return estimate.kernels.front().units[size_t(unit)]; }

TEST(Boards, EachTargetHasItsOwn) {
  for (const target::Target& target : target::All()) {
    EXPECT_EQ(target::MachineOf(target).arch, target.arch);
    EXPECT_EQ(target::BoardOf(target).arch, target.arch);
    EXPECT_EQ(target::BoardOf(target, "no such board").name, target::BoardOf(target).name);
  }
  EXPECT_EQ(target::BoardOf(Hopper(), "NVIDIA H100 80GB HBM3").name, "NVIDIA H100 80GB HBM3");
}

TEST(Scalars, KnowWhatFollowsFromVariables) {
  ir::Module module = Parsed(Scale(8, 64, 32));
  const ir::VarId block = module.kernels[0].block_vars[0];
  ir::ExprPool& pool = module.exprs;
  const ir::ExprId var = module.VarRef(block);
  const ir::DType type = module[block].dtype;
  const ir::ExprId sum = pool.Make(ir::ExprOp::kFloorMod, {pool.Sub(var, pool.Int(7, type)), pool.Int(5, type)});
  Scalars scalars(module);
  EXPECT_EQ(scalars.Of(sum), std::nullopt);
  scalars.Set(block, 4);
  EXPECT_EQ(scalars.Of(sum), 2);
  scalars.Set(block, 7);
  EXPECT_EQ(scalars.Of(sum), 0);
}

// Products take the time of the matrix unit, whatever the program calls itself; twice the steps take twice as long.
// Programs that reach beyond what the planner can compute end with a figure.
TEST(Estimate, NumbersMayNotFit) {
  const auto program = [](const char* before, const char* element, const char* end) {
    return fmt::format(
        "kiln 1\nfunc @f[%n: i64](%A: global f32[%n]) {{\n  kernel @k grid(264) threads 64 blocks(%b) {{\n    %s = alloc shared f32[256]\n{}"
        "    for parallel %i in 64 {{\n      store %s[{}] = 1.0\n    }}\n{}  }}\n}}\n",
        before, element, end);
  };
  EXPECT_GT(Expected(program("", "i32(u8(%i - 100))", "")).microseconds, 0);  // casts that wrap
  EXPECT_GT(Expected(program("    for serial %k in i32(floormod(%n << 51:i64, 4095:i64 - %n)) + 1 {\n", "%i", "    }\n")).microseconds, 0);
  std::string loops, ends;
  for (int depth = 0; depth < 12; ++depth) loops += fmt::format("    for serial %k{} in 40 {{\n", depth), ends += "    }\n";
  EXPECT_GT(Expected(program(loops.c_str(), "%i", ends.c_str())).microseconds, 1e6);  // 40^12 iterations, of which some are followed
}

TEST(Estimate, LongProductsTakeTheMatrixUnitsTime) {
  const Estimate once = Expected(Product(4096, 4096, 4096, 128, 256, 4)), twice = Expected(Product(4096, 4096, 8192, 128, 256, 4));
  const double cycles = 4096.0 * 4096 * 4096 / 2048 / 132 / 1755;  // multiply-adds in a cycle
  EXPECT_NEAR(UnitOf(once, Unit::kMatrix), cycles, cycles * 0.1);
  EXPECT_GT(once.microseconds, UnitOf(once, Unit::kMatrix));
  EXPECT_LT(once.microseconds, 1.4 * UnitOf(once, Unit::kMatrix));
  EXPECT_NEAR(twice.microseconds / once.microseconds, 2, 0.15);
}

TEST(Estimate, StagesHideTheLatencyOfCopies) {
  const double two = Expected(Product(4096, 4096, 4096, 128, 256, 2)).microseconds,
               four = Expected(Product(4096, 4096, 4096, 128, 256, 4)).microseconds;
  EXPECT_GT(two, 1.05 * four);
}

TEST(Estimate, SmallTilesReadMore) {
  const Estimate large = Expected(Product(4096, 4096, 4096, 128, 256, 3)), small = Expected(Product(4096, 4096, 4096, 64, 64, 3, 128));
  EXPECT_GT(small.kernels[0].l2_bytes, 2 * large.kernels[0].l2_bytes);
  EXPECT_GT(small.microseconds, 1.3 * large.microseconds);
}

// Of 133 tiles on 132 multiprocessors, one is shared by several blocks or takes a turn.
TEST(Estimate, OneTileTooManyTakesLonger) {
  v1::CompileOptions whole;
  whole.set_stream_k(v1::STREAM_K_NEVER);
  const auto expected = [&](int64_t tiles) {
    return Expected(Product(128 * tiles, 128, 4096, 128, 128, 4), {}, {}, "cuda:sm_90a", whole).microseconds;
  };
  EXPECT_GT(expected(133), 1.1 * expected(132));
}

// What the memory bounds goes with the board's memory.
TEST(Estimate, CopiesTakeTheMemorysTime) {
  const Estimate h200 = Expected(Scale(65536, 4096, 512), "NVIDIA H200"), h100 = Expected(Scale(65536, 4096, 512), "NVIDIA H100 80GB HBM3");
  const double bytes = 2.0 * 65536 * 4096 * 4;
  EXPECT_NEAR(h200.kernels[0].memory_bytes, bytes, 0.01 * bytes);
  EXPECT_NEAR(h200.microseconds, bytes / 4.8e6 / 0.92, 0.15 * h200.microseconds);
  EXPECT_NEAR(h100.microseconds / h200.microseconds, 4.8 / 3.35, 0.1);
}

// One thread's loads are few: too few blocks do not fill the memory.
TEST(Estimate, FewBytesUnderWayTakeTheLatency) {
  EXPECT_GT(Expected(Scale(66, 1 << 15, 1024)).microseconds, 0.5 * Expected(Scale(132, 1 << 15, 1024)).microseconds);
}

// Beyond what the board may take the clock falls, and the voltage with it; smaller tiles move more bytes and so take more.
TEST(Estimate, PowerBoundsTheClock) {
  const std::string text = Product(4096, 4096, 4096, 128, 256, 4);
  target::Board board = target::BoardOf(Hopper(), "NVIDIA H200");
  const auto of = [&](double watts, const std::string& program) {
    board.watts = watts;
    return ExpectedOn(board, program).kernels[0];
  };
  const KernelEstimate none = of(0, text), enough = of(1e6, text), little = of(100, text), half = of(50, text);
  EXPECT_EQ(none.power, 0);
  EXPECT_GT(enough.power, 0);
  EXPECT_DOUBLE_EQ(enough.microseconds, none.microseconds);
  EXPECT_DOUBLE_EQ(half.power, 2 * little.power);
  EXPECT_DOUBLE_EQ(little.microseconds - little.launch, std::sqrt((none.microseconds - none.launch) * little.power));
  EXPECT_GT(little.microseconds, none.microseconds);
  EXPECT_GT(of(100, Product(4096, 4096, 4096, 64, 128, 4)).power, 1.05 * little.power);
  EXPECT_GT(of(100, Scale(4096, 4096, 128)).power, 0) << "memory takes its part";
}

// Microseconds of one H200, whose power bounds them: a turn of blocks more costs little, and smaller tiles cost what they move.
TEST(Estimate, LargeProductsTakeWhatWasMeasured) {
  for (const auto& [rows, stages, measured] :
       {std::tuple(128, 4, 1357.2), std::tuple(144, 4, 1325.4), std::tuple(168, 3, 1311.7), std::tuple(192, 3, 1313.7)})
    EXPECT_NEAR(Expected(Product(8192, 8192, 8192, rows, 256, stages), "NVIDIA H200").microseconds, measured, 0.025 * measured) << rows << " × 256";
}

// The groups of warps of a block begin a loop in different iterations. Four of them skip 3, 2, 1 and no steps: as long as the middle two together.
TEST(Estimate, GroupsThatSkipStepsTakeLessTime) {
  const std::string text = golden::ReadFile("tests/golden/skip_steps/fast_attention.sm_90a.kiln");
  const auto matrix_of = [](const std::string& text) {
    v1::CompileOptions options;
    options.set_fast_math(true);
    const Estimate estimate = Expected(text, {}, {{"batch", 4}, {"seq_len", 1024}, {"kv_len", 1024}}, "cuda:sm_90a", options);
    return UnitOf(estimate, Unit::kMatrix);
  };
  const std::string alike = std::regex_replace(text, std::regex(" \\+ %i \\+ %kv_len"), " + %kv_len");  // all rows see the same keys
  EXPECT_NEAR(matrix_of(text) / matrix_of(alike), 1 - 1.5 / 10, 0.02) << "the blocks have 4, 8, 12 and 16 steps";
}

TEST(Estimate, DimensionsOfTheLaunchCount) {
  const std::string text = R"(kiln 1
func @f[%M](%x: global f32[%M, 1024], %y: global f32[%M, 1024]) outputs(1) {
  kernel @k grid(%M) threads 128 blocks(%b) {
    for parallel %i in 1024 {
      store %y[%b, %i] = %x[%b, %i] * 2.0
    }
  }
}
)";
  EXPECT_EQ(Expected(text).kernels[0].grid, 4096);
  EXPECT_EQ(Expected(text, {}, {{"M", 65536}}).kernels[0].grid, 65536);
  EXPECT_GT(Expected(text, {}, {{"M", 65536}}).microseconds, 4 * Expected(text).microseconds);
  EXPECT_EQ(Expected(text, {}, {{"M", 0}}).kernels[0].grid, 0);
}

// Blocks that share a multiprocessor: as many as its threads, its places, its shared memory and its registers allow.
TEST(Occupancy, TheScarcestDecides) {
  const target::Machine& machine = target::MachineOf(Hopper());
  const auto of = [](const std::string& text) { return Expected(text).kernels[0].occupancy; };
  EXPECT_EQ(of(Scale(512, 4096, 1024)).blocks, machine.threads / 1024);
  EXPECT_EQ(of(Scale(512, 4096, 32)).blocks, machine.blocks);
  const Occupancy small = of(Product(4096, 4096, 4096, 64, 64, 3, 128));
  EXPECT_GE(small.shared, 3 * 2 * 64 * 64 * 2);
  EXPECT_EQ(small.blocks, machine.shared_bytes / (small.shared + 1024));
  EXPECT_GT(small.blocks, 1);
  EXPECT_EQ(of(Product(4096, 4096, 4096, 128, 256, 4)).blocks, 1);
}

// Few threads and a large sum: what does not fit their registers is in memory.
TEST(Occupancy, RegistersAreCountedAndWhatDoesNotFitThemIsSpilled) {
  const auto of = [](int64_t block_m, int64_t block_n, uint32_t most) {
    ir::Module module = Parsed(Product(4096, 4096, 1024, block_m, block_n, 2, 128));
    v1::CompileOptions options;
    options.set_max_registers(most);
    const Context context{&Hopper(), options};
    ir::Diagnostics diagnostics;
    v1::WorkerResult result;
    if (!RunPasses(module, context, {}, {}, diagnostics, result)) throw std::invalid_argument(diagnostics.all()[0].message);
    return OccupancyOf(module, module.kernels[0], context);
  };
  const Occupancy fits = of(64, 64, 0);  // 32 words of a thread
  EXPECT_GE(fits.registers, 64);
  EXPECT_LE(fits.registers, 168);
  EXPECT_EQ(fits.spilled, 0);
  const Occupancy large = of(128, 256, 0);  // 256 words
  EXPECT_GT(large.registers, fits.registers);
  EXPECT_GE(large.spilled, 1);
  const Occupancy pinned = of(64, 64, 48);
  EXPECT_EQ(pinned.registers, 48);
  EXPECT_GE(pinned.spilled, 16);
}

TEST(Estimate, EveryTargetHasTimes) {
  for (const target::Target& target : target::All()) {
    const Estimate estimate = Expected(Product(1024, 1024, 1024, 64, 64, 2, 128), {}, {}, target.name);
    EXPECT_GT(estimate.microseconds, 2) << target.name;
    EXPECT_LT(estimate.microseconds, 2000) << target.name;
  }
}

// The store of a loop in which lane l has row l, elements of four bytes, rows of `row` bytes.
Traffic Column(ir::Space space, int64_t columns) {
  ir::Module module = Parsed(fmt::format(
      R"(kiln 1
func @f(%y: global f32[32, {0}]) {{
  kernel @k grid(1) threads 32 blocks(%b) {{
    %s = alloc shared f32[32, {0}]
    for parallel %i, %j in 32, 1 {{
      store %{1}[%i, %j] = 1.0
    }}
  }}
}}
)",
      columns, space == ir::Space::kShared ? "s" : "y"));
  for (ir::Buffer& buffer : module.buffers) {
    if (buffer.space != ir::Space::kShared) continue;
    const int64_t shape[] = {32, columns}, strides[] = {columns, 1};
    buffer.layout = ir::Layout::Strided(shape, strides);
  }
  Traffic traffic;
  ir::Walk(module.kernels[0].body, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr) return;
    const auto& store = std::get<ir::Store>(loop->body[0].op);
    const int64_t shape[] = {32, 1};
    Scalars scalars(module);
    traffic = TrafficOf(module, scalars, *loop, ir::Layout::Distributed(shape, 32, 1), store.buffer, store.indices, 1, true, 32);
  });
  return traffic;
}

TEST(Traffic, LanesOfOneBankTakeTurns) {
  EXPECT_EQ(Column(ir::Space::kShared, 32).turns, 32);
  EXPECT_EQ(Column(ir::Space::kShared, 33).turns, 1);
  EXPECT_EQ(Column(ir::Space::kShared, 16).turns, 16);
}

TEST(Traffic, EachRowIsASectorOfItsOwn) {
  EXPECT_EQ(Column(ir::Space::kGlobal, 64).sectors, 32);
  EXPECT_EQ(Column(ir::Space::kGlobal, 1).sectors, 4);
}

// Blocks of a row of tiles read the same rows of A.
TEST(Sharing, NeighboursReadTheSame) {
  ir::Module module = Parsed(Product(1024, 1024, 1024, 128, 128, 2));
  const Scalars scalars(module);
  std::vector<double> fresh;
  const auto readings = ReadingsOf(module, module.kernels[0], scalars, 8, 0);  // of the first row of tiles
  ir::Walk(module.kernels[0].body, [&](const ir::Stmt& stmt) {
    if (const auto at = readings.find(&stmt); at != readings.end()) fresh.push_back(at->second.fresh);
  });
  EXPECT_EQ(fresh, (std::vector<double>{1.0 / 8, 1}));
}

// Block b walks from tile b down to tile 0: each begins elsewhere, and all of them read the same tiles.
TEST(Sharing, WhoBeginsElsewhereReadsTheSameLater) {
  ir::Module module = Parsed(R"(
kiln 1
func @f(%x: global f32[1024, 32], %y: global f32[16, 64, 32]) outputs(1) {
  kernel @k grid(16) threads 128 blocks(%b) {
    %s = alloc shared f32[64, 32]
    for serial %i in %b + 1 {
      copy %x[(%b - %i) * 64, 0; 64, 32] -> %s[0, 0; 64, 32]
      copy %s[0, 0; 64, 32] -> %y[%b, 0, 0; 1, 64, 32]
    }
  }
}
)");
  const auto fresh_of = [&](double kept) {
    const Scalars scalars(module);
    const auto readings = ReadingsOf(module, module.kernels[0], scalars, 16, kept);
    EXPECT_EQ(readings.size(), 1U);
    return readings.begin()->second.fresh;
  };
  EXPECT_DOUBLE_EQ(fresh_of(1 << 20), 16.0 / (16 * 17 / 2));
  EXPECT_DOUBLE_EQ(fresh_of(16 * 8192 - 1), 1) << "of what they read in one iteration not all stays";
}

// The same with each block's first tile read by a statement of its own.
TEST(Sharing, StatementsOfOneLoopReadTheSame) {
  ir::Module module = Parsed(R"(
kiln 1
func @f(%x: global f32[1024, 32], %y: global f32[16, 64, 32]) outputs(1) {
  kernel @k grid(16) threads 128 blocks(%b) {
    %s = alloc shared f32[64, 32]
    copy %x[%b * 64, 0; 64, 32] -> %s[0, 0; 64, 32]
    copy %s[0, 0; 64, 32] -> %y[%b, 0, 0; 1, 64, 32]
    for serial %i in %b {
      copy %x[(%b - 1 - %i) * 64, 0; 64, 32] -> %s[0, 0; 64, 32]
      copy %s[0, 0; 64, 32] -> %y[%b, 0, 0; 1, 64, 32]
    }
  }
}
)");
  const auto readings = ReadingsOf(module, module.kernels[0], Scalars(module), 16, 1 << 20);
  EXPECT_EQ(readings.size(), 2U);
  for (const auto& [stmt, reading] : readings) EXPECT_DOUBLE_EQ(reading.fresh, 16.0 / (16 * 17 / 2));
}

}  // namespace
}  // namespace kiln::compiler
