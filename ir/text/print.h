// SPDX-License-Identifier: Apache-2.0
//
// The text form. Print writes all that a module holds except source lines, decisions of passes included; Parse
// (parse.h) reads it back. Equal modules give equal text, and Print(Parse(text)) is text for every text that Print
// wrote.
//
//   kiln 1
//   func @scale[%m](%A: global f16[%m, 64], %f: f32) {
//     kernel @main grid((%m + 127) // 128) threads 128 blocks(%bx) {
//       %t = alloc fragment f16[128, 64]
//       copy %A[%bx * 128, 0; 128, 64] -> %t[0, 0; 128, 64]
//       for parallel %i, %j in 128, 64 {
//         store %t[%i, %j] = f16(f32(%t[%i, %j]) * %f)
//       }
//       copy %t[0, 0; 128, 64] -> %A[%bx * 128, 0; 128, 64]
//     }
//   }
//
// Symbols stand in brackets after the function's name. A region is a buffer with offsets and, after the semicolon,
// extents. Constants and variables are i32 or f32, others say their type after a colon. Names are what the program's
// author gave, made unique. '#' starts a comment.
#pragma once

#include <string>
#include <vector>

#include "ir/enum_text.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::ir {

std::string Print(const Module& module);
// One line, without the body of a compound statement.
std::string PrintStmt(const Module& module, const Stmt& stmt);
std::string PrintExpr(const Module& module, ExprId id);

class Names;
std::string PrintStmt(const Module& module, const Names& names, const Stmt& stmt);  // for many of one module

// Names as the text form has them, without the '%'.
class Names {
 public:
  explicit Names(const Module& module);
  const std::string& Of(VarId id) const { return vars_[Index(id)]; }
  const std::string& Of(BufferId id) const { return buffers_[Index(id)]; }

 private:
  std::vector<std::string> vars_, buffers_;
};

}  // namespace kiln::ir
