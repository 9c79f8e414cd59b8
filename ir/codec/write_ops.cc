// SPDX-License-Identifier: Apache-2.0
#include "ir/codec/op_codec.h"
#include "ir/fields.h"

namespace kiln::ir {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Sets the fields of a message, each of the type that ir/fields.h says.
class FieldWriter {
 public:
  FieldWriter(Message& out, const MessageFields& fields, v1::DebugInfo& debug)
      : out_(out), reflection_(*out.GetReflection()), fields_(fields), debug_(debug) {}

  void Evaluates(ExprId expr, std::string_view name) { Set(name, Index(expr)); }
  void EvaluatesEach(const std::vector<ExprId>& exprs, std::string_view name) { AddEach(exprs, name); }
  void Region(const ir::Region& region, std::string_view name, Use) {
    auto& out = static_cast<v1::Region&>(*reflection_.MutableMessage(&out_, fields_.Of(name)));
    out.set_buffer(Index(region.buffer));
    for (ExprId offset : region.offsets) out.add_offsets(Index(offset));
    out.mutable_extents()->Add(region.extents.begin(), region.extents.end());
  }
  void Element(BufferId buffer, const std::vector<ExprId>& indices, Use) {
    Names(buffer, "buffer");
    EvaluatesEach(indices, "indices");
  }
  void ElementIfAny(const std::optional<ir::Element>& element, std::string_view name) {
    if (!element) return;
    auto& out = static_cast<v1::Element&>(*reflection_.MutableMessage(&out_, fields_.Of(name)));
    out.set_buffer(Index(element->buffer));
    for (ExprId index : element->indices) out.add_indices(Index(index));
  }
  void EvaluatesIfAny(const std::optional<ExprId>& expr, Label label) {
    if (expr) Set(label.name, Index(*expr));
  }
  void RegionIfAny(const std::optional<ir::Region>& region, Label label) {
    if (region) Region(*region, label.name, Use::kRead);
  }
  void Whole(BufferId buffer, std::string_view name, Use) { Names(buffer, name); }
  void Names(BufferId buffer, std::string_view name) { Set(name, Index(buffer)); }
  void Declares(BufferId buffer, std::string_view name) { Names(buffer, name); }
  void Binds(VarId var, std::string_view name) { Set(name, Index(var)); }
  void BindsEach(const std::vector<VarId>& vars, std::string_view name) { AddEach(vars, name); }
  void Calls(FunctionId function, std::string_view name) { Set(name, Index(function)); }
  void ArgumentsEach(const std::vector<Argument>& arguments, std::string_view name) {
    for (const Argument& argument : arguments) {
      auto& out = static_cast<v1::Argument&>(*reflection_.AddMessage(&out_, fields_.Of(name)));
      if (argument.buffer) out.set_buffer(Index(*argument.buffer));
      out.set_value(Index(argument.value));
    }
  }
  void Body(const Block& block, std::string_view name) {
    WriteBlock(block, static_cast<v1::Block&>(*reflection_.MutableMessage(&out_, fields_.Of(name))), debug_);
  }
  template <typename E>
    requires std::is_enum_v<E>
  void Is(E value, Label label) {
    reflection_.SetEnumValue(&out_, fields_.Of(label.name), int(value));
  }
  void Is(bool value, Label label) { reflection_.SetBool(&out_, fields_.Of(label.name), value); }
  void Is(int32_t value, Label label) { reflection_.SetInt32(&out_, fields_.Of(label.name), value); }
  void Is(uint32_t value, Label label) { Set(label.name, value); }
  // What passes decide does not travel; lists carry their length; what a text says is no field.
  void Decided(const auto&, std::string_view) {}
  void Uses(const auto&) {}
  void Counts(size_t) {}
  void Says(std::string_view) {}

 private:
  void Set(std::string_view name, uint32_t value) { reflection_.SetUInt32(&out_, fields_.Of(name), value); }
  void AddEach(const auto& ids, std::string_view name) {
    for (auto id : ids) reflection_.AddUInt32(&out_, fields_.Of(name), Index(id));
  }

  Message& out_;
  const google::protobuf::Reflection& reflection_;
  const MessageFields& fields_;
  v1::DebugInfo& debug_;
};

template <typename T>
void Write(const T& op, v1::Stmt& out, v1::DebugInfo& debug) {
  static const FieldDescriptor* const field = FieldOfOp(OpRow<T>::kNumber);
  static const MessageFields fields(*field->message_type());
  Fields(op, FieldWriter(*out.GetReflection()->MutableMessage(&out, field), fields, debug));
}

}  // namespace

void WriteBlock(const Block& block, v1::Block& out, v1::DebugInfo& debug) {
  for (const Stmt& stmt : block) {
    std::visit(
        [&]<typename T>(const T& op) {
          if constexpr (OpRow<T>::kNumber != 0) {
            v1::Location& location = *debug.add_locations();
            location.set_file(stmt.loc.file);
            location.set_line(stmt.loc.line);
            Write(op, *out.add_stmts(), debug);
          }
        },
        stmt.op);
  }
}

}  // namespace kiln::ir
