// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/encounters.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <optional>

#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/thread_range.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::Digit;
using ir::Place;

int64_t Elements(const std::vector<int64_t>& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

// Appends a digit of an element's row-major place. Only digits that determine the thread have a stride; registers have stride 0. Digits
// that continue each other are merged.
void Append(std::vector<Digit>& digits, const Digit& digit) {
  const Digit next{digit.size, digit.place, digit.place == Place::kThread ? digit.stride : 0};
  if (next.size == 1) return;
  Digit* last = digits.empty() ? nullptr : &digits.back();
  if (last != nullptr && last->place == next.place && next.stride == last->stride * last->size) {
    last->size *= next.size;
  } else {
    digits.push_back(next);
  }
}

// `dims`: of the layout, the fastest along the buffer first. nullopt where threads share elements or the tile has padding.
std::optional<std::vector<Digit>> DigitsOf(const ir::Layout& layout, const std::vector<int64_t>& extents, const std::vector<int>& dims) {
  if (layout.IsReplicated() || layout.IsPadded(extents)) return std::nullopt;
  std::vector<Digit> digits;
  for (int d : dims)
    for (const Digit& digit : layout.dim(d)) Append(digits, digit);
  return digits;
}

std::optional<std::vector<Digit>> OfCopy(const ir::Module& module, int64_t threads, const ir::Copy& copy, const Access& access) {
  if (!access.async || access.extents != module.ShapeOf(access.buffer)) return std::nullopt;
  std::vector<int64_t> extents = access.extents;
  std::erase(extents, 1);
  if (extents.empty()) return std::nullopt;
  std::vector<int> dims(extents.size());
  std::iota(dims.rbegin(), dims.rend(), 0);
  return DigitsOf(ir::Layout::Distributed(extents, threads, copy.plan->vector), extents, dims);
}

// The digits of a loop whose variables enumerate the buffer's elements: the stride of each is the product of all faster extents.
std::optional<std::vector<Digit>> OfLoop(const ir::Module& module, const ir::For& loop, const Access& access) {
  if (loop.kind != ir::LoopKind::kParallel || !loop.layout) return std::nullopt;
  const std::vector<int64_t> shape = module.ShapeOf(access.buffer), extents = ExtentsOf(module, loop);
  Linear place;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0; stride *= shape[d]) place.Add(LinearOf(module.exprs, access.indices[d]), stride);
  std::map<int64_t, int> dims;  // by what a step of theirs counts
  for (const auto& [term, coefficient] : place.terms) {
    const ir::ExprNode& node = module.exprs[ir::ExprId(term)];
    const auto var = std::ranges::find(loop.vars, ir::VarId(node.ref));
    if (node.op != ir::ExprOp::kVar || var == loop.vars.end()) return std::nullopt;
    if (!dims.emplace(coefficient, int(var - loop.vars.begin())).second) return std::nullopt;
  }
  std::vector<int> order;
  int64_t expected = 1;
  for (const auto& [step, v] : dims) {
    if (step != expected) return std::nullopt;
    expected *= extents[size_t(v)];
    order.push_back(v);
  }
  if (place.constant != 0 || expected != Elements(shape) || expected != Elements(extents)) return std::nullopt;
  return DigitsOf(*loop.layout, extents, order);
}

std::optional<std::vector<Digit>> ThreadsAlong(const ir::Module& module, int64_t threads, const Occurrence& at) {
  if (const auto* copy = std::get_if<ir::Copy>(&at.stmt.op)) return OfCopy(module, threads, *copy, at.access);
  if (const auto* loop = std::get_if<ir::For>(&at.stmt.op)) return OfLoop(module, *loop, at.access);
  return std::nullopt;
}

}  // namespace

Encounters::Encounters(const ir::Module& module, const ir::Kernel& kernel) : module_(module), kernel_(kernel), facts_(module) {
  facts_.EnterKernel(kernel);
  FindNarrowed(kernel.body, std::nullopt);
}

void Encounters::FindNarrowed(const ir::Block& block, const std::optional<ir::ThreadRange>& threads) {
  for (const ir::Stmt& stmt : block) {
    if (threads) narrowed_.emplace(&stmt, *threads);
    if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind != ir::LoopKind::kParallel)
      FindNarrowed(loop->body, threads);
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) FindNarrowed(loop->body, threads);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
      FindNarrowed(branch->then_body, branch->then_threads ? branch->then_threads : threads);
      FindNarrowed(branch->else_body, branch->else_threads ? branch->else_threads : threads);
    }
  }
}

ir::ThreadRange Encounters::ThreadsOf(const ir::Stmt& stmt) const {
  const auto it = narrowed_.find(&stmt);
  return it != narrowed_.end() ? it->second : AllThreads(kernel_);
}

// For each dimension, the range of an access's indices, from the first to one past the last.
const std::vector<Range>& Encounters::Reach(const Occurrence& at) const {
  const auto [it, added] = reaches_.try_emplace({&at.stmt, at.access.indices, at.access.extents});
  if (!added) return it->second;
  Facts facts = facts_;
  const auto* loop = std::get_if<ir::For>(&at.stmt.op);
  if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) facts.EnterLoop(*loop);
  for (size_t d = 0; d < at.access.indices.size(); ++d) {
    const Range index = facts.RangeOf(at.access.indices[d]);
    it->second.push_back({index.min, index.max + (at.access.tile ? at.access.extents[d] : 1)});
  }
  return it->second;
}

bool Encounters::Apart(const Occurrence& a, const Occurrence& b) const {
  const std::vector<Range>&first = Reach(a), &second = Reach(b);
  for (size_t d = 0; d < std::min(first.size(), second.size()); ++d)
    if (first[d].max <= second[d].min || second[d].max <= first[d].min) return true;
  return false;
}

bool Encounters::BySameThreads(const Occurrence& a, const Occurrence& b) const {
  const ir::ThreadRange threads = ThreadsOf(a.stmt);
  if (!threads.IsSame(ThreadsOf(b.stmt))) return false;
  const auto first = ThreadsAlong(module_, threads.Count(), a);
  return first && first == ThreadsAlong(module_, threads.Count(), b);
}

}  // namespace kiln::compiler
