// SPDX-License-Identifier: Apache-2.0
//
// Statements on the wire. Each row of ops.def that travels is read and written by ir/fields.h: the names there are those of its message's
// fields.
#pragma once

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <string>
#include <string_view>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/expr/expr_size.h"
#include "ir/module.h"
#include "ir/op.h"
#include "kiln/v1/ir.pb.h"

namespace kiln::ir {

// The hint for bytes that are not a module as Kiln's clients write it.
inline constexpr const char* kBroken =
    "the rules are in kiln/v1/ir.proto: correct the program that wrote the module, or check whether all of it arrived";

// Reads the statements of one module whose tables are already read. It reports a bad reference and reads it as index 0, so that it can
// check everything else; the caller must discard the module if there are errors.
class OpReader {
 public:
  // `exprs` gives the expression of each wire index.
  OpReader(const v1::Module& wire, Module& module, const std::vector<ExprId>& exprs, Diagnostics& diagnostics)
      : wire_(wire), module_(module), exprs_(exprs), sizes_(module.exprs), diagnostics_(diagnostics) {}

  Block ReadBlock(const v1::Block& block);
  // `what`: the field of the message.
  ExprId Expr(uint32_t index, std::string_view what);
  std::vector<ExprId> Exprs(const google::protobuf::RepeatedField<uint32_t>& indices, std::string_view what);
  BufferId Buffer(uint32_t index, std::string_view what);
  VarId Var(uint32_t index, std::string_view what);
  FunctionId Function(uint32_t index, std::string_view what);

  // Where the reader is, for messages: table and index.
  void SetPlace(std::string_view table, int index) {
    table_ = table;
    index_ = index;
  }
  void Problem(std::string message, std::string hint = kBroken);
  void Newer(std::string message);
  // Fields that this version does not know may change the meaning, so they are refused.
  void RefuseUnknownFields(const google::protobuf::Message& message);

 private:
  Stmt ReadStmt(const v1::Stmt& stmt);
  Op ReadOp(const v1::Stmt& stmt);
  Op UnknownOp(const v1::Stmt& stmt);
  template <typename T>
  Op ReadFields(const google::protobuf::Message& message);
  class FieldReader;
  Region ReadRegion(const v1::Region& region, std::string_view what);
  Element ReadElement(const v1::Element& element);
  Argument ReadArgument(const v1::Argument& argument);
  template <typename E>
  E Enum(int number, std::string_view what);
  SourceLoc NextLocation();

  const v1::Module& wire_;
  Module& module_;
  const std::vector<ExprId>& exprs_;
  ExprSizes sizes_;
  uint64_t written_ = 0;  // nodes of the expressions read so far
  Diagnostics& diagnostics_;
  std::string Placed(std::string_view message) const;
  std::string_view table_ = "module";
  int index_ = 0;
  std::string_view op_name_;
  SourceLoc loc_;
  size_t stmts_ = 0;
  int depth_ = 0;
};

// The fields of an op's message by the names that ir/fields.h gives them. Made once for each op: the descriptor's own search takes long.
class MessageFields {
 public:
  explicit MessageFields(const google::protobuf::Descriptor& message);
  // A name that the message lacks is a mistake in ir/fields.h, which the codec's tests find.
  const google::protobuf::FieldDescriptor* Of(std::string_view name) const;

 private:
  std::vector<const google::protobuf::FieldDescriptor*> fields_;
};

// The field of Stmt that holds the op with this wire number.
const google::protobuf::FieldDescriptor* FieldOfOp(uint32_t number);

// Appends the statements of `block`, and their places to `locations`, in preorder.
void WriteBlock(const Block& block, v1::Block& out, v1::DebugInfo& debug);

}  // namespace kiln::ir
