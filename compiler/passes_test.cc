// SPDX-License-Identifier: Apache-2.0
//
// What each pass makes of a program: tests/golden/<pass>/<program>.<arch>.kiln goes through the table up to that pass.
#include "compiler/passes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <regex>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/artifact.h"
#include "compiler/front/canonicalize.h"
#include "compiler/front/conflicts.h"
#include "compiler/front/together.h"
#include "compiler/grid/persist.h"
#include "compiler/grid/stream_k.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/tensor.h"
#include "compiler/synchronize/shared_memory.h"
#include "ir/grammar/random_module.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/visit.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

const target::Target& TargetOf(const std::filesystem::path& path) {
  const std::string arch = path.stem().extension().string().substr(1);
  const auto found = target::Find((arch.starts_with("gfx") ? "hip:" : "cuda:") + arch);
  if (!found) throw std::invalid_argument(path.string() + ": no such target");
  return **found;
}

// Programs named mma_sync_… do without wgmma and what it brings with it; those named fast_… are compiled with fast_math.
Context ContextOf(const std::filesystem::path& path) {
  Context context{&TargetOf(path), {}};
  context.options.set_disable_wgmma(path.filename().string().starts_with("mma_sync_"));
  context.options.set_fast_math(path.filename().string().starts_with("fast_"));
  return context;
}

// Throws, which ends the test, where the text is no program.
ir::Module ParsedText(std::string_view text, const std::string& origin) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(text, diagnostics);
  if (!module) throw std::invalid_argument(origin + ": " + diagnostics.all()[0].message);
  return *std::move(module);
}

ir::Module Parsed(const std::filesystem::path& path) { return ParsedText(golden::ReadFile(path), path.string()); }

// Runs the table up to `last`; the text of the module or of the first error.
std::string RunUpTo(std::string_view last, ir::Module& module, const Context& context) {
  ir::Diagnostics diagnostics;
  for (const Pass& pass : Passes()) {
    if (!pass.run(module, context, diagnostics)) return diagnostics.all()[0].message + "\n";
    if (pass.name == last) break;
  }
  return ir::Print(module);
}

class GoldenPass : public testing::TestWithParam<std::string> {};

TEST_P(GoldenPass, Programs) {
  const auto pass = std::ranges::find(Passes(), GetParam(), &Pass::name);
  bool changes = false;
  for (const auto& path : golden::Inputs(GetParam())) {
    ir::Module module = Parsed(path), before = Parsed(path);
    const std::string text = RunUpTo(GetParam(), module, ContextOf(path));
    changes |= text != RunUpTo(std::prev(pass)->name, before, ContextOf(path));
    golden::Expect(path, text);
  }
  EXPECT_TRUE(changes) << "no program under tests/golden/" << GetParam() << " shows what the pass does";
}

// Empty where the program is refused.
v1::Report ReportOf(const std::filesystem::path& path) {
  ir::Module module = Parsed(path);
  ir::Diagnostics diagnostics;
  v1::WorkerResult result;
  if (!RunPasses(module, ContextOf(path), {}, {}, diagnostics, result)) return {};
  return MakeReport(module, ContextOf(path), {}, UsersOfBuffers(module));
}

// The names of the passes that the report of the program speaks of.
std::vector<std::string> Reported(const std::filesystem::path& path) {
  std::vector<std::string> names;
  const v1::Report report = ReportOf(path);
  for (const v1::Decision& decision : report.decisions()) names.push_back(decision.pass());
  return names;
}

// What a pass does to a program, its author reads.
TEST_P(GoldenPass, Reports) {
  // These refuse, or warn.
  if (GetParam() == "together" || GetParam() == "bounds" || GetParam() == "conflicts") return;
  bool reported = false;
  for (const auto& path : golden::Inputs(GetParam())) reported |= std::ranges::count(Reported(path), GetParam()) > 0;
  EXPECT_TRUE(reported) << "no report of a program under tests/golden/" << GetParam() << " says what the pass decided";
}

// But for verify, which ir/text/text_test.cc tests, and canonicalize, which canonicalize_test.cc does.
std::vector<std::string> PassesFromUnpackOn() {
  std::vector<std::string> names;
  for (const Pass& pass : Passes().subspan(2)) names.emplace_back(pass.name);
  return names;
}

INSTANTIATE_TEST_SUITE_P(Passes, GoldenPass, testing::ValuesIn(PassesFromUnpackOn()), [](const auto& info) { return info.param; });

// Where, in what statement, what meets what, and what to try.
TEST(Passes, ConflictsTeach) {
  for (const auto& [name, line, statement, advice] :
       {std::tuple("lost_sum", 7u, "store %r[%i] = ", "T.reduce_sum"), std::tuple("copy_rows", 6u, "copy %s[0, 0; 40, 64]", "another tile")}) {
    ir::Module module = Parsed(std::string("tests/golden/conflicts/") + name + ".sm_80.kiln");
    const Context context{&TargetOf("lost_sum.sm_80.kiln"), {}};
    ir::Diagnostics diagnostics;
    ASSERT_TRUE(Canonicalize(module, context, diagnostics));
    ASSERT_FALSE(Conflicts(module, context, diagnostics));
    ASSERT_EQ(diagnostics.all().size(), 1u);
    const ir::Diagnostic& refusal = diagnostics.all()[0];
    EXPECT_EQ(refusal.kind, ir::FaultKind::kInvalid);
    EXPECT_EQ(refusal.loc.line, line);
    EXPECT_TRUE(refusal.statement.starts_with(statement)) << refusal.statement;
    EXPECT_TRUE(refusal.hint.contains(advice) && refusal.hint.contains("T.serial")) << refusal.hint;
  }
}

// What the thread decides that runs an iteration. Not of partial sums, of what an iteration keeps, or of a number that threads agree on.
TEST(Passes, TogetherWarnsOfTheThreadThatRunsAnIteration) {
  ir::Module module = Parsed("tests/golden/together/of_the_thread_that_runs_it.sm_80.kiln");
  const Context context{&TargetOf("x.sm_80.kiln"), {}};
  ir::Diagnostics diagnostics;
  ASSERT_TRUE(Canonicalize(module, context, diagnostics));
  ASSERT_TRUE(Together(module, context, diagnostics));
  std::vector<std::pair<uint32_t, std::string>> told;
  for (const ir::Diagnostic& warning : diagnostics.all()) {
    EXPECT_EQ(warning.severity, ir::Severity::kWarning);
    EXPECT_TRUE(warning.hint.contains("the loop's variables")) << warning.hint;
    const bool place = warning.message.starts_with("each iteration");
    const size_t what = place ? warning.message.find("where ") + 6 : warning.message.find("and ") + 4;
    told.emplace_back(warning.loc.line, warning.message.substr(what, warning.message.find(place ? " says" : " depends") - what));
  }
  const std::vector<std::pair<uint32_t, std::string>> expected = {
      {10, "%t"}, {13, "%own[0] + %i2"}, {17, "%i3 < %t"}, {23, "%x"}, {34, "%t * 2 + %i7"}};
  EXPECT_EQ(told, expected);
}

// Of copies that differ and that others read. Not of what each thread reads for itself, or of elements that one thread writes for all.
TEST(Passes, TogetherWarnsOfCopiesThatDiffer) {
  ir::Module module = Parsed("tests/golden/together/copies_apart.sm_80.kiln");
  const Context context{&TargetOf("x.sm_80.kiln"), {}};
  ir::Diagnostics diagnostics;
  ASSERT_TRUE(Canonicalize(module, context, diagnostics));
  ASSERT_TRUE(Together(module, context, diagnostics));
  std::vector<std::pair<uint32_t, std::string>> told;
  for (const ir::Diagnostic& warning : diagnostics.all()) {
    EXPECT_EQ(warning.severity, ir::Severity::kWarning);
    EXPECT_TRUE(warning.hint.contains("T.alloc_local")) << warning.hint;
    const size_t what = warning.message.find("and ") + 4;
    told.emplace_back(warning.loc.line, warning.message.substr(what, warning.message.find(':') - what));
  }
  const std::vector<std::pair<uint32_t, std::string>> expected = {
      {9, "%t may differ between them"}, {11, "only some store it"}, {21, "%t may differ between them"}};
  EXPECT_EQ(told, expected);
}

// Of elements of shared memory that threads of one branch write and those of the other read; not of branches with elements of their own.
TEST(Passes, TogetherWarnsOfBranchesThatRunAtTheSameTime) {
  for (const auto& [name, warnings] : {std::pair("branches_beside", 1u), std::pair("exchange_in_a_range", 0u)}) {
    ir::Module module = Parsed(std::string("tests/golden/together/") + name + ".sm_80.kiln");
    const Context context{&TargetOf("x.sm_80.kiln"), {}};
    ir::Diagnostics diagnostics;
    ASSERT_TRUE(Canonicalize(module, context, diagnostics));
    ASSERT_TRUE(Together(module, context, diagnostics));
    ASSERT_EQ(diagnostics.all().size(), warnings) << name;
    if (warnings == 0) continue;
    const ir::Diagnostic& warning = diagnostics.all()[0];
    EXPECT_EQ(warning.severity, ir::Severity::kWarning);
    EXPECT_EQ(warning.loc.line, 6u);
    EXPECT_TRUE(warning.message.contains("elements of 's'") && warning.hint.contains("[127 - %t]")) << warning.message << warning.hint;
  }
}

// Of the tile that no arrival follows; not of the one that is handed over.
TEST(Passes, SynchronizeWarnsOfWhatABranchDoesNotRelease) {
  ir::Module module = Parsed("tests/golden/synchronize/unreleased.sm_90a.kiln");
  const Context context{&TargetOf("unreleased.sm_90a.kiln"), {}};
  ir::Diagnostics diagnostics;
  for (const Pass& pass : Passes()) {
    ASSERT_TRUE(pass.run(module, context, diagnostics)) << pass.name;
    if (pass.name == "synchronize") break;
  }
  ASSERT_EQ(diagnostics.all().size(), 1u);
  const ir::Diagnostic& warning = diagnostics.all()[0];
  EXPECT_EQ(warning.severity, ir::Severity::kWarning);
  EXPECT_EQ(warning.loc.line, 10u);
  EXPECT_TRUE(warning.message.contains("'w'")) << warning.message;
}

// A plan names its row, as the text form does.
TEST(Passes, ProductsNameRowsOfTheirTarget) {
  std::set<target::Team> teams;
  std::vector<std::filesystem::path> programs = golden::Inputs("instructions");
  std::ranges::copy(golden::Inputs("tensor_copies"), std::back_inserter(programs));
  for (const auto& path : programs) {
    const Context context = ContextOf(path);
    ir::Module module = Parsed(path);
    RunUpTo("threads", module, context);
    for (const ir::Kernel& kernel : module.kernels) {
      ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
        const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
        if (gemm == nullptr) return;
        const target::MmaInstruction& row = RowOf(*gemm, *context.target);
        EXPECT_EQ(row.name, gemm->plan->instruction) << path;
        EXPECT_TRUE(row.IsScalar() || &row == target::FindMma(*context.target, row.name)) << path;
        teams.insert(row.team);
      });
    }
  }
  EXPECT_EQ(teams.size(), 3u) << "some kind of product is in none of the programs";
}

// A program of tests/golden/regions as that pass leaves it.
ir::Module WithRegions(const std::string& name, uint32_t alignment = 16) {
  const std::filesystem::path path = "tests/golden/regions/" + name + ".sm_90a.kiln";
  ir::Module module = Parsed(path);
  Context context = ContextOf(path);
  context.options.set_pointer_alignment(alignment);
  RunUpTo("regions", module, context);
  return module;
}

int64_t Views(const ir::Module& module) {
  return std::ranges::count_if(module.buffers, [](const ir::Buffer& buffer) { return buffer.view.has_value(); });
}

TEST(Passes, WhatIsNoTileStaysAsItIs) {
  for (const char* name : {"matmul", "turned", "batch", "unmasked", "computed"}) EXPECT_EQ(Views(WithRegions(name)), 3) << name;
  for (const char* name : {"live_wrap", "mask_of_halves", "other", "rows_end", "strides_of_columns", "unaligned", "written"})
    EXPECT_EQ(Views(WithRegions(name)), 2) << name;
  EXPECT_EQ(Views(WithRegions("guarded")), 1);  // the store, whose mask keeps an index inside, needs a column of B besides
  EXPECT_EQ(Views(WithRegions("alias")), 0);
  EXPECT_EQ(Views(WithRegions("matmul", 8)), 0);
}

TEST(Passes, ViewsSurviveTheirText) {
  const std::string text = ir::Print(WithRegions("batch"));
  EXPECT_EQ(ir::Print(ParsedText(text, "batch")), text);
  EXPECT_EQ(ir::Print(WithRegions("batch")), text);
}

// Pointers and masks become what a program with tiles would have become: loads by warps of their own, and a tensor store.
TEST(Passes, RegionsAreMovedByTensorCopies) {
  for (const auto& [name, tensor] : {std::pair("matmul", 3), {"turned", 3}, {"batch", 3}, {"unmasked", 3}, {"computed", 3}, {"alias", 0}}) {
    const std::filesystem::path path = std::string("tests/golden/regions/") + name + ".sm_90a.kiln";
    ir::Module module = Parsed(path);
    RunUpTo("accesses", module, ContextOf(path));
    int copies = 0, rings = 0;
    ir::Walk(module.kernels[0].body, [&](const ir::Stmt& stmt) {
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      copies += copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor;
      rings += copy != nullptr && copy->plan && copy->plan->ring;
    });
    EXPECT_EQ(copies, tensor) << name;
    EXPECT_EQ(rings, tensor == 0 ? 0 : 2) << name;
    EXPECT_EQ(module.kernels[0].producers, tensor == 0 ? 0u : 128u) << name;
    EXPECT_EQ(TensorMapsOf(module).size(), size_t(tensor)) << name;
  }
}

TEST(Passes, ReportsNameRowsOfTheTableInItsOrder) {
  size_t decisions = 0;
  for (const auto& path : golden::Inputs("threads")) {
    std::vector<size_t> rows;
    for (const std::string& name : Reported(path)) {
      rows.push_back(size_t(std::ranges::find(Passes(), name, &Pass::name) - Passes().begin()));
      EXPECT_LT(rows.back(), Passes().size()) << path << ": " << name;
    }
    EXPECT_TRUE(std::ranges::is_sorted(rows)) << path;
    decisions += rows.size();
  }
  EXPECT_GT(decisions, 50u);
}

// A wait for async copies is told of by the pass that put it there, with the statement it is for.
TEST(Passes, WaitsAreReportedByTheirPass) {
  const auto waits = [](const char* path) {
    std::set<std::pair<std::string, uint32_t>> found;
    const v1::Report report = ReportOf(path);
    for (const v1::Decision& decision : report.decisions())
      if (decision.decision().contains("async copy groups")) found.emplace(decision.pass(), decision.line());
    return found;
  };
  using Waits = std::set<std::pair<std::string, uint32_t>>;
  EXPECT_EQ(waits("tests/golden/synchronize/uncommitted.sm_80.kiln"), (Waits{{"synchronize", 6}, {"synchronize", 7}}));
  EXPECT_EQ(waits("tests/golden/synchronize/gemm.sm_80.kiln"), (Waits{{"pipeline", 8}}));
}

// Why an operand is computed in pieces depends on whether its products are in flight.
TEST(Passes, PiecesAreReportedWithTheirReason) {
  const auto reasons = [](std::string columns) {
    const std::string path = "tests/golden/split_operands/computed_operand.sm_90a.kiln";
    const std::string text = std::regex_replace(golden::ReadFile(path), std::regex(R"(\b16\b)"), columns);
    ir::Module module = ParsedText(text, path);
    RunUpTo("split_operands", module, ContextOf(path));
    std::vector<std::string> found;
    for (const ir::Decision& decision : module.kernels[0].decisions)
      if (decision.pass == "split_operands") found.push_back(decision.reason);
    return found;
  };
  EXPECT_EQ(reasons("16"), std::vector<std::string>{"a piece's product runs while the next one is computed"});
  EXPECT_EQ(reasons("8"), std::vector<std::string>{"a piece's registers are free again before the next one is computed"});
}

TEST(Passes, TwiceTheSame) {
  for (const auto& path : golden::Inputs("threads")) {
    ir::Module a = Parsed(path), b = Parsed(path);
    const Context context = ContextOf(path);
    EXPECT_EQ(RunUpTo("threads", a, context), RunUpTo("threads", b, context)) << path;
    EXPECT_EQ(MakeLaunchInfo(a, context).SerializeAsString(), MakeLaunchInfo(b, context).SerializeAsString());
  }
}

// What a program's author turns off stays off, and the rest is still inferred.
TEST(Passes, RolesAndTensorCopiesCanBeTurnedOff) {
  const std::filesystem::path path = "hopper_gemm.sm_90a.kiln";
  const auto inputs = golden::Inputs("threads");
  const auto input = std::ranges::find(inputs, path, &std::filesystem::path::filename);
  ASSERT_NE(input, inputs.end());
  const auto compile = [&](const auto& change) {
    Context context = ContextOf(*input);
    change(context.options);
    ir::Module module = Parsed(*input);
    const std::string text = RunUpTo("threads", module, context);
    return std::tuple(module.kernels[0].producers, text.contains("tensor vector"), text.contains("wgmma"));
  };
  EXPECT_EQ(compile([](v1::CompileOptions&) {}), std::tuple(128u, true, true));
  EXPECT_EQ(compile([](v1::CompileOptions& options) { options.set_disable_warp_specialization(true); }), std::tuple(0u, true, true));
  EXPECT_EQ(compile([](v1::CompileOptions& options) { options.set_disable_tma(true); }), std::tuple(0u, false, true));
  EXPECT_EQ(compile([](v1::CompileOptions& options) { options.set_pointer_alignment(8); }), std::tuple(0u, false, true));
  EXPECT_EQ(compile([](v1::CompileOptions& options) { options.set_disable_wgmma(true); }), std::tuple(0u, false, false));
}

// Blocks that wait for those with smaller numbers are not dealt tiles anew, however many they are.
TEST(Passes, StreamedBlocksStayWhatTheyAre) {
  for (const auto& path : golden::Inputs("stream_k")) {
    ir::Module module = Parsed(path);
    const Context context = ContextOf(path);
    RunUpTo("stream_k", module, context);
    ir::Kernel& kernel = module.kernels[0];
    ASSERT_TRUE(IsStreamed(kernel)) << path;
    kernel.grid = {module.exprs.Int(1024, module.exprs.Type(kernel.grid[0]))};
    ASSERT_TRUE(MayPersist(module, kernel, context)) << path;
    const std::string text = ir::Print(module);
    Persist(module, kernel, context);
    EXPECT_EQ(ir::Print(module), text) << path;
  }
}

// Whether the tiles %gathered and %copied have versions for iterations to come, in the program with `now` in place of `old`.
std::pair<bool, bool> ReadAhead(std::string text, std::string_view old, std::string_view now) {
  text.replace(text.find(old), old.size(), now);
  ir::Module module = ParsedText(text, "ahead");
  const std::string after = RunUpTo("pipeline", module, ContextOf("ahead.sm_80.kiln"));
  const auto versions = [&](const std::string& tile) { return std::regex_search(after, std::regex(tile + " = alloc shared \\w+\\[3, ")); };
  EXPECT_NE(after.find("%gathered = alloc shared"), after.npos) << after;
  return {versions("%gathered"), versions("%copied")};
}

// What other blocks may write until the loop has waited for them is not read ahead: neither rows nor the list that says where they are.
TEST(Passes, ListsThatOtherBlocksWriteAreNotReadAhead) {
  static constexpr char kText[] = R"(kiln 1
func @f(%A: global f16[1000, 64], %rows: global i32[256], %F: global i32[4], %C: global f16[256, 128]) outputs(3) {
  kernel @k grid(4) threads 128 blocks(%b) {
    for parallel %i in 64 { store %rows[%b * 64 + %i] = %i }
    for pipelined %k in 4 stages 3 {
      %gathered = alloc shared f16[64, 64]
      %copied = alloc shared f16[64, 64]
      atomic add %F[%k] = 1 order acquire
      for parallel %i_1, %j in 64, 64 { store %gathered[%i_1, %j] = %A[%rows[%k * 64 + %i_1], %j] }
      copy %A[%rows[%k], 0; 64, 64] -> %copied[0, 0; 64, 64]
      copy %gathered[0, 0; 64, 64] -> %C[%k * 64, 0; 64, 64]
      copy %copied[0, 0; 64, 64] -> %C[%k * 64, 64; 64, 64]
    }
  }
}
)";
  EXPECT_EQ(ReadAhead(kText, "acquire", "acquire"), std::pair(false, false));
  EXPECT_EQ(ReadAhead(kText, "acquire", "relaxed"), std::pair(true, true));
  EXPECT_EQ(ReadAhead(kText, "    for parallel %i in 64 { store %rows[%b * 64 + %i] = %i }\n", ""), std::pair(true, true))
      << "nobody writes the list";
}

// Of all memory, what an iteration reads that does not come may not be there.
TEST(Passes, AllMemoryIsNotReadForIterationsThatMayNotCome) {
  static constexpr char kText[] = R"(kiln 1
func @f(%M: global f32[1125899906842624:i64], %at: global i64[4], %C: global f32[4, 512]) outputs(2) {
  kernel @k grid(1) threads 128 blocks(%b) {
    for pipelined %k in 4 stages 3 {
      if %at[%k] < 0:i64 { break }
      %gathered = alloc shared f32[256]
      %copied = alloc shared f32[256]
      for parallel %i in 256 { store %gathered[%i] = %M[%at[%k] * 4:i64 + i64(%i)] }
      copy %M[%at[%k] * 4:i64; 256] -> %copied[0; 256]
      copy %gathered[0; 256] -> %C[%k, 0; 1, 256]
      copy %copied[0; 256] -> %C[%k, 256; 1, 256]
    }
  }
}
)";
  EXPECT_EQ(ReadAhead(kText, "break", "break"), std::pair(false, false));
  EXPECT_EQ(ReadAhead(kText, "break", "continue"), std::pair(false, false));
  EXPECT_EQ(ReadAhead(kText, "      if %at[%k] < 0:i64 { break }\n", ""), std::pair(true, true));
  EXPECT_EQ(ReadAhead(kText, "1125899906842624:i64", "1048576"), std::pair(true, true)) << "a tensor";
}

// Fragments that live at other times, and those of other kernels, leave registers to products of groups of warps.
TEST(Passes, FragmentsShareRegistersOneAfterTheOther) {
  const std::filesystem::path path = "tests/golden/schedule/attention_gradients.sm_90a.kiln";
  ir::Module module = Parsed(path);
  int64_t bits = 0;
  for (uint32_t id = 0; id < module.buffers.size(); ++id) {
    if (module.buffers[id].space != ir::Space::kFragment) continue;
    int64_t size = ir::Bits(module.buffers[id].dtype);
    for (const int64_t extent : module.ShapeOf(ir::BufferId(id))) size *= extent;
    bits += size;
  }
  EXPECT_GT(bits / 32 / module.kernels[1].threads + 31, 255) << "together they would not fit";
  const std::string text = RunUpTo("instructions", module, ContextOf(path));
  size_t groups = 0;
  for (size_t at = text.find("plan { wgmma."); at != text.npos; at = text.find("plan { wgmma.", at + 1)) ++groups;
  EXPECT_EQ(groups, 5);
}

// A block goes over tiles only where its place among them finds registers: not where fragments take all, nor beside loops within loops.
TEST(Passes, BlocksWithoutRegistersForTheirPlaceStayOnOneTile) {
  const auto persists = [](std::string_view name, std::string_view old = "", std::string_view now = "") {
    const std::filesystem::path path = "tests/golden/" + std::string(name) + "/attention_gradients.sm_90a.kiln";
    std::string text = golden::ReadFile(path);
    const size_t at = text.find(old);
    EXPECT_NE(at, text.npos) << old;
    text.replace(at, old.size(), now);
    ir::Module module = ParsedText(text, path.string());
    RunUpTo("split_stores", module, ContextOf(path));
    EXPECT_EQ(module.kernels[1].producers, 128u);
    return MayPersist(module, module.kernels[1], ContextOf(path));
  };
  EXPECT_FALSE(persists("persist")) << "a loop over heads around the loop over queries";
  EXPECT_TRUE(persists("persist", "for serial %member in 2", "for serial %member in 1"));
  EXPECT_FALSE(persists("schedule", "for serial %member in 2", "for serial %member in 1"));
}

// A row is given to a cluster only where every use of it goes along it.
TEST(Passes, RowsAreSplitWhereAllGoesAlongThem) {
  const std::filesystem::path name = "long_rows.sm_90a.kiln";
  const auto inputs = golden::Inputs("layouts");
  const auto input = std::ranges::find(inputs, name, &std::filesystem::path::filename);
  ASSERT_NE(input, inputs.end());
  const auto cluster = [&](std::string_view old, std::string_view now, const char* target = "cuda:sm_90a") {
    std::string text = golden::ReadFile(*input);
    const size_t at = text.find(old);
    EXPECT_NE(at, text.npos) << old;
    text.replace(at, old.size(), now);
    ir::Module module = ParsedText(text, input->string());
    RunUpTo("instructions", module, {*target::Find(target), {}});
    return module.kernels[0].ClusterBlocks();
  };
  EXPECT_EQ(cluster("threads 512", "threads 512"), 4u);
  EXPECT_EQ(cluster("threads 512", "threads 512", "cuda:sm_80"), 1u) << "no clusters";
  EXPECT_EQ(cluster("threads 512", "threads 512 cluster(1)"), 1u) << "the program's choice";
  EXPECT_EQ(cluster("%squares[%i, %j] = %tile[%i, %j]", "%squares[%i, %j] = %tile[%i, 65535 - %j]"), 1u) << "another block's elements";
  EXPECT_EQ(cluster("* %weight[%j_1]", "* %weight[0]"), 1u) << "one block's element";
  EXPECT_EQ(cluster("-> %tile[0, 0; 1, 65536]", "-> %tile[0, 0; 1, 65536]\n    store %r[0] = %tile[0, 7]"), 1u) << "outside of loops along the row";
  EXPECT_EQ(cluster("* %scale[%i_2] *", "* %r[%bx] *"), 1u) << "what the first block stores, others read";
}

// Programs that nobody would write: whatever they are, a pass must refuse them or leave a valid module.
TEST(Passes, RandomProgramsAreRefusedOrStayValid) {
  size_t through = 0;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    for (const char* target : {"cuda:sm_75", "cuda:sm_90a", "hip:gfx942", "hip:gfx1100"}) {
      ir::Module module = ir::RandomModule(seed).Make(false);
      SCOPED_TRACE(testing::Message() << "seed " << seed << " " << target);
      Context context{*target::Find(target), {}};
      context.options.set_disable_wgmma(seed % 2 == 1);
      ir::Diagnostics diagnostics;
      v1::WorkerResult result;
      const bool passed = RunPasses(module, context, {}, {}, diagnostics, result).has_value();
      for (const ir::Diagnostic& d : diagnostics.all()) ASSERT_NE(d.kind, ir::FaultKind::kInternal) << d.message;
      through += passed;
    }
  }
  EXPECT_GT(through, 100u);
}

TEST(SharedMemory, BuffersAreAlignedAndInside) {
  for (const auto& path : golden::Inputs("threads")) {
    ir::Module module = Parsed(path);
    RunUpTo("shared_memory", module, ContextOf(path));
    for (const ir::Buffer& buffer : module.buffers) {
      if (!buffer.shared_offset) continue;
      EXPECT_EQ(*buffer.shared_offset % 128, 0) << buffer.name;
      EXPECT_LE(*buffer.shared_offset + SharedBytes(buffer), module.kernels[0].shared_bytes) << buffer.name;
    }
  }
}

// What one copy or product touches is live together.
TEST(SharedMemory, LiveBuffersDoNotOverlap) {
  size_t pairs = 0;
  for (const auto& path : golden::Inputs("threads")) {
    ir::Module module = Parsed(path);
    RunUpTo("shared_memory", module, ContextOf(path));
    const auto check = [&](const ir::Stmt& stmt) {
      std::set<ir::BufferId> touched;
      for (const Access& access : AccessesOf(module, stmt))
        if (module[access.buffer].shared_offset) touched.insert(access.buffer);
      for (const ir::BufferId one : touched) {
        for (const ir::BufferId other : touched) {
          if (one >= other) continue;
          const int64_t first = *module[one].shared_offset, second = *module[other].shared_offset;
          EXPECT_TRUE(first + SharedBytes(module[one]) <= second || second + SharedBytes(module[other]) <= first)
              << path << ": " << module[one].name << " and " << module[other].name;
          ++pairs;
        }
      }
    };
    for (const ir::Kernel& kernel : module.kernels) ir::Walk(kernel.body, check);
  }
  EXPECT_GT(pairs, 5u);
}

}  // namespace
}  // namespace kiln::compiler
