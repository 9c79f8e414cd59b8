// SPDX-License-Identifier: Apache-2.0
#include "compiler/accesses/matrices.h"

#include <algorithm>
#include <initializer_list>

#include "compiler/analysis/threads/thread_range.h"

namespace kiln::compiler {
namespace {

using ir::Place;

bool StartsWith(const std::vector<ir::Digit>& dim, std::initializer_list<ir::Digit> digits) {
  return dim.size() >= digits.size() && std::equal(digits.begin(), digits.end(), dim.begin());
}

// Whether every row of every matrix starts at a multiple of 16 bytes.
bool RowsAreAligned(const ir::Module& module, const Facts& facts, const ThreadLoop& loop, const ir::Store& store) {
  const int last = int(store.indices.size()) - 1;
  for (int d = 0; d < last; ++d)
    if (SharedStride(module[store.buffer], d) % 8 != 0) return false;
  const Linear linear = LinearOf(module.exprs, store.indices.back());
  if (linear.constant % 8 != 0) return false;
  for (const auto& [term, coefficient] : linear.terms) {
    if (loop.VariableOf(ir::ExprId(term)) >= 0) continue;
    if (facts.DivisorOf(ir::ExprId(term)) * coefficient % 8 != 0) return false;
  }
  return true;
}

// Whether a warp's lanes hold such matrices along the last two variables: as rows, or transposed.
std::optional<ir::StoreForm> FormOf(const ThreadLoop& loop) {
  const int columns = int(loop.extents.size()) - 1, rows = columns - 1;
  const auto holds = [&](int lanes, int pairs) {
    return StartsWith(loop.layout.dim(lanes), {{8, Place::kThread, 4}}) &&
           StartsWith(loop.layout.dim(pairs), {{2, Place::kRegister, 1}, {4, Place::kThread, 1}});
  };
  if (holds(columns, rows)) return ir::StoreForm::kTransposed;
  return holds(rows, columns) ? std::optional(ir::StoreForm::kMatrix) : std::nullopt;
}

bool HasCopies(const ir::Layout& layout) {
  return std::ranges::any_of(layout.replicas(), [](const ir::Digit& digit) { return digit.size != 1; });
}

}  // namespace

std::optional<std::array<int64_t, 2>> MatrixSteps(const ThreadLoop& loop, ir::BufferId shared, const SplitAccess& access, int64_t first) {
  std::array<int64_t, 4> at{};
  for (int64_t m = 0; m < 4; ++m) at[size_t(m)] = loop.SharedOffset(shared, access, first + 2 * m);
  const std::array<int64_t, 2> steps{at[1] - at[0], at[2] - at[0]};
  if (at[3] - at[0] != steps[0] + steps[1] || steps[0] % 16 != 0 || steps[1] % 16 != 0) return std::nullopt;
  return steps;
}

std::optional<ir::StoreForm> MatrixForm(const ir::Module& module, const Facts& facts, const target::Target& target, const ir::ThreadRange& threads,
                                        const ThreadLoop& loop, const ir::Store& store) {
  if (!target.Has(target::Feature::kStMatrix) || loop.loop->body.size() != 1 || loop.extents.size() < 2) return std::nullopt;
  if (!std::holds_alternative<ir::Store>(loop.loop->body[0].op)) return std::nullopt;  // under a condition
  if (!IsOfWholeWarps(threads, target.warp_size)) return std::nullopt;
  const ir::Buffer& buffer = module[store.buffer];
  if (store.async || buffer.space != ir::Space::kShared || ir::Bits(buffer.dtype) != 16) return std::nullopt;
  const std::optional<ir::StoreForm> form = FormOf(loop);
  if (!form || loop.IsPadded() || HasCopies(loop.layout) || loop.Registers() % 8 != 0) return std::nullopt;
  const std::optional<SplitAccess> access = loop.Split(store.buffer, store.indices);
  if (!access) return std::nullopt;
  const size_t columns = loop.extents.size() - 1;
  const std::optional<int64_t> across = loop.SharedStep(store.buffer, *access, columns), down = loop.SharedStep(store.buffer, *access, columns - 1);
  if (across != 2 || !down || *down % 16 != 0 || !RowsAreAligned(module, facts, loop, store)) return std::nullopt;
  for (int64_t first = 0; first < loop.Registers(); first += 8)
    if (!MatrixSteps(loop, store.buffer, *access, first)) return std::nullopt;
  return form;
}

}  // namespace kiln::compiler
