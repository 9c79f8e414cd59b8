// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "ir/canonical.h"
#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/grammar/random_module.h"
#include "ir/limits.h"
#include "ir/op.h"
#include "ir/text/print.h"

namespace kiln::ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;
using testing::HasSubstr;

std::string All(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& d : diagnostics.all()) text += d.message + "\n";
  return text;
}

// Small numbers are valid references: each table of Base() has more entries than that.
class Filler {
 public:
  explicit Filler(std::set<std::string>& seen) : seen_(seen) {}

  // Every field gets a value that is not its default, repeated ones two.
  void Fill(Message& message) {
    const auto* type = message.GetDescriptor();
    for (int i = 0; i < type->field_count(); ++i) {
      const FieldDescriptor* field = type->field(i);
      if (field->real_containing_oneof() != nullptr || field->is_map()) continue;
      FillField(message, field);
    }
  }

  void FillField(Message& message, const FieldDescriptor* field) {
    seen_.insert(std::string(field->full_name()));
    const auto* reflection = message.GetReflection();
    for (int copy = 0; copy < (field->is_repeated() ? 2 : 1); ++copy) {
      bool repeated = field->is_repeated();
      uint32_t number = 1 + next_++ % 7;
      switch (field->cpp_type()) {
        case FieldDescriptor::CPPTYPE_UINT32:
          repeated ? reflection->AddUInt32(&message, field, number) : reflection->SetUInt32(&message, field, number);
          break;
        case FieldDescriptor::CPPTYPE_INT32: reflection->SetInt32(&message, field, int32_t(number)); break;
        case FieldDescriptor::CPPTYPE_INT64:
          repeated ? reflection->AddInt64(&message, field, number) : reflection->SetInt64(&message, field, number);
          break;
        case FieldDescriptor::CPPTYPE_DOUBLE: reflection->SetDouble(&message, field, number + 0.5); break;
        case FieldDescriptor::CPPTYPE_BOOL: reflection->SetBool(&message, field, true); break;
        case FieldDescriptor::CPPTYPE_ENUM: reflection->SetEnumValue(&message, field, LastOf(*field->enum_type())); break;
        case FieldDescriptor::CPPTYPE_MESSAGE:
          FillMessage(repeated ? *reflection->AddMessage(&message, field) : *reflection->MutableMessage(&message, field));
          break;
        case FieldDescriptor::CPPTYPE_STRING: reflection->SetString(&message, field, "text " + std::to_string(number)); break;
        default: FAIL() << "a field of a kind this test does not fill: " << std::string(field->full_name());
      }
    }
  }

 private:
  // The last, but for atomics the one that takes all operands.
  static int LastOf(const google::protobuf::EnumDescriptor& type) {
    if (&type == v1::AtomicKind_descriptor()) return v1::ATOMIC_COMPARE_EXCHANGE;
    return type.value(type.value_count() - 1)->number();
  }
  void FillMessage(Message& message) {
    // A nested block gets one statement of its own kind, which ends the recursion.
    if (auto* block = dynamic_cast<v1::Block*>(&message)) block->add_stmts()->mutable_let()->set_var(3 + next_++ % 2);
    else Fill(message);
  }

  std::set<std::string>& seen_;
  uint32_t next_ = 0;
};

// A module with ten entries in each table.
v1::Module Base() {
  v1::Module module;
  module.set_version(kFormatVersion);
  for (int i = 0; i < 10; ++i) {
    v1::Var& var = *module.add_vars();
    var.set_kind(v1::LOOP);
    var.set_dtype(v1::I32);
    v1::Buffer& buffer = *module.add_buffers();
    buffer.set_space(v1::SHARED);
    buffer.set_dtype(v1::F16);
    v1::Expr& expr = *module.add_exprs();
    expr.set_op(v1::VAR);
    expr.set_dtype(v1::I32);
    expr.set_ref(uint32_t(i));
    v1::Function& function = *module.add_functions();
    function.set_language(v1::LANGUAGE_LLVM);
    function.set_symbol("f" + std::to_string(i));
  }
  return module;
}

// `module` with what Encode always writes.
v1::Module Completed(v1::Module module, const v1::Module& like) {
  *module.mutable_op_names() = like.op_names();
  if (!module.has_debug()) *module.mutable_debug() = like.debug();
  return module;
}

void ExpectRoundTrip(const v1::Module& wire) {
  Diagnostics diagnostics;
  auto module = Decode(wire.SerializeAsString(), diagnostics);
  ASSERT_TRUE(module) << All(diagnostics);
  v1::Module back = Encode(*module);
  std::string difference;
  MessageDifferencer differencer;
  differencer.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differencer.Compare(Completed(wire, back), back)) << difference;
}

void AddStmt(v1::Module& module, const v1::Stmt& stmt) { *module.add_kernels()->mutable_body()->add_stmts() = stmt; }

TEST(Codec, EveryFieldOfEveryStatementComesBack) {
  std::set<std::string> seen;
  const auto* oneof = v1::Stmt::descriptor()->oneof_decl(0);
  for (int i = 0; i < oneof->field_count(); ++i) {
    v1::Module module = Base();
    v1::Stmt stmt;
    Filler(seen).FillField(stmt, oneof->field(i));
    AddStmt(module, stmt);
    ExpectRoundTrip(module);
  }
}

TEST(Codec, EveryFieldOfEveryTableComesBack) {
  std::set<std::string> seen = {"kiln.v1.Module.version", "kiln.v1.Module.op_names", "kiln.v1.Module.exprs"};
  Filler filler(seen);
  v1::Module module = Base();
  const auto* type = v1::Module::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (seen.contains(std::string(field->full_name()))) continue;
    if (field->name() == "params") {
      module.add_params()->set_tensor(3);
      module.add_params()->set_scalar(4);
      for (int k = 0; k < 8; ++k) module.add_params()->set_scalar(uint32_t(k));
    } else if (field->name() == "debug") {
      v1::DebugInfo& debug = *module.mutable_debug();
      for (int k = 0; k < 10; ++k) debug.add_files("file" + std::to_string(k) + ".py");
      for (const v1::Var& var : module.vars()) debug.add_var_names("v" + std::to_string(var.axis()));
      for (int k = 0; k < module.buffers_size(); ++k) debug.add_buffer_names("b" + std::to_string(k));
      for (int k = 0; k < module.kernels_size(); ++k) debug.add_kernel_names("k" + std::to_string(k));
      for (int k = 0; k < 2; ++k) {
        auto& location = *debug.add_locations();
        location.set_file(7);
        location.set_line(uint32_t(9 + k));
      }
      debug.set_module_name("name");
    } else if (field->name() == "vars") {
      for (uint32_t kind = 1; kind <= 6; ++kind) {
        v1::Var& var = *module.add_vars();
        var.set_kind(v1::VarKind(kind));
        var.set_dtype(v1::I64);
        var.set_axis(kind % 3);
      }
    } else {
      filler.FillField(module, field);
    }
  }
  ExpectRoundTrip(module);
}

TEST(Codec, EveryExpressionComesBack) {
  v1::Module module = Base();
  struct {
    v1::DType type;
    uint32_t id;
  } leaves[] = {{v1::I32, 0}, {v1::F32, 0}, {v1::BOOL, 0}};
  for (auto& leaf : leaves) {
    leaf.id = uint32_t(module.exprs_size());
    v1::Expr& expr = *module.add_exprs();
    expr.set_op(v1::LOAD);
    expr.set_dtype(leaf.type);
    expr.set_ref(2);
    expr.add_args(1);
    expr.add_args(4);
  }
  auto leaf_of = [&](TypeRule rule) {
    switch (rule) {
      case TypeRule::logic:
      case TypeRule::negation: return 2;
      case TypeRule::math:
      case TypeRule::math2:
      case TypeRule::math3:
      case TypeRule::predicate: return 1;
      default: return 0;
    }
  };
  const auto* type = v1::ExprOp_descriptor();
  for (int i = 0; i < type->value_count(); ++i) {
    auto op = ExprOpFromNumber(uint32_t(type->value(i)->number()));
    if (!op || ArgCount(*op) <= 0) continue;
    TypeRule rule = RuleOf(*op);
    v1::Expr& expr = *module.add_exprs();
    expr.set_op(v1::ExprOp(type->value(i)->number()));
    bool gives_bool = rule == TypeRule::compare || rule == TypeRule::predicate;
    expr.set_dtype(gives_bool ? v1::BOOL : rule == TypeRule::cast ? v1::F32 : leaves[leaf_of(rule)].type);
    // Different operands: equal ones would be simplified away.
    for (int a = 0; a < ArgCount(*op); ++a)
      expr.add_args(Chooses(*op) && a == 0 ? leaves[2].id : leaf_of(rule) == 0 ? uint32_t(a) : leaves[leaf_of(rule)].id + 0);
    if (rule == TypeRule::masked) expr.set_args(1, leaves[0].id);
    if (leaf_of(rule) == 2 && ArgCount(*op) == 2) expr.set_args(1, uint32_t(module.exprs_size()) - 2);
  }
  v1::Expr& real = *module.add_exprs();
  real.set_op(v1::CONST_FLOAT);
  real.set_dtype(v1::F32);
  real.set_float_value(-1.5);
  v1::Expr& whole = *module.add_exprs();
  whole.set_op(v1::CONST_INT);
  whole.set_dtype(v1::I8);
  whole.set_int_value(-100);
  ExpectRoundTrip(module);
}

TEST(Codec, RandomModulesComeBack) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Module module = RandomModule(seed).Make(false);
    Diagnostics diagnostics;
    std::string bytes = EncodeBytes(module);
    auto read = DecodeModule(bytes, diagnostics);
    ASSERT_TRUE(read) << All(diagnostics);
    ASSERT_EQ(CanonicalBytes(*read), CanonicalBytes(module)) << Print(module);
    ASSERT_EQ(EncodeBytes(*read), EncodeBytes(*DecodeModule(EncodeBytes(*read), diagnostics)));
    auto from_text = DecodeModule(Print(*read), diagnostics);
    ASSERT_TRUE(from_text) << All(diagnostics);
    ASSERT_EQ(Print(*from_text), Print(*read));
  }
}

std::string Refusal(const v1::Module& module, FaultKind kind = FaultKind::kInvalid) {
  Diagnostics diagnostics;
  EXPECT_FALSE(Decode(module.SerializeAsString(), diagnostics));
  bool found = false;
  for (const Diagnostic& d : diagnostics.all()) found |= d.kind == kind;
  EXPECT_TRUE(found) << All(diagnostics);
  return All(diagnostics);
}

TEST(Codec, NewerOpIsNamed) {
  v1::Module module = Base();
  module.add_kernels()->mutable_body()->add_stmts();
  (*module.mutable_op_names())[57] = "scan";
  v1::Stmt& stmt = *module.mutable_kernels(0)->mutable_body()->mutable_stmts(0);
  stmt.GetReflection()->MutableUnknownFields(&stmt)->AddLengthDelimited(57, "x");
  EXPECT_THAT(Refusal(module, FaultKind::kUnsupported), HasSubstr("op 'scan' (number 57) is newer than this compiler"));
}

TEST(Codec, NewerFieldsEnumsAndVersionsAreNamed) {
  v1::Module module = Base();
  v1::Stmt stmt;
  v1::Copy& copy = *stmt.mutable_copy();
  copy.mutable_src()->set_buffer(1);
  copy.mutable_dst()->set_buffer(2);
  copy.GetReflection()->MutableUnknownFields(&copy)->AddVarint(99, 1);
  AddStmt(module, stmt);
  module.mutable_exprs(3)->set_op(v1::ExprOp(200));
  module.mutable_buffers(4)->set_dtype(v1::DType(99));
  module.set_version(7);
  std::string text = Refusal(module, FaultKind::kUnsupported);
  EXPECT_THAT(text, HasSubstr("field 99 of Copy"));
  EXPECT_THAT(text, HasSubstr("exprs[3]: expression op 200"));
  EXPECT_THAT(text, HasSubstr("buffers[4]: dtype 99"));
  EXPECT_THAT(text, HasSubstr("version 7"));
}

TEST(Codec, EveryBadReferenceIsReported) {
  v1::Module module = Base();
  module.mutable_exprs(2)->set_ref(50);
  module.mutable_exprs(5)->set_op(v1::ADD);
  module.mutable_exprs(5)->add_args(5);
  module.mutable_exprs(5)->add_args(1);
  module.mutable_buffers(0)->add_shape(1000);
  module.add_params()->set_tensor(77);
  module.add_params();
  module.add_outputs(3);
  v1::Stmt stmt;
  stmt.mutable_let()->set_var(88);
  AddStmt(module, stmt);
  stmt.mutable_gemm()->mutable_a()->set_buffer(66);
  AddStmt(module, stmt);
  std::string text = Refusal(module);
  for (const char* part :
       {"exprs[2]: var refers to variable 50", "exprs[5]: add refers to expression 5", "buffers[0]: the field shape is expression 1000",
        "params[0]: the field tensor is buffer 77", "params[1]: neither", "parameter 3", "statement 1 (let): the field var is variable 88",
        "statement 2 (gemm): the field a is buffer 66", "(gemm): the field b is not given", "(gemm): the field c is not given"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(Codec, SizesAreBounded) {
  v1::Module deep = Base();
  v1::Block* block = deep.add_kernels()->mutable_body();
  for (int i = 0; i < kMaxNesting; ++i) block = block->add_stmts()->mutable_while_loop()->mutable_body();
  EXPECT_THAT(Refusal(deep), HasSubstr("nested deeper"));
  for (int i = 0; i < 5000; ++i) block = block->add_stmts()->mutable_while_loop()->mutable_body();
  EXPECT_THAT(Refusal(deep), HasSubstr("nested deeper"));

  v1::Module wide = Base();
  for (size_t i = 0; i < kMaxStmts + 1; ++i) (i == 0 ? wide.add_kernels() : wide.mutable_kernels(0))->mutable_body()->add_stmts()->mutable_barrier();
  EXPECT_THAT(Refusal(wide), HasSubstr("100001 statements; a module may have 100000"));

  v1::Module doubling = Base();
  for (int i = 0; i < 40; ++i) {
    v1::Expr& expr = *doubling.add_exprs();
    expr.set_op(v1::MUL);
    expr.set_dtype(v1::I32);
    for (int a = 0; a < 2; ++a) expr.add_args(uint32_t(doubling.exprs_size()) - 2);
  }
  EXPECT_THAT(Refusal(doubling), HasSubstr("nodes written out"));

  Diagnostics diagnostics;
  EXPECT_FALSE(Decode(std::string(kMaxModuleBytes + 1, '\0'), diagnostics));
  v1::Module ranked = Base();
  for (int i = 0; i < 9; ++i) ranked.mutable_buffers(1)->add_shape(0);
  EXPECT_THAT(Refusal(ranked), HasSubstr("at most 8"));
}

TEST(Codec, ALoopOfTooManyVariablesIsReportedOnce) {
  const auto refusal = [](int vars, int extents) {
    v1::Module module = Base();
    v1::Stmt stmt;
    stmt.mutable_for_loop()->set_kind(v1::PARALLEL);
    for (int i = 0; i < vars; ++i) stmt.mutable_for_loop()->add_vars(uint32_t(i));
    for (int i = 0; i < extents; ++i) stmt.mutable_for_loop()->add_extents(uint32_t(i));
    AddStmt(module, stmt);
    return Refusal(module);
  };
  const std::string place = "kernels[0], statement 1 (for): ";
  EXPECT_EQ(refusal(9, 8), place + "the field vars lists 9; at most 8 are possible\n");
  EXPECT_EQ(refusal(8, 9), place + "the field extents lists 9; at most 8 are possible\n");
  EXPECT_EQ(refusal(2, 3), place + "2 variables and 3 extents; a loop has 1 to 8 of each\n");
  EXPECT_EQ(refusal(0, 0), place + "0 variables and 0 extents; a loop has 1 to 8 of each\n");
}

TEST(Codec, TruncatedAndFlippedBytesNeverCrash) {
  std::mt19937 random(9);
  std::string bytes = EncodeBytes(RandomModule(4).Make(false));
  for (size_t length = 0; length < bytes.size(); length += 7) {
    Diagnostics diagnostics;
    (void)DecodeModule(std::string_view(bytes).substr(0, length), diagnostics);
  }
  size_t refused = 0;
  for (int i = 0; i < 3000; ++i) {
    std::string broken = bytes;
    for (int k = 0; k < 3; ++k) broken[random() % broken.size()] = char(random());
    Diagnostics diagnostics;
    bool read = DecodeModule(broken, diagnostics).has_value();
    EXPECT_EQ(read, !diagnostics.HasErrors());
    refused += !read;
  }
  EXPECT_GT(refused, 1000u);
}

TEST(Codec, NamesFromTheWireAreTame) {
  v1::Module module = Base();
  module.mutable_debug()->add_var_names("a\n\x1b[31m; rm -rf");
  module.mutable_debug()->add_files("x\ny\"");
  Diagnostics diagnostics;
  auto read = Decode(module.SerializeAsString(), diagnostics);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->vars[0].name, "a___31m__rm__rf");
  EXPECT_EQ(read->files[0], "x_y_");
}

}  // namespace
}  // namespace kiln::ir
