// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/dependences.h"

#include <algorithm>
#include <map>
#include <set>

#include "compiler/analysis/access.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::VarId;

// The ring that fills each tile; a ring's position counts as one.
std::map<BufferId, BufferId> RingsOf(const ir::Block& body) {
  std::map<BufferId, BufferId> rings;
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    if (copy != nullptr && copy->plan && copy->plan->ring) rings[copy->dst.buffer] = copy->plan->ring->barriers;
    if (const auto* step = std::get_if<ir::RingStep>(&stmt.op)) rings[step->ring.position] = step->ring.barriers;
  });
  return rings;
}

// The variables that a statement binds and uses, those within it included.
class Variables : public ir::FieldVisitor {
 public:
  explicit Variables(const ir::Module& module) : module_(module) {}

  void Evaluates(ir::ExprId id, std::string_view) { Add(id); }
  void Region(const ir::Region& region, std::string_view, ir::Use) {
    for (ir::ExprId offset : region.offsets) Add(offset);
  }
  void Element(ir::BufferId, const std::vector<ir::ExprId>& indices, ir::Use) {
    for (ir::ExprId index : indices) Add(index);
  }
  void Binds(VarId var, std::string_view) { binds.insert(var); }

  std::set<VarId> binds, uses;

 private:
  void Add(ir::ExprId id) {
    if (!seen_.insert(id).second) return;
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ir::ExprOp::kVar) uses.insert(VarId(node.ref));
    for (ir::ExprId arg : node.Args()) Add(arg);
  }

  const ir::Module& module_;
  std::set<ir::ExprId> seen_;
};

}  // namespace

Dependences::Dependences(const ir::Module& module, const ir::Block& body) {
  const std::map<BufferId, BufferId> rings = RingsOf(body);
  for (const ir::Stmt& stmt : body) {
    std::set<BufferId> reads, writes;
    Variables variables(module);
    ir::WalkWithin(stmt, [&](const ir::Stmt& inner) {
      ir::Fields(inner.op, variables);
      if (const auto* step = std::get_if<ir::RingStep>(&inner.op)) writes.insert(step->ring.barriers);
      if (const auto scratch = ScratchOf(inner)) writes.insert(*scratch);
      if (const auto* wait = std::get_if<ir::AsyncWait>(&inner.op); wait != nullptr && wait->product) writes.insert(*wait->product);
      for (const Access& access : AccessesOf(module, inner)) {
        const auto ring = rings.find(access.buffer);
        if (ring != rings.end()) {
          writes.insert(ring->second);
        } else {
          (access.write ? writes : reads).insert(access.buffer);
        }
      }
    });
    touches_.push_back({{reads.begin(), reads.end()},
                        {writes.begin(), writes.end()},
                        {variables.binds.begin(), variables.binds.end()},
                        {variables.uses.begin(), variables.uses.end()}});
  }
}

bool Dependences::Meet(const auto& a, const auto& b) {
  return std::ranges::any_of(a, [&](auto id) { return std::ranges::binary_search(b, id); });
}

bool Dependences::Conflict(size_t a, size_t b) const {
  const Touches &first = touches_[a], &second = touches_[b];
  return Meet(first.writes, second.writes) || Meet(first.writes, second.reads) || Meet(first.reads, second.writes);
}

bool Dependences::Binds(size_t a, size_t b) const { return Meet(touches_[a].binds, touches_[b].uses); }

}  // namespace kiln::compiler
