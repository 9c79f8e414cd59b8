// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/thread_loop.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/register_map.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::Space;

bool IsStore(const ir::Stmt& stmt) { return std::holds_alternative<ir::Store>(stmt.op); }

bool OnlyStores(const ir::Block& body) {
  return std::ranges::all_of(body, [](const ir::Stmt& stmt) {
    const auto* branch = std::get_if<ir::If>(&stmt.op);
    return IsStore(stmt) || (branch != nullptr && branch->else_body.empty() && std::ranges::all_of(branch->then_body, IsStore));
  });
}

// Whether an iteration may read what another left in an array of the thread's own, or writes it in several statements. Such iterations run
// one after the other, each as a whole.
bool SharesAnArray(const ir::Module& module, const ir::Stmt& loop) {
  std::map<BufferId, int> touched;
  std::set<BufferId> written;
  for (const Access& access : AccessesOf(module, loop)) {
    if (module[access.buffer].space != Space::kLocal) continue;
    ++touched[access.buffer];
    if (access.write) written.insert(access.buffer);
  }
  return std::ranges::any_of(written, [&](BufferId id) { return touched[id] > 1; });
}

// Whether the body is one async copy. The width of such a copy was chosen with its instruction.
bool IsAsync(const ir::Block& body) {
  const auto* store = body.size() == 1 ? std::get_if<ir::Store>(&body[0].op) : nullptr;
  return store != nullptr && store->async;
}

// How many neighbouring registers are neighbours in the last variable.
int64_t RunOf(const ir::Layout& layout, const std::vector<int64_t>& extents) {
  const auto& last = layout.dim(layout.rank() - 1);
  if (last.empty() || last[0].place != ir::Place::kRegister || last[0].stride != 1) return 1;
  return extents.back() % last[0].size == 0 ? last[0].size : 1;
}

}  // namespace

int64_t SharedTerm(const ir::Buffer& shared, int dim, int64_t index) {
  int64_t elements = 0;
  for (const ir::Digit& digit : shared.layout->dim(dim)) {
    elements += index % digit.size * digit.stride;
    index /= digit.size;
  }
  return elements * ir::Bits(shared.dtype) / 8;
}

bool IsBlocked(const ir::Buffer& shared, int dim) { return shared.layout->dim(dim).size() > 1; }

int64_t SharedStride(const ir::Buffer& shared, int dim) {
  const auto& digits = shared.layout->dim(dim);
  return digits.empty() ? 0 : digits.front().stride;
}

ThreadLoop::ThreadLoop(const ir::Module& module, const Facts& facts, const ir::Stmt& stmt)
    : loop(&std::get<ir::For>(stmt.op)), layout(*loop->layout), extents(ExtentsOf(module, *loop)), module_(&module), facts_(&facts) {
  for (int64_t r = 0; r < layout.Registers(); ++r) parts.push_back(layout.RegisterPart(r));
  for (size_t v = 0; v < extents.size(); ++v) padded.push_back(layout.Extent(int(v)) > extents[v]);
  only_stores = OnlyStores(loop->body) && !SharesAnArray(module, stmt);
  run = IsAsync(loop->body) ? loop->coalesced_width : only_stores ? RunOf(layout, extents) : 1;
  ir::Walk(loop->body, [&](const ir::Stmt& inner) {
    if (const auto* let = std::get_if<ir::Let>(&inner.op)) bound_inside_.insert(let->var);
    if (const auto* serial = std::get_if<ir::For>(&inner.op)) bound_inside_.insert(serial->vars.begin(), serial->vars.end());
  });
  for (const Access& access : AccessesOf(module, stmt))
    if (access.write) stored.insert(access.buffer);
}

bool ThreadLoop::IsEmpty() const { return std::ranges::find(extents, 0) != extents.end(); }
bool ThreadLoop::IsPadded() const { return std::ranges::find(padded, true) != padded.end(); }

int ThreadLoop::VariableOf(ExprId id) const {
  const ir::ExprNode& node = module_->exprs[id];
  if (node.op != ir::ExprOp::kVar) return -1;
  const auto it = std::ranges::find(loop->vars, ir::VarId(node.ref));
  return it == loop->vars.end() ? -1 : int(it - loop->vars.begin());
}

LoopDigits ThreadLoop::DigitsOf(ExprId id) const {
  if (const int v = VariableOf(id); v >= 0) return {v};
  const ir::ExprNode& node = module_->exprs[id];
  if (node.op != ir::ExprOp::kFloorDiv && node.op != ir::ExprOp::kFloorMod) return {};
  const int64_t by = module_->exprs.ConstInt(node.args[1]).value_or(0);
  LoopDigits digits = DigitsOf(node.args[0]);
  if (digits.variable < 0 || by <= 0 || by > INT32_MAX / digits.divisor) return {};
  const int64_t bound = digits.divisor * by;
  if (digits.modulus % bound != 0) return {};
  // Each digit of the layout must lie on one side of the bound, or split at it. Then the values of the thread's part and of the register's
  // part add up.
  int64_t weight = 1;
  for (const ir::Digit& digit : layout.dim(digits.variable)) {
    if (weight % bound != 0 && bound % weight != 0) return {};
    weight *= digit.size;
  }
  (node.op == ir::ExprOp::kFloorDiv ? digits.divisor : digits.modulus) = bound;
  return digits;
}

bool ThreadLoop::IsSettled(ExprId id) const {
  const auto varies = [&](ExprId part) {
    const ir::ExprNode& node = module_->exprs[part];
    if (node.op == ir::ExprOp::kVar) return VariableOf(part) >= 0 || bound_inside_.contains(ir::VarId(node.ref));
    if (node.op != ir::ExprOp::kLoad) return false;
    // A load that has one value for all iterations. It may also lie outside of a global buffer, where it reads the pad value.
    const ir::Buffer& buffer = (*module_)[BufferId(node.ref)];
    const auto inside = [&](ExprId index, ExprId extent) { return facts_->Inside(index, 1, extent); };
    const bool exists = buffer.space == Space::kGlobal || (buffer.space == Space::kLocal && std::ranges::equal(node.Args(), buffer.shape, inside));
    return stored.contains(BufferId(node.ref)) || !exists;
  };
  return !Contains(module_->exprs, id, varies);
}

// Whether an index in a dimension of several digits splits into the thread's part and the register's part without a carry into the next
// block. So it does if one variable of the loop moves by steps of 1 and all else is a multiple of the block. Another term may lie within the
// block, if it leaves room for all values of the variable.
bool ThreadLoop::BlocksAreWhole(BufferId id, int dim, const Linear& index) const {
  const int64_t block = (*module_)[id].layout->dim(dim)[0].size;
  if (index.constant % block != 0 || index.constant < 0) return false;
  int variables = 0;
  int64_t room = block;
  for (const auto& [term, coefficient] : index.terms) {
    const int64_t divisor = facts_->DivisorOf(ExprId(term)) * coefficient;
    if (DigitsOf(ExprId(term)).variable >= 0 || divisor % block == 0) continue;
    const Range range = facts_->RangeOf(ExprId(term));
    if (room != block || coefficient <= 0 || range.min < 0 || range.max > (block - 1) / coefficient) return false;
    room = std::gcd(block, divisor);
  }
  for (const auto& [term, coefficient] : index.terms) {
    const LoopDigits by = DigitsOf(ExprId(term));
    if (by.variable < 0) continue;
    if (coefficient != 1 || by.modulus != 0 || ++variables > 1) return false;
    if (room != block && (by.divisor != 1 || layout.Extent(by.variable) > room)) return false;
    int64_t weight = 1;
    for (const ir::Digit& digit : layout.dim(by.variable)) {
      const int64_t step = std::max<int64_t>(1, weight / by.divisor);
      if (block % step != 0 && step % block != 0) return false;
      weight *= digit.size;
    }
  }
  return true;
}

std::optional<SplitAccess> ThreadLoop::Split(BufferId id, std::span<const ExprId> indices) const {
  const ir::Buffer& buffer = (*module_)[id];
  SplitAccess split;
  for (size_t d = 0; d < indices.size(); ++d) {
    const Linear linear = LinearOf(module_->exprs, indices[d]);
    if (buffer.space == Space::kShared && IsBlocked(buffer, int(d)) && !BlocksAreWhole(id, int(d), linear)) return std::nullopt;
    SplitAccess::Index& index = split.indices.emplace_back(SplitAccess::Index{linear.constant, {}});
    for (const auto& [term, coefficient] : linear.terms) {
      const LoopDigits digits = DigitsOf(ExprId(term));
      if (digits.variable < 0 && !IsSettled(ExprId(term))) return std::nullopt;
      index.terms.push_back({ExprId(term), coefficient, digits});
    }
  }
  return split;
}

int64_t ThreadLoop::SharedOffset(BufferId id, const SplitAccess& access, int64_t reg) const {
  const ir::Buffer& buffer = (*module_)[id];
  int64_t offset = 0;
  for (size_t d = 0; d < access.indices.size(); ++d) {
    const int64_t stride = SharedStride(buffer, int(d)) * ir::Bytes(buffer.dtype);
    const bool blocked = IsBlocked(buffer, int(d));
    offset += blocked ? SharedTerm(buffer, int(d), access.indices[d].constant) : access.indices[d].constant * stride;
    for (const auto& [value, coefficient, digits] : access.indices[d].terms) {
      if (digits.variable < 0) continue;
      const int64_t count = digits.Of(parts[size_t(reg)][size_t(digits.variable)]);
      offset += blocked ? SharedTerm(buffer, int(d), count) : coefficient * stride * count;
    }
  }
  return offset;
}

// Of the thread's part of some digits; 0: they have none.
int64_t ThreadLoop::ThreadDivisor(const LoopDigits& digits) const {
  int64_t divisor = 0, weight = 1;
  for (const ir::Digit& digit : layout.dim(digits.variable)) {
    const int64_t end = weight * digit.size;
    const bool counts =
        digit.place == ir::Place::kThread && digit.size > 1 && end > digits.divisor && (digits.modulus == 0 || weight < digits.modulus);
    if (counts) divisor = std::gcd(divisor, std::max<int64_t>(1, weight / digits.divisor));
    weight = end;
  }
  return divisor;
}

int64_t ThreadLoop::DivisorOf(const SplitAccess::Term& term) const {
  return term.coefficient * (term.digits.variable >= 0 ? ThreadDivisor(term.digits) : facts_->DivisorOf(term.value));
}

int64_t ThreadLoop::SharedDivisor(BufferId id, const SplitAccess& access) const {
  const ir::Buffer& buffer = (*module_)[id];
  int64_t divisor = 0;
  for (size_t d = 0; d < access.indices.size(); ++d) {
    for (const SplitAccess::Term& term : access.indices[d].terms) {
      int64_t of_index = DivisorOf(term);
      if (of_index == 0) continue;
      for (const ir::Digit& digit : buffer.layout->dim(int(d))) {
        const bool last = &digit == &buffer.layout->dim(int(d)).back();
        divisor = std::gcd(divisor, (last ? of_index : std::gcd(of_index, digit.size)) * digit.stride * ir::Bytes(buffer.dtype));
        of_index = of_index % digit.size == 0 ? of_index / digit.size : 1;
      }
    }
  }
  return divisor;
}

std::optional<int64_t> ThreadLoop::SharedStep(BufferId id, const SplitAccess& access, size_t variable) const {
  int64_t bytes = 0;
  for (size_t d = 0; d < access.indices.size(); ++d) {
    for (const auto& [value, coefficient, digits] : access.indices[d].terms) {
      if (digits.variable != int(variable)) continue;
      if (!digits.IsWhole()) return std::nullopt;
      bytes += coefficient * SharedStride((*module_)[id], int(d)) * ir::Bytes((*module_)[id].dtype);
    }
  }
  return bytes;
}

std::vector<VectorPlace> PlacesAcross(const ThreadLoop& loop, size_t variable, int64_t width) {
  const int64_t stride = loop.layout.dim(int(variable))[0].stride;
  std::vector<VectorPlace> places;
  for (int64_t reg = 0; reg < loop.Registers(); ++reg) {
    const int64_t place = reg / stride % width;
    places.push_back({reg - place * stride, place});
  }
  return places;
}

std::optional<std::vector<VectorPlace>> PlacesGathered(const ThreadLoop& loop, const ir::Module& module, BufferId shared, const SplitAccess& access,
                                                       int64_t width) {
  const int64_t element = ir::Bytes(module[shared].dtype), bytes = element * width;
  std::map<int64_t, int64_t> first;  // offset → the first register that has it
  std::vector<int64_t> offsets;
  for (int64_t reg = 0; reg < loop.Registers(); ++reg) {
    offsets.push_back(loop.SharedOffset(shared, access, reg));
    if (offsets.back() < 0 || offsets.back() % element != 0) return std::nullopt;
    first.emplace(offsets.back(), reg);
  }
  std::vector<VectorPlace> places;
  for (int64_t offset : offsets) {
    const int64_t start = offset / bytes * bytes;
    for (int64_t at = start; at < start + bytes; at += element)
      if (!first.contains(at)) return std::nullopt;
    places.push_back({first.at(start), (offset - start) / element});
  }
  return places;
}

}  // namespace kiln::compiler
