// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/iterations.h"

#include <algorithm>

#include "compiler/analysis/contains.h"

namespace kiln::llvm_ir {

using ir::ExprId;

Value* Iterations::ThreadPart(const compiler::LoopDigits& digits) const {
  Value* part = thread_part_[size_t(digits.variable)];
  if (digits.modulus != 0) part = b().CreateURem(part, I32(digits.modulus));
  return digits.divisor == 1 ? part : b().CreateUDiv(part, I32(digits.divisor));
}

void Iterations::Enter(int64_t reg) {
  current_ = reg;
  for (size_t v = 0; v < loop_.extents.size(); ++v) {
    const ir::VarId var = loop_.loop->vars[v];
    Value* index = thread_part_[v];
    if (const int64_t part = RegisterPart(reg)[v]; part != 0) index = b().CreateAdd(index, I32(part));
    evaluator_.Bind(var, b().CreateSExtOrTrunc(index, ValueType(llvm(), module()[var].dtype)));
  }
}

Value* Iterations::Exists(int64_t reg) const {
  Value* exists = nullptr;
  for (size_t v = 0; v < loop_.extents.size(); ++v) {
    if (!loop_.padded[v]) continue;
    Value* index = b().CreateAdd(thread_part_[v], I32(RegisterPart(reg)[v]));
    exists = Both(exists, b().CreateICmpULT(index, I32(loop_.extents[v])));
  }
  return exists;
}

bool Iterations::IsOfPadding(std::span<const ExprId> indices) const {
  const auto is_padded = [&](ExprId id) {
    const int variable = loop_.VariableOf(id);
    return variable >= 0 && loop_.padded[size_t(variable)];
  };
  return std::ranges::any_of(indices, [&](ExprId index) { return compiler::Contains(pool(), index, is_padded); });
}

// Along each padded variable the loop and the fragment must end together.
bool Iterations::PaddingIsTheSame(const ir::Store& store) const {
  const ir::Buffer& fragment = module()[store.buffer];
  for (int v = 0; v < int(loop_.extents.size()); ++v) {
    if (!loop_.padded[size_t(v)]) continue;
    const auto index = std::ranges::find_if(store.indices, [&](ExprId id) { return loop_.VariableOf(id) == v; });
    if (index == store.indices.end()) return false;
    const int dim = int(index - store.indices.begin());
    if (pool().ConstInt(fragment.shape[size_t(dim)]) != loop_.extents[size_t(v)]) return false;
    if (fragment.layout->Extent(dim) < loop_.layout.Extent(v)) return false;
  }
  return true;
}

}  // namespace kiln::llvm_ir
