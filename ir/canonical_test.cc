// SPDX-License-Identifier: Apache-2.0
#include "ir/canonical.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/grammar/random_module.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The same program with its tables shuffled, dead entries added, and other names and lines.
class Shuffled {
 public:
  Shuffled(const v1::Module& wire, uint32_t seed) : random_(seed), out_(wire) {
    vars_ = ShuffleTable(*out_.mutable_vars());
    buffers_ = ShuffleTable(*out_.mutable_buffers());
    functions_ = ShuffleTable(*out_.mutable_functions());
    SpreadExprs();
    for (v1::Param& param : *out_.mutable_params()) {
      if (param.has_tensor()) param.set_tensor(buffers_[param.tensor()]);
      else param.set_scalar(vars_[param.scalar()]);
    }
    for (v1::Buffer& buffer : *out_.mutable_buffers()) {
      for (uint32_t& id : *buffer.mutable_shape()) id = exprs_[id];
      for (uint32_t& id : *buffer.mutable_strides()) id = exprs_[id];
    }
    for (v1::Kernel& kernel : *out_.mutable_kernels()) {
      for (uint32_t& id : *kernel.mutable_grid()) id = exprs_[id];
      for (uint32_t& id : *kernel.mutable_block_vars()) id = vars_[id];
      Visit(*kernel.mutable_body());
    }
    out_.clear_debug();
    for (int i = 0; i < out_.vars_size(); ++i) out_.mutable_debug()->add_var_names("other" + std::to_string(i));
  }
  const v1::Module& module() const { return out_; }

 private:
  template <typename Table>
  std::vector<uint32_t> ShuffleTable(Table& table) {
    std::vector<uint32_t> order(size_t(table.size()));
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random_);
    Table old = table;
    for (int i = 0; i < old.size(); ++i) *table.Mutable(int(order[size_t(i)])) = old[i];
    return order;
  }

  // Puts dead constants between the expressions.
  void SpreadExprs() {
    auto old = out_.exprs();
    out_.clear_exprs();
    for (const v1::Expr& expr : old) {
      if (random_() % 3 == 0) {
        v1::Expr& dead = *out_.add_exprs();
        dead.set_op(v1::CONST_INT);
        dead.set_dtype(v1::I64);
        dead.set_int_value(int64_t(random_()));
      }
      exprs_.push_back(uint32_t(out_.exprs_size()));
      v1::Expr& moved = *out_.add_exprs();
      moved = expr;
      for (uint32_t& arg : *moved.mutable_args()) arg = exprs_[arg];
      if (moved.op() == v1::VAR) moved.set_ref(vars_[moved.ref()]);
      if (moved.op() == v1::LOAD) moved.set_ref(buffers_[moved.ref()]);
    }
  }

  // Whatever a block holds: what a number refers to follows from its field's name.
  void Visit(Message& message) {
    const auto& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> given;
    reflection.ListFields(message, &given);
    for (const FieldDescriptor* field : given) {
      if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        if (!field->is_repeated()) Visit(*reflection.MutableMessage(&message, field));
        for (int i = 0; field->is_repeated() && i < reflection.FieldSize(message, field); ++i) {
          Visit(*reflection.MutableRepeatedMessage(&message, field, i));
        }
      }
    }
    const google::protobuf::Descriptor& type = *message.GetDescriptor();
    for (int i = 0; i < type.field_count(); ++i) {
      if (type.field(i)->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) Renumber(message, *type.field(i));
    }
  }
  void Renumber(Message& message, const FieldDescriptor& field) {
    if (field.name() == "num_stages" || field.name() == "coalesced_width") return;
    if (const auto* atomic = dynamic_cast<const v1::Atomic*>(&message)) {
      if (field.name() == "value" && atomic->kind() == v1::ATOMIC_LOAD) return;
      if (field.name() == "compare" && atomic->kind() != v1::ATOMIC_COMPARE_EXCHANGE) return;
    }
    const std::vector<uint32_t>& to = field.name() == "buffer"                          ? buffers_
                                      : field.name() == "function"                      ? functions_
                                      : field.name() == "var" || field.name() == "vars" ? vars_
                                                                                        : exprs_;
    const auto& reflection = *message.GetReflection();
    if (field.has_presence() && !reflection.HasField(message, &field)) return;
    if (!field.is_repeated()) return reflection.SetUInt32(&message, &field, to.at(reflection.GetUInt32(message, &field)));
    for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
      reflection.SetRepeatedUInt32(&message, &field, i, to.at(reflection.GetRepeatedUInt32(message, &field, i)));
    }
  }

  std::mt19937 random_;
  v1::Module out_;
  std::vector<uint32_t> vars_, buffers_, functions_, exprs_;  // old index → new
};

std::string CanonicalOf(const v1::Module& wire) {
  Diagnostics diagnostics;
  auto module = Decode(wire.SerializeAsString(), diagnostics);
  EXPECT_TRUE(module) << (module ? "" : diagnostics.all()[0].message);
  return module ? CanonicalBytes(*module) : "";
}

TEST(Canonical, NumberingNamesAndDeadEntriesLeaveNoTrace) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    v1::Module wire = Encode(RandomModule(seed).Make(false));
    ASSERT_EQ(CanonicalOf(wire), CanonicalOf(Shuffled(wire, seed).module())) << seed;
  }
}

TEST(Canonical, ModuleAndItsTextAgree) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Module module = RandomModule(seed).Make(true);
    Diagnostics diagnostics;
    ASSERT_EQ(CanonicalBytes(module), CanonicalBytes(*Parse(Print(module), diagnostics))) << Print(module);
  }
}

// Whoever adds an op or a kind of loop lets RandomModule make it: the tests above and the fuzzers then know it.
TEST(RandomModules, HaveEverything) {
  std::set<size_t> ops;
  std::set<LoopKind> loops;
  for (uint32_t seed = 0; seed < 400; ++seed) {
    const Module module = RandomModule(seed).Make(true);
    for (const Kernel& kernel : module.kernels) {
      Walk(kernel.body, [&](const Stmt& stmt) {
        ops.insert(stmt.op.index());
        if (const auto* loop = std::get_if<For>(&stmt.op)) loops.insert(loop->kind);
      });
    }
  }
  EXPECT_EQ(ops.size(), std::variant_size_v<Op>);
  EXPECT_EQ(loops.size(), size_t(LoopKind::kPersistent));
}

TEST(Canonical, DifferentProgramsDiffer) {
  std::set<std::string> texts, bytes;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Module module = RandomModule(seed).Make(seed % 2 == 0);
    for (Var& var : module.vars) var.name.clear();
    for (Buffer& buffer : module.buffers) buffer.name.clear();
    for (Kernel& kernel : module.kernels) kernel.name.clear();
    module.name.clear();
    if (texts.insert(Print(module)).second) bytes.insert(CanonicalBytes(module));
  }
  EXPECT_EQ(bytes.size(), texts.size());
}

// One character of the program changes, and so do the bytes.
TEST(Canonical, EveryDetailCounts) {
  const std::string text = R"(kiln 1
func @f[%m](%A: global f32[%m, 8] strides(8, 1) pad(1.0), %B: global f32[4, 8]) outputs(1) {
  function @f0 llvm "g" {
    "define void @g"
  }
  function @f1 ptx "h" {
    ""
  }
  workspace %W: global f32[8]
  kernel @k grid(2) threads 64 cluster(2) raster 2 min_blocks 2 blocks(%b) {
    %s = alloc shared f32[4, 8]
    %f = alloc fragment f32[4, 8]
    %r = alloc fragment f32[4]
    copy %A[%b * 4, 0; 4, 8] -> %s[0, 0; 4, 8] coalesced 2
    gemm %s[0, 0; 4, 8], %s[0, 0; 4, 8] -> %f[0, 0; 4, 4] transpose_b policy full_row
    reduce sum %f[0, 0; 4, 8] -> %r[0; 4] dim 1 accumulate
    for pipelined %k in 6 stages 3 { fill %r[0; 4] = 1.5 }
    for parallel %i in 4 coalesced 2 { atomic add %W[%i] = %r[%i] }
    if %b == 1 { barrier } else { store %W[0] = f32(%b) }
    while %b < 9 { break }
    let %x = %b + 5
    assume %x != 7
    call @f0(&%A[3], %x)
  }
})";
  const std::pair<std::string_view, std::string_view> edits[] = {
      {"define void", "define i32"},
      {"\"g\"", "\"f\""},
      {"llvm", "ptx"},
      {"call @f0", "call @f1"},
      {"&%A[3]", "&%A[4]"},
      {"&%A[3], %x", "&%A[3], %x, %x"},
      {"&%A[3]", "&%B[3]"},
      {"&%A[3]", "3"},
      {"strides(8, 1)", "strides(9, 1)"},
      {"pad(1.0)", "pad(2.0)"},
      {"outputs(1)", "outputs(0)"},
      {"grid(2)", "grid(3)"},
      {"threads 64", "threads 96"},
      {"cluster(2)", "cluster(1)"},
      {"raster 2", "raster 3"},
      {"min_blocks 2", "min_blocks 3"},
      {"%b * 4", "%b * 5"},
      {"-> %s[0, 0; 4, 8]", "-> %s[0, 1; 4, 8]"},
      {"coalesced 2\n", "coalesced 4\n"},
      {" transpose_b", " transpose_a"},
      {"full_row", "full_col"},
      {" accumulate", ""},
      {"reduce sum", "reduce max"},
      {"dim 1", "dim 0"},
      {"pipelined", "serial"},
      {"in 6", "in 7"},
      {"stages 3", "stages 4"},
      {"1.5", "1.25"},
      {"4 coalesced 2", "4 coalesced 1"},
      {"atomic add", "atomic max"},
      {"coalesced 2 { atomic add %W[%i] = %r[%i]", "coalesced 2 { atomic add %W[%i] = %r[%i] order release"},
      {"barrier", "break"},
      {"%b == 1", "%b != 1"},
      {"f32(%b)", "f32(%m)"},
      {"%b < 9", "%b < 8"},
      {"while", "assume true while"},
      {"%x = %b + 5", "%x = %b + 6"},
      {"assume %x", "assume %b"},
      {"shared f32", "fragment f32"}};
  auto canonical = [](const std::string& program) {
    Diagnostics diagnostics;
    auto module = Parse(program, diagnostics);
    EXPECT_TRUE(module) << diagnostics.all()[0].message << program;
    return module ? CanonicalBytes(*module) : "";
  };
  std::set<std::string> all = {canonical(text)};
  for (auto [from, to] : edits) {
    size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::string edited = text;
    EXPECT_TRUE(all.insert(canonical(edited.replace(at, from.size(), to))).second) << from << " → " << to;
  }
}

}  // namespace
}  // namespace kiln::ir
