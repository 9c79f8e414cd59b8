// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/length.h"

#include <fmt/format.h>

#include <algorithm>
#include <expected>

#include "compiler/analysis/unrolled.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::Stmt;

class Floor {
 public:
  Floor(const ir::Module& module, const Context& context) : module_(module), context_(context) {}

  // The statement with which the code becomes too much; null: it may be short enough.
  const Stmt* Pass(const Block& block) {
    Add(block, 1);
    return beyond_;
  }

 private:
  static constexpr int64_t kOfAccess = 2;  // an address, and the access

  // `times`: that the block is written out.
  void Add(const Block& block, int64_t times) {
    for (const Stmt& stmt : block) {
      if (beyond_ != nullptr || std::holds_alternative<ir::Break>(stmt.op) || std::holds_alternative<ir::Continue>(stmt.op)) return;
      if (const auto* store = std::get_if<ir::Store>(&stmt.op)) AddAccess(stmt, store->buffer, times);
      if (const auto* atomic = std::get_if<ir::Atomic>(&stmt.op)) AddAccess(stmt, atomic->buffer, times);
      if (const auto* loop = std::get_if<ir::For>(&stmt.op)) AddLoop(*loop, times);
    }
  }

  void AddAccess(const Stmt& stmt, ir::BufferId buffer, int64_t times) {
    if (module_[buffer].space != ir::Space::kGlobal) return;
    code_ += kOfAccess * times;
    if (code_ > context_.max_code()) beyond_ = &stmt;
  }

  static bool IsOne(const Block& block) {
    const auto* loop = block.size() == 1 ? std::get_if<ir::For>(&block[0].op) : nullptr;
    return block.size() == 1 && (loop == nullptr || IsOne(loop->body));
  }

  // Iterations that do one access each may do several by one instruction.
  void AddLoop(const ir::For& loop, int64_t times) {
    const auto runs = [&](ir::ExprId extent) { return module_.exprs.ConstInt(extent).value_or(0) > 0; };
    if (!std::ranges::all_of(loop.extents, runs)) return;
    const bool repeats = loop.kind == ir::LoopKind::kUnroll && !IsOne(loop.body) && IsWrittenOut(module_, loop, context_.max_unrolled());
    Add(loop.body, repeats ? times * *module_.exprs.ConstInt(loop.extents[0]) : times);
  }

  const ir::Module& module_;
  const Context& context_;
  int64_t code_ = 0;
  const Stmt* beyond_ = nullptr;
};

}  // namespace

ir::Result Length(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  Floor floor(module, context);
  for (const ir::Kernel& kernel : module.kernels) {
    if (const Stmt* beyond = floor.Pass(kernel.body)) {
      TooMuchCode(context, diagnostics, beyond->loc);
      return std::unexpected(ir::Failed{});
    }
  }
  return {};
}

void TooMuchCode(const Context& context, ir::Diagnostics& diagnostics, ir::SourceLoc loc) {
  diagnostics.Error(fmt::format("the program becomes more than {} LLVM instructions (a branch counts as {}), the limit of max_code",
                                context.max_code(), kCodeOfBlock),
                    "use smaller tiles, more threads, and loops in place of statements or unrolled loops; with a larger max_code (kiln compile "
                    "--max-code, kiln.max_code of pass_configs) LLVM may take longer than kilnd lets a compile take",
                    loc);
}

}  // namespace kiln::compiler
