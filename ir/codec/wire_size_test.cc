// SPDX-License-Identifier: Apache-2.0
//
// What is measured before a module is parsed is what the parsed module has and takes.
#include "ir/codec/wire_size.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ir/canonical.h"
#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/grammar/random_module.h"
#include "ir/op.h"
#include "kiln/v1/ir.pb.h"

namespace {

// What is held by `new`, as the allocator counts it, and the most since it was last set.
std::atomic<size_t> held, most_held;

#if defined(__has_feature)
#define KILN_HAS_FEATURE(name) __has_feature(name)
#else
#define KILN_HAS_FEATURE(name) 0
#endif
constexpr bool kCountsNew = !KILN_HAS_FEATURE(thread_sanitizer);  // whose own cannot be replaced

}  // namespace

#if !KILN_HAS_FEATURE(thread_sanitizer)
void* operator new(size_t bytes) {
  void* block = std::malloc(bytes);
  if (block == nullptr) throw std::bad_alloc();
  held += ::malloc_usable_size(block) + sizeof(size_t);
  most_held = std::max(most_held.load(), held.load());
  return block;
}
void operator delete(void* block) noexcept {
  if (block != nullptr) held -= ::malloc_usable_size(block) + sizeof(size_t);
  std::free(block);
}
void operator delete(void* block, size_t) noexcept { operator delete(block); }
#endif

namespace kiln::ir {
namespace {

using testing::HasSubstr;

size_t Allocated() {
  const struct mallinfo2 heap = ::mallinfo2();
  return heap.uordblks + heap.hblkhd;
}

size_t Statements(const v1::Block& block) {
  size_t count = size_t(block.stmts_size());
  for (const v1::Stmt& stmt : block.stmts()) {
    count += Statements(stmt.for_loop().body()) + Statements(stmt.while_loop().body());
    count += Statements(stmt.if_then().then_body()) + Statements(stmt.if_then().else_body());
  }
  return count;
}

TEST(WireSize, CountsWhatIsThere) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    const std::string bytes = EncodeBytes(RandomModule(seed).Make(false));
    v1::Module module;
    ASSERT_TRUE(module.ParseFromString(bytes));
    const ModuleSize size = MeasureModule(bytes);
    EXPECT_EQ(size.variables, size_t(module.vars_size()));
    EXPECT_EQ(size.buffers, size_t(module.buffers_size()));
    EXPECT_EQ(size.expressions, size_t(module.exprs_size()));
    EXPECT_EQ(size.parameters, size_t(module.params_size()));
    EXPECT_EQ(size.kernels, size_t(module.kernels_size()));
    EXPECT_EQ(size.files, size_t(module.debug().files_size()));
    size_t statements = 0;
    for (const v1::Kernel& kernel : module.kernels()) statements += Statements(kernel.body());
    EXPECT_EQ(size.statements, statements);
    EXPECT_GE(size.memory, module.SpaceUsedLong());
    EXPECT_LE(size.memory, 4 * module.SpaceUsedLong());
  }
}

TEST(WireSize, StatementsWithinStatementsAreNesting) {
  v1::Module module;
  v1::Block* block = module.add_kernels()->mutable_body();
  for (int i = 0; i < 7; ++i) block = block->add_stmts()->mutable_while_loop()->mutable_body();
  module.mutable_kernels(0)->mutable_body()->add_stmts();
  EXPECT_EQ(MeasureModule(module.SerializeAsString()).nesting, 7u);
}

std::string Repeated(std::string_view piece, size_t bytes) {
  std::string all;
  while (all.size() < bytes) all += piece;
  return all;
}

std::string Field(int number, const std::string& bytes) {
  std::string field(1, char(number << 3 | 2));
  for (size_t rest = bytes.size();; rest >>= 7) {
    field += char(rest < 0x80 ? rest : rest | 0x80);
    if (rest < 0x80) return field + bytes;
  }
}

struct Hostile {
  const char* name;
  std::string bytes;
};

std::vector<Hostile> AllHostile() {
  constexpr size_t kBytes = 256 << 10;
  using std::string_view;
  const auto empty = [](int number) { return Repeated({std::string{char(number << 3 | 2), '\0'}}, kBytes); };
  std::string names;
  for (int i = 0; i < 40'000; ++i) {
    v1::Module one;
    (*one.mutable_op_names())[uint32_t(i)] = "";
    names += one.SerializeAsString();
  }
  return {{"params", empty(2)},
          {"vars", empty(3)},
          {"buffers", empty(4)},
          {"exprs", empty(5)},
          {"kernels", empty(6)},
          {"op names", names},
          {"statements", Field(6, Field(5, empty(1)))},
          {"regions", Field(6, Field(5, Repeated(Field(1, Field(8, Field(1, "\x12\x01\x01\x1a\x01\x01"))), kBytes)))},
          {"files", Field(15, empty(1))},
          {"locations", Field(15, empty(2))},
          {"names", Field(15, empty(3))},
          {"unknown numbers", Repeated("\xa0\x06\x01", kBytes)},
          {"unknown bytes", Repeated(string_view("\xa2\x06\x00", 3), kBytes)},
          {"unknown groups", Repeated("\xa3\x06\xa4\x06", kBytes)},
          {"unknown fields of messages", Repeated(string_view("\x2a\x03\xa2\x06\x00", 5), kBytes)},
          {"numbers for strings", Field(15, Repeated(string_view("\x08\x00", 2), kBytes))},
          {"numbers for messages", Repeated(string_view("\x28\x00", 2), kBytes)},
          {"whole numbers for a float", Field(5, Repeated(string_view("\x28\x00", 2), kBytes))},
          {"four bytes for a whole number", Repeated(string_view("\x0d\0\0\0\0", 5), kBytes)},
          {"eight bytes for a list's", Field(5, Repeated(string_view("\x19\0\0\0\0\0\0\0\0", 9), kBytes))},
          {"bytes for a number", Repeated(string_view("\x0a\x00", 2), kBytes)},
          {"arguments", Field(5, Field(3, std::string(kBytes, '\1')))},
          {"arguments one by one", Field(5, Repeated("\x18\x01", kBytes))},
          {"arguments of many", Repeated("\x2a\x03\x1a\x01\x01", kBytes)},
          {"extents of 64 bits", Field(6, Field(5, Field(1, Field(10, Field(1, Field(3, std::string(kBytes, '\1')))))))}};
}

TEST(WireSize, NoBytesTakeMoreThanIsMeasured) {
  for (const Hostile& hostile : AllHostile()) {
    const size_t measured = MeasureModule(hostile.bytes).memory;
    const size_t before = Allocated();
    auto module = std::make_unique<v1::Module>();
    EXPECT_TRUE(module->ParseFromString(hostile.bytes)) << hostile.name;
    const size_t taken = Allocated() - before;
    EXPECT_GT(taken, hostile.bytes.size()) << hostile.name;
    EXPECT_GE(measured + 8192, taken) << hostile.name << ", but for the pages of what is mapped";
  }
}

// One field of one message, in each form that any field may be sent in.
std::vector<std::string> AllForms(int number, size_t bytes) {
  const char key = char(number << 3);
  const auto piece = [&](int wire, size_t zeros) { return Repeated(std::string(1, char(key | wire)) + std::string(zeros, '\0'), bytes); };
  return {piece(0, 1), piece(1, 8), piece(2, 1), Repeated(std::string{char(key | 3), char(key | 4)}, bytes), piece(5, 4)};
}

TEST(WireSize, NoFieldInAnyFormTakesMoreThanIsMeasured) {
  const auto nothing = [](std::string bytes) { return bytes; };
  const auto within = [](auto... numbers) {
    return [=](std::string bytes) {
      for (const int number : {numbers...}) bytes = Field(number, bytes);
      return bytes;
    };
  };
  const std::pair<const google::protobuf::Descriptor*, std::function<std::string(std::string)>> places[] = {
      {v1::Module::descriptor(), nothing},       {v1::Expr::descriptor(), within(5)},      {v1::Buffer::descriptor(), within(4)},
      {v1::Var::descriptor(), within(3)},        {v1::Param::descriptor(), within(2)},     {v1::Kernel::descriptor(), within(6)},
      {v1::Stmt::descriptor(), within(1, 5, 6)}, {v1::DebugInfo::descriptor(), within(15)}};
  for (const auto& [type, place] : places) {
    for (int i = 0; i < type->field_count() && type->field(i)->number() < 16; ++i) {
      int form = 0;
      for (const std::string& bytes : AllForms(type->field(i)->number(), 64 << 10)) {
        const std::string sent = place(bytes);
        const size_t measured = MeasureModule(sent).memory;
        const size_t before = Allocated();
        auto module = std::make_unique<v1::Module>();
        (void)module->ParseFromString(sent);
        EXPECT_GE(measured + 8192, Allocated() - before) << type->field(i)->full_name() << ", form " << form;
        ++form;
      }
    }
  }
}

struct Taken {
  size_t most, kept;
};

// By decoding and by the key's bytes, and by the module that stays of it.
Taken ByDecoding(const std::string& sent) {
  Diagnostics diagnostics;
  const size_t before = most_held = held.load();
  const auto module = DecodeModule(sent, diagnostics);
  const size_t kept = held - before;
  EXPECT_TRUE(module && !CanonicalBytes(*module).empty()) << (module ? "" : diagnostics.all().front().message);
  return {most_held - before, kept};
}

// What the program itself takes, for both forms.
TEST(WireSize, NoProgramTakesMoreThanIsMeasured) {
  if (!kCountsNew) GTEST_SKIP() << "a sanitizer's own memory";
  const auto text = [](size_t count, const std::function<std::string(size_t)>& statement) {
    std::string all = "kiln 1\nfunc @f(%A: global f32[64]) thread(%t) {\nkernel @k grid(1) threads 32 blocks(%b) {\n";
    for (size_t i = 0; i < count; ++i) all += statement(i) + "\n";
    return all + "}\n}\n";
  };
  const auto number = [](size_t i) { return std::to_string(i); };
  // Just after what holds it has grown.
  const auto negated = [&](size_t i) { return "if" + Repeated("-~", 240) + "(%b+" + number(i + 1) + "){}"; };
  const std::string texts[] = {
      text(99'000, [](size_t) { return "barrier"; }),
      text(65'537, [](size_t) { return "break"; }),
      text(65'537, [](size_t) { return "if%b{}"; }),
      text(542, negated),
      text(980, negated),
      text(40'000, [](size_t) { return "fill %A[0; 1] = 1.0"; }),
      text(30'000, [](size_t) { return "for serial %i in 9 { barrier }"; }),
      text(49'000, [&](size_t i) { return "let %v" + number(i) + " = %t + " + number(i); }),
      text(9'000, [&](size_t i) { return "%v" + number(i) + " = alloc shared f32[64]"; }),
      text(20'000, [&](size_t i) { return "assume %t * " + number(3 * i) + " + %b * " + number(3 * i + 1) + " < " + number(3 * i + 2); })};
  for (const std::string& one : texts) {
    Diagnostics diagnostics;
    for (const std::string& sent : {one, EncodeBytes(*DecodeModule(one, diagnostics))}) {
      const ModuleSize size = MeasureModule(sent);
      const Taken taken = ByDecoding(sent);
      EXPECT_GE(size.memory + size.decoded, taken.most) << sent.substr(0, 200);
      EXPECT_LE(size.decoded, 8 * taken.kept) << sent.substr(0, 200);
    }
  }
}

TEST(WireSize, NoTextHasMoreExpressionsThanAModuleMayHave) {
  std::string text = "kiln 1\nfunc @f() {\nkernel @k grid(1) threads 32 blocks(%b) {\n";
  for (size_t i = 0; i < 100'000; ++i) text += fmt::format("assume {} < %b * {} + {}\n", 3 * i, 3 * i + 1, 3 * i + 2);
  Diagnostics diagnostics;
  EXPECT_FALSE(DecodeModule(text + "}\n}\n", diagnostics));
  EXPECT_THAT(diagnostics.all().front().message, HasSubstr("more than 250000 expressions"));
}

TEST(WireSize, HostileModulesAreRefusedBeforeTheyAreParsed) {
  for (Hostile& hostile : AllHostile()) {
    hostile.bytes = Repeated(hostile.bytes, 3 << 20);
    if (MeasureModule(hostile.bytes).memory < size_t{70} << 20) continue;
    const size_t before = ::mallinfo2().arena + ::mallinfo2().hblkhd;
    Diagnostics diagnostics;
    EXPECT_FALSE(Decode(hostile.bytes, diagnostics)) << hostile.name;
    EXPECT_LT(::mallinfo2().arena + ::mallinfo2().hblkhd, before + (8 << 20)) << hostile.name;
  }
  Diagnostics diagnostics;
  EXPECT_FALSE(Decode(Repeated(std::string_view("\xa2\x06\x00", 3), 3 << 20), diagnostics));
  EXPECT_THAT(diagnostics.all().front().message, HasSubstr("in memory; a module may take"));
}

}  // namespace
}  // namespace kiln::ir
