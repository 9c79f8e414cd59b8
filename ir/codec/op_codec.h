// SPDX-License-Identifier: Apache-2.0
//
// Statements on the wire, one pair of functions for each row of ops.def that travels.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ir/diagnostic.h"
#include "ir/expr_size.h"
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
  ExprId Expr(uint32_t index, std::string_view what);
  std::vector<ExprId> Exprs(const google::protobuf::RepeatedField<uint32_t>& indices, std::string_view what);
  BufferId Buffer(uint32_t index, std::string_view what);
  VarId Var(uint32_t index, std::string_view what);

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
  Op Read(const v1::Alloc& op);
  Op Read(const v1::For& op);
  Op Read(const v1::If& op);
  Op Read(const v1::While& op);
  Op Read(const v1::Let& op);
  Op Read(const v1::Store& op);
  Op Read(const v1::Assume& op);
  Op Read(const v1::Copy& op);
  Op Read(const v1::Gemm& op);
  Op Read(const v1::Fill& op);
  Op Read(const v1::Reduce& op);
  Op Read(const v1::Atomic& op);
  Region ReadRegion(bool present, const v1::Region& region, std::string_view what);
  template <typename T>
  T Enum(int number, T first, T last, std::string_view what);
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

// Appends the statements of `block`, and their places to `locations`, in preorder.
void WriteBlock(const Block& block, v1::Block& out, v1::DebugInfo& debug);

}  // namespace kiln::ir
