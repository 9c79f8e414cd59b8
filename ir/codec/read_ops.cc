// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <google/protobuf/unknown_field_set.h>

#include <utility>

#include "ir/codec/decode.h"
#include "ir/codec/op_codec.h"
#include "ir/enum_text.h"
#include "ir/fields.h"
#include "ir/limits.h"

namespace kiln::ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// A name from the wire, cut down to what may be shown.
std::string Shown(std::string_view name) {
  std::string shown;
  for (char c : name.substr(0, 40)) shown += c >= ' ' && c <= '~' ? c : '?';
  return shown;
}

std::string NotGiven(std::string_view field) { return fmt::format("the field {} is not given", field); }
std::string TooLong(std::string_view field, int size) { return fmt::format("the field {} lists {}; at most {} are possible", field, size, kMaxRank); }

}  // namespace

std::string OpReader::Placed(std::string_view message) const {
  if (op_name_.empty()) return fmt::format("{}[{}]: {}", table_, index_, message);
  return fmt::format("{}[{}], statement {} ({}): {}", table_, index_, stmts_, op_name_, message);
}

void OpReader::Problem(std::string message, std::string hint) { diagnostics_.Error(Placed(message), std::move(hint), loc_); }

void OpReader::Newer(std::string message) { diagnostics_.Unsupported(Placed(message), "update the daemon, or use a client of its version", loc_); }

void OpReader::RefuseUnknownFields(const google::protobuf::Message& message) {
  const auto& unknown = message.GetReflection()->GetUnknownFields(message);
  for (int i = 0; i < unknown.field_count() && i < 4; ++i) {
    Newer(fmt::format("field {} of {} is newer than this compiler, whose format is version {}", unknown.field(i).number(),
                      std::string_view(message.GetDescriptor()->name()), kFormatVersion));
  }
}

ExprId OpReader::Expr(uint32_t index, std::string_view what) {
  if (index < exprs_.size()) {
    uint64_t before = std::exchange(written_, written_ + sizes_.Of(exprs_[index]).nodes);
    if (before <= kMaxWritten && written_ > kMaxWritten) {
      Problem(fmt::format("the expressions written out have more than {} nodes", kMaxWritten), "bind parts of them with let");
    }
    return exprs_[index];
  }
  Problem(fmt::format("the field {} is expression {}, but the module has {}", what, index, exprs_.size()));
  return ExprId(0);
}

std::vector<ExprId> OpReader::Exprs(const google::protobuf::RepeatedField<uint32_t>& indices, std::string_view what) {
  std::vector<ExprId> result;
  if (indices.size() > kMaxRank) {
    Problem(TooLong(what, indices.size()));
    return result;
  }
  for (uint32_t index : indices) result.push_back(Expr(index, what));
  return result;
}

BufferId OpReader::Buffer(uint32_t index, std::string_view what) {
  if (index < module_.buffers.size()) return BufferId(index);
  Problem(fmt::format("the field {} is buffer {}, but the module has {}", what, index, module_.buffers.size()));
  return BufferId(0);
}

FunctionId OpReader::Function(uint32_t index, std::string_view what) {
  if (index < module_.functions.size()) return FunctionId(index);
  Problem(fmt::format("the field {} is function {}, but the module has {}", what, index, module_.functions.size()));
  return FunctionId(0);
}

VarId OpReader::Var(uint32_t index, std::string_view what) {
  if (index < module_.vars.size()) return VarId(index);
  Problem(fmt::format("the field {} is variable {}, but the module has {}", what, index, module_.vars.size()));
  return VarId(0);
}

template <typename E>
E OpReader::Enum(int number, std::string_view what) {
  constexpr E kFirst = EnumText<E>::first;
  if (number >= int(kFirst) && size_t(number - int(kFirst)) < std::size(EnumText<E>::names)) return E(number);
  if (number == 0) Problem(NotGiven(what));
  else Newer(fmt::format("the field {} is {}, which is not known here", what, number));
  return kFirst;
}

SourceLoc OpReader::NextLocation() {
  const v1::DebugInfo& debug = wire_.debug();
  size_t index = stmts_++;
  if (index >= size_t(debug.locations_size())) return {};
  const v1::Location& location = debug.locations(int(index));
  if (location.file() >= module_.files.size()) return {};
  return {location.file(), location.line()};
}

Block OpReader::ReadBlock(const v1::Block& block) {
  RefuseUnknownFields(block);
  Block result;
  if (depth_ >= kMaxNesting) {
    Problem(fmt::format("statements are nested deeper than {}", kMaxNesting), "merge loops, or split the kernel");
    return result;
  }
  if (stmts_ + size_t(block.stmts_size()) > kMaxStmts) {
    Problem(fmt::format("more than {} statements", kMaxStmts), "use loops instead of unrolling in the front end");
    return result;
  }
  ++depth_;
  result.reserve(size_t(block.stmts_size()));
  for (const v1::Stmt& stmt : block.stmts()) result.push_back(ReadStmt(stmt));
  --depth_;
  return result;
}

Stmt OpReader::ReadStmt(const v1::Stmt& stmt) {
  std::string_view outer = op_name_;
  SourceLoc outer_loc = loc_;
  SourceLoc loc = loc_ = NextLocation();
  Stmt result{ReadOp(stmt), loc};
  op_name_ = outer;
  loc_ = outer_loc;
  return result;
}

// Takes the fields of a message, each of the type that ir/fields.h says.
class OpReader::FieldReader {
 public:
  FieldReader(OpReader& reader, const Message& message, const MessageFields& fields)
      : reader_(reader), message_(message), reflection_(*message.GetReflection()), fields_(fields) {}

  void Evaluates(ExprId& expr, std::string_view name) { expr = reader_.Expr(Number(name), name); }
  void EvaluatesEach(std::vector<ExprId>& exprs, std::string_view name) {
    ReadEach(name, [&](uint32_t index) { exprs.push_back(reader_.Expr(index, name)); });
  }
  void Region(ir::Region& region, std::string_view name, Use) {
    const FieldDescriptor* field = fields_.Of(name);
    if (!reflection_.HasField(message_, field)) return reader_.Problem(NotGiven(name));
    region = reader_.ReadRegion(static_cast<const v1::Region&>(reflection_.GetMessage(message_, field)), name);
  }
  void Element(BufferId& buffer, std::vector<ExprId>& indices, Use) {
    Names(buffer, "buffer");
    EvaluatesEach(indices, "indices");
  }
  void ElementIfAny(std::optional<ir::Element>& element, std::string_view name) {
    const FieldDescriptor* field = fields_.Of(name);
    if (reflection_.HasField(message_, field))
      element = reader_.ReadElement(static_cast<const v1::Element&>(reflection_.GetMessage(message_, field)));
  }
  void EvaluatesIfAny(std::optional<ExprId>& expr, Label label) {
    if (reflection_.HasField(message_, fields_.Of(label.name))) expr = reader_.Expr(Number(label.name), label.name);
  }
  void RegionIfAny(std::optional<ir::Region>& region, Label label) {
    if (reflection_.HasField(message_, fields_.Of(label.name))) Region(region.emplace(), label.name, Use::kRead);
  }
  void Whole(BufferId& buffer, std::string_view name, Use) { Names(buffer, name); }
  void Names(BufferId& buffer, std::string_view name) { buffer = reader_.Buffer(Number(name), name); }
  void Declares(BufferId& buffer, std::string_view name) { Names(buffer, name); }
  void Binds(VarId& var, std::string_view name) { var = reader_.Var(Number(name), name); }
  void BindsEach(std::vector<VarId>& vars, std::string_view name) {
    ReadEach(name, [&](uint32_t index) { vars.push_back(reader_.Var(index, name)); });
  }
  void Calls(FunctionId& function, std::string_view name) { function = reader_.Function(Number(name), name); }
  void ArgumentsEach(std::vector<Argument>& arguments, std::string_view name) {
    const FieldDescriptor* field = fields_.Of(name);
    const size_t size = size_t(reflection_.FieldSize(message_, field));
    if (size > kMaxArguments) return reader_.Problem(fmt::format("a call with {} arguments; at most {} are possible", size, kMaxArguments));
    for (size_t i = 0; i < size; ++i)
      arguments.push_back(reader_.ReadArgument(static_cast<const v1::Argument&>(reflection_.GetRepeatedMessage(message_, field, int(i)))));
  }
  void Body(Block& block, std::string_view name) {
    block = reader_.ReadBlock(static_cast<const v1::Block&>(reflection_.GetMessage(message_, fields_.Of(name))));
  }
  template <typename E>
    requires std::is_enum_v<E>
  void Is(E& value, Label label) {
    value = reader_.Enum<E>(reflection_.GetEnumValue(message_, fields_.Of(label.name)), label.name);
  }
  void Is(bool& value, Label label) { value = reflection_.GetBool(message_, fields_.Of(label.name)); }
  void Is(int32_t& value, Label label) { value = reflection_.GetInt32(message_, fields_.Of(label.name)); }
  void Is(uint32_t& value, Label label) { value = Number(label.name); }
  // What passes decide does not travel; lists carry their length; what a text says is no field.
  void Decided(const auto&, std::string_view) {}
  void Uses(const auto&) {}
  void Counts(size_t) {}
  void Says(std::string_view) {}

 private:
  uint32_t Number(std::string_view name) const { return reflection_.GetUInt32(message_, fields_.Of(name)); }
  void ReadEach(std::string_view name, auto&& read) {
    const FieldDescriptor* field = fields_.Of(name);
    const int size = reflection_.FieldSize(message_, field);
    if (size > kMaxRank) return reader_.Problem(TooLong(name, size));
    for (int i = 0; i < size; ++i) read(reflection_.GetRepeatedUInt32(message_, field, i));
  }

  OpReader& reader_;
  const Message& message_;
  const google::protobuf::Reflection& reflection_;
  const MessageFields& fields_;
};

template <typename T>
Op OpReader::ReadFields(const Message& message) {
  static const MessageFields fields(*message.GetDescriptor());
  T op{};
  Fields(op, FieldReader(*this, message, fields));
  if constexpr (std::same_as<T, For>) {
    // What comes after takes the extent of each variable.
    const auto& loop = static_cast<const v1::For&>(message);
    if (loop.vars_size() > kMaxRank || loop.extents_size() > kMaxRank) return Barrier{};  // is reported
    if (loop.vars_size() == 0 || loop.vars_size() != loop.extents_size()) {
      Problem(fmt::format("{} variables and {} extents; a loop has 1 to {} of each", loop.vars_size(), loop.extents_size(), kMaxRank));
      return Barrier{};
    }
  }
  if constexpr (std::same_as<T, Atomic>) {
    const auto& atomic = static_cast<const v1::Atomic&>(message);
    if ((atomic.value() != 0 && !op.TakesValue()) || (atomic.compare() != 0 && !op.Compares()))
      Problem(fmt::format("an operand that an atomic {} does not take", Name(op.kind)));
  }
  return op;
}

Op OpReader::ReadOp(const v1::Stmt& stmt) {
  struct Row {
    std::string_view name;
    Op (OpReader::*read)(const Message&) = nullptr;
    const FieldDescriptor* field = nullptr;
  };
  // By wire number.
  static const std::vector<Row> rows = [] {
    std::vector<Row> result;
    ForEachOpType([&]<typename T>(std::type_identity<T>) {
      constexpr uint32_t kNumber = OpRow<T>::kNumber;
      if constexpr (kNumber != 0) {
        if (result.size() <= kNumber) result.resize(kNumber + 1);
        result[kNumber] = {OpRow<T>::kName, &OpReader::ReadFields<T>, FieldOfOp(kNumber)};
      }
    });
    return result;
  }();
  const auto number = size_t(stmt.op_case());
  if (number >= rows.size() || rows[number].read == nullptr) return UnknownOp(stmt);
  const Row& row = rows[number];
  op_name_ = row.name;
  const Message& message = stmt.GetReflection()->GetMessage(stmt, row.field);
  RefuseUnknownFields(message);
  return (this->*row.read)(message);
}

Op OpReader::UnknownOp(const v1::Stmt& stmt) {
  op_name_ = {};
  const auto& unknown = stmt.GetReflection()->GetUnknownFields(stmt);
  if (unknown.empty()) {
    Problem(fmt::format("statement {} is empty", stmts_));
    return Barrier{};
  }
  uint32_t number = uint32_t(unknown.field(0).number());
  auto name = wire_.op_names().find(number);
  std::string shown = name == wire_.op_names().end() ? "without a name" : fmt::format("'{}'", Shown(name->second));
  Newer(
      fmt::format("statement {}: op {} (number {}) is newer than this compiler, whose format is version {}", stmts_, shown, number, kFormatVersion));
  return Barrier{};
}

Region OpReader::ReadRegion(const v1::Region& region, std::string_view what) {
  RefuseUnknownFields(region);
  Region result{Buffer(region.buffer(), what), Exprs(region.offsets(), "offsets"), {}};
  if (region.offsets_size() != region.extents_size()) {
    Problem(fmt::format("the field {} has {} offsets and {} extents", what, region.offsets_size(), region.extents_size()));
    return {};
  }
  result.extents.assign(region.extents().begin(), region.extents().end());
  return result;
}

Element OpReader::ReadElement(const v1::Element& element) {
  RefuseUnknownFields(element);
  return {Buffer(element.buffer(), "buffer"), Exprs(element.indices(), "indices")};
}

Argument OpReader::ReadArgument(const v1::Argument& argument) {
  RefuseUnknownFields(argument);
  Argument result{.value = Expr(argument.value(), "value")};
  if (argument.has_buffer()) result.buffer = Buffer(argument.buffer(), "buffer");
  return result;
}

MessageFields::MessageFields(const google::protobuf::Descriptor& message) {
  for (int i = 0; i < message.field_count(); ++i) fields_.push_back(message.field(i));
}

const FieldDescriptor* MessageFields::Of(std::string_view name) const {
  for (const FieldDescriptor* field : fields_) {
    if (std::string_view(field->name()) == name) return field;
  }
  return nullptr;
}

const FieldDescriptor* FieldOfOp(uint32_t number) { return v1::Stmt::descriptor()->FindFieldByNumber(int(number)); }

}  // namespace kiln::ir
