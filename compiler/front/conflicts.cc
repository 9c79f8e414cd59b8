// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/conflicts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "compiler/analysis/access.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/iteration_trace.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using Iteration = std::vector<int64_t>;

constexpr const char* kHint =
    "iterations run at once, in no order: sum up over a dimension by a reduction (T.reduce_sum), write to another tile, guard the "
    "statement so that one iteration does it, or make the loop serial (T.serial)";
constexpr size_t kMaxSteps = 64;
// How many pairs of accesses of one loop are examined at most.
constexpr int64_t kMaxPairs = 1'000'000;
// Once so many accesses of one loop's iterations have been followed, no further step is tried.
constexpr size_t kMaxTraced = 1'000'000;

// The steps from one iteration to another that may lead to the same element.
class Steps {
 public:
  Steps(const ir::Module& module, const ir::For& loop) : module_(module), loop_(loop) {
    for (const ExprId extent : loop.extents) extents_.push_back(module.exprs.ConstInt(extent).value_or(1));
  }

  const Iteration& extents() const { return extents_; }
  std::vector<Iteration> Take() && { return std::move(steps_); }
  bool Full() const { return steps_.size() == kMaxSteps; }

  // Adds steps between iterations that reach an element through the same expression.
  void OfRepeated(const std::vector<ExprId>& indices) {
    if (!repeated_.insert(indices).second) return;
    std::set<int64_t> lengths = {1};
    for (const ExprId index : indices) Constants(index, lengths);
    for (size_t v = 0; v < extents_.size(); ++v) {
      for (const int64_t length : lengths) Add(Unit(v, length));
      Add(Unit(v, extents_[v] - 1));
      for (size_t u = 0; u < v; ++u) {
        Iteration crossed = Unit(v, 1);
        crossed[u] = -1;
        Add(std::move(crossed));
      }
    }
  }

  // Adds the step from an iteration that touches the element at `to` to one that touches it at `from`, if the two differ by a constant.
  void OfShift(const std::vector<ExprId>& from, const std::vector<ExprId>& to) {
    Iteration step(extents_.size());
    for (size_t d = 0; d < from.size(); ++d) {
      Linear apart = Known(from[d]);
      const Linear& other = Known(to[d]);
      apart.Add(other, -1);
      if (!apart.terms.empty()) return;
      Cover(other, apart.constant, step);
    }
    Add(std::move(step));
  }

 private:
  const Linear& Known(ExprId index) {
    const auto [at, added] = linear_.try_emplace(ir::Index(index));
    if (added) at->second = LinearOf(module_.exprs, index);
    return at->second;
  }

  Iteration Unit(size_t var, int64_t length) const {
    Iteration step(extents_.size());
    step[var] = length;
    return step;
  }

  void Add(Iteration step) {
    bool moves = false;
    for (size_t v = 0; v < step.size(); ++v) {
      if (std::abs(step[v]) >= extents_[v]) return;
      moves |= step[v] != 0;
    }
    if (moves && steps_.size() < kMaxSteps && std::ranges::find(steps_, step) == steps_.end()) steps_.push_back(std::move(step));
  }

  void Constants(ExprId id, std::set<int64_t>& found) const {
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ir::ExprOp::kConstInt && node.int_value > 1) found.insert(node.int_value);
    if (node.op != ir::ExprOp::kLoad) {
      for (const ExprId arg : node.Args()) Constants(arg, found);
    }
  }

  // Builds a step that moves the index by `distance`, using the variables with the largest factors first.
  void Cover(const Linear& index, int64_t distance, Iteration& step) const {
    std::vector<std::pair<int64_t, size_t>> factors;
    for (size_t v = 0; v < loop_.vars.size(); ++v) {
      for (const auto& [term, factor] : index.terms) {
        const ir::ExprNode& node = module_.exprs[ExprId(term)];
        if (node.op == ir::ExprOp::kVar && ir::VarId(node.ref) == loop_.vars[v]) factors.emplace_back(factor, v);
      }
    }
    std::ranges::sort(factors, std::greater(), [](const auto& factor) { return std::abs(factor.first); });
    for (const auto& [factor, v] : factors) {
      step[v] += distance / factor;
      distance %= factor;
    }
  }

  const ir::Module& module_;
  const ir::For& loop_;
  Iteration extents_;
  std::vector<Iteration> steps_;
  std::set<std::vector<ExprId>> repeated_;       // indices whose steps are there
  std::unordered_map<uint32_t, Linear> linear_;  // of an index
};

// Whether no two iterations share an element: each variable stands alone in some dimension.
bool IsOneToOne(const ir::Module& module, const ir::For& loop, const std::vector<ExprId>& indices) {
  std::set<ir::VarId> alone;
  for (const ExprId index : indices) {
    const Linear linear = LinearOf(module.exprs, index);
    std::vector<ir::VarId> own;
    bool plain = true;
    for (const auto& [term, factor] : linear.terms) {
      const ir::ExprNode& part = module.exprs[ExprId(term)];
      plain &= part.op == ir::ExprOp::kVar;
      if (part.op == ir::ExprOp::kVar && std::ranges::count(loop.vars, ir::VarId(part.ref)) > 0) own.push_back(ir::VarId(part.ref));
    }
    if (plain && own.size() == 1) alone.insert(own[0]);
  }
  for (size_t v = 0; v < loop.vars.size(); ++v) {
    if (!alone.contains(loop.vars[v]) && !module.exprs.IsConst(loop.extents[v], 1)) return false;
  }
  return true;
}

std::vector<Iteration> StepsOf(const ir::Module& module, const ir::Stmt& stmt) {
  const auto& loop = std::get<ir::For>(stmt.op);
  Steps steps(module, loop);
  const std::vector<Access> accesses = AccessesOf(module, stmt);
  std::map<ir::BufferId, std::vector<const Access*>> elements;
  for (const Access& access : accesses) {
    if (!access.tile) elements[access.buffer].push_back(&access);
  }
  int64_t pairs = 0;
  for (const Access& write : accesses) {
    if (!write.write || write.tile || module[write.buffer].space == ir::Space::kLocal) continue;
    if (!IsOneToOne(module, loop, write.indices)) steps.OfRepeated(write.indices);
    for (const Access* other : elements[write.buffer]) {
      if (steps.Full() || ++pairs > kMaxPairs) return std::move(steps).Take();
      if (other->indices == write.indices) continue;
      steps.OfShift(write.indices, other->indices);
      steps.OfRepeated(other->indices);
    }
  }
  return std::move(steps).Take();
}

struct Conflict {
  Touched write, other;
  Iteration at, other_at;
};

bool Exists(const ir::Module& module, const Touched& touched) {
  const ir::Buffer& buffer = module[touched.buffer];
  for (size_t d = 0; d < touched.indices.size(); ++d) {
    const auto index = module.exprs.ConstInt(touched.indices[d]), extent = module.exprs.ConstInt(buffer.shape[d]);
    if (index && (*index < 0 || (extent && *index >= *extent))) return false;
  }
  return true;
}

// What an iteration does to an element first, and its last write to it.
struct Ends {
  const Touched* first = nullptr;
  const Touched* last_write = nullptr;
};
using Elements = std::map<std::pair<ir::BufferId, std::vector<ExprId>>, Ends>;

Elements ElementsOf(const std::vector<Touched>& trace) {
  Elements elements;
  for (const Touched& touched : trace) {
    Ends& ends = elements[{touched.buffer, touched.indices}];
    if (ends.first == nullptr) ends.first = &touched;
    if (touched.write) ends.last_write = &touched;
  }
  return elements;
}

// Where two iterations meet. If an iteration reads what it wrote itself, the read does not count; of its writes to an element, only the
// last counts.
std::optional<std::pair<Touched, Touched>> Meet(const ir::Module& module, const std::vector<Touched>& one, const Elements& of_one,
                                                const Elements& of_two) {
  for (const Touched& write : one) {
    if (!write.write || &write != of_one.at({write.buffer, write.indices}).last_write || !Exists(module, write)) continue;
    const auto other = of_two.find({write.buffer, write.indices});
    if (other == of_two.end()) continue;
    const auto& [first, last_write] = other->second;
    if (!first->write) return std::pair(write, *first);
    if (last_write->value != write.value) return std::pair(write, *last_write);
  }
  return std::nullopt;
}

class Finder {
 public:
  Finder(const ir::Module& module, ir::Diagnostics& diagnostics) : module_(module), diagnostics_(diagnostics) {}

  void CheckLoop(const ir::Stmt& stmt) {
    const std::vector<Iteration> steps = StepsOf(module_, stmt);
    if (steps.empty()) return;
    if (!scratch_) scratch_ = module_;
    const auto& loop = std::get<ir::For>(stmt.op);
    traced_ = 0;
    for (const Iteration& step : steps) {
      if (const auto conflict = Find(loop, step)) return Report(*conflict, loop);
      if (traced_ > kMaxTraced) return;
    }
  }

  // Finds copies, and what else is done element by element, within one buffer whose regions overlap without being equal.
  void CheckTiles(const ir::Stmt& stmt) {
    std::vector<const ir::Region*> read, written;
    ir::ForEachRegion(stmt.op, [&](const ir::Region& region, ir::Use use) { (use == ir::Use::kRead ? read : written).push_back(&region); });
    for (const ir::Region* src : read)
      for (const ir::Region* dst : written) CheckShift(stmt, *src, *dst);
  }

 private:
  void CheckShift(const ir::Stmt& stmt, const ir::Region& src, const ir::Region& dst) {
    if (src.buffer != dst.buffer || src.extents != dst.extents) return;
    std::vector<int64_t> shift;
    for (size_t d = 0; d < src.offsets.size(); ++d) {
      Linear apart = LinearOf(module_.exprs, dst.offsets[d]);
      apart.Add(LinearOf(module_.exprs, src.offsets[d]), -1);
      if (!apart.terms.empty() || std::abs(apart.constant) >= src.extents[d]) return;
      shift.push_back(apart.constant);
    }
    if (std::ranges::all_of(shift, [](int64_t by) { return by == 0; })) return;
    diagnostics_.Error(
        fmt::format("a {} within {} to a region ({}) from its source, which it overlaps: it writes elements that it has yet to read",
                    ir::Name(stmt.op), Name(src.buffer), fmt::join(shift, ", ")),
        "elements are written at once, in no order: go through another tile, or by a serial loop (T.serial) over parts that do not overlap", stmt.loc,
        ir::PrintStmt(module_, stmt));
  }

  std::string Name(ir::BufferId id) const { return "%" + ir::Names(module_).Of(id); }

  // Tried at the first iteration that has the step, and at the middle, as conditions may keep out the first.
  std::optional<Conflict> Find(const ir::For& loop, const Iteration& step) {
    for (const int64_t part : {0, 2}) {
      Iteration at, other;
      for (size_t v = 0; v < step.size(); ++v) {
        const int64_t room = *module_.exprs.ConstInt(loop.extents[v]) - std::abs(step[v]) - 1;
        at.push_back((part == 0 ? 0 : room / part) + std::max<int64_t>(0, -step[v]));
        other.push_back(at[v] + step[v]);
      }
      const auto a = TraceIteration(*scratch_, loop, at), b = TraceIteration(*scratch_, loop, other);
      traced_ += a.size() + b.size();
      const Elements of_a = ElementsOf(a), of_b = ElementsOf(b);
      if (const auto met = Meet(*scratch_, a, of_a, of_b)) return Conflict{met->first, met->second, at, other};
      if (const auto met = Meet(*scratch_, b, of_b, of_a)) return Conflict{met->first, met->second, other, at};
    }
    return std::nullopt;
  }

  void Report(const Conflict& conflict, const ir::For& loop) {
    const ir::Names names(module_);
    const auto place = [&](const Iteration& at) {
      std::vector<std::string> parts;
      for (size_t v = 0; v < at.size(); ++v) parts.push_back(fmt::format("{} = {}", names.Of(loop.vars[v]), at[v]));
      return fmt::format("({})", fmt::join(parts, ", "));
    };
    const auto& [write, other, at, other_at] = conflict;
    const ExprId element = scratch_->exprs.Load(write.buffer, module_[write.buffer].dtype, write.indices);
    std::string message = fmt::format("iterations {} and {} of a parallel loop touch one element: the first writes {}, the second {}", place(at),
                                      place(other_at), ir::PrintExpr(*scratch_, element), other.write ? "writes another value to it" : "reads it");
    if (other.stmt != write.stmt) message += fmt::format(" in '{}'{}", ir::PrintStmt(module_, *other.stmt), LineOf(*other.stmt));
    diagnostics_.Error(std::move(message), kHint, write.stmt->loc, ir::PrintStmt(module_, *write.stmt));
  }

  std::string LineOf(const ir::Stmt& stmt) const {
    if (stmt.loc.line == 0 || stmt.loc.file >= module_.files.size()) return "";
    return fmt::format(" ({}:{})", module_.files[stmt.loc.file], stmt.loc.line);
  }

  const ir::Module& module_;
  ir::Diagnostics& diagnostics_;
  std::optional<ir::Module> scratch_;  // whose pool takes what iterations compute
  size_t traced_ = 0;                  // accesses of the loop's iterations that were followed
};

}  // namespace

ir::Result Conflicts(ir::Module& module, const Context&, ir::Diagnostics& diagnostics) {
  const size_t errors = diagnostics.errors();
  Finder finder(module, diagnostics);
  for (const ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop && loop->kind == ir::LoopKind::kParallel) finder.CheckLoop(stmt);
      if (ir::IsOneOf<ir::Copy, ir::AnyElementwise>(stmt.op)) finder.CheckTiles(stmt);
    });
  }
  if (diagnostics.errors() > errors) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
