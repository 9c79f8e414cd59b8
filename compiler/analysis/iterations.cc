// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/iterations.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "compiler/analysis/facts.h"
#include "ir/op.h"

namespace kiln::compiler {

std::optional<Version> VersionOf(const ir::Module& module, const Access& access, const std::set<ir::VarId>& loops) {
  const ir::Buffer& buffer = module[access.buffer];
  if (buffer.space != ir::Space::kShared || access.indices.empty()) return std::nullopt;
  if (access.tile && (access.extents.empty() || access.extents.front() != 1)) return std::nullopt;
  const std::optional<int64_t> modulus = module.exprs.ConstInt(buffer.shape.front());
  if (!modulus || *modulus < 2) return std::nullopt;
  const Linear index = LinearOf(module.exprs, access.indices.front());
  if (index.terms.empty()) return Version{std::nullopt, index.constant, *modulus};
  if (*modulus > kMostVersions || index.terms.size() != 1 || index.terms.begin()->second != 1 || index.constant != 0) return std::nullopt;
  ir::ExprNode node = module.exprs[ir::ExprId(index.terms.begin()->first)];
  const bool other = *modulus == 2 && node.op == ir::ExprOp::kBitXor && module.exprs.ConstInt(node.args[1]) == 1;  // of two
  if (other) node = module.exprs[node.args[0]];
  // A remainder of so few versions has the same value in every type of integers.
  if (node.op == ir::ExprOp::kCast && !ir::IsFloat(node.dtype) && node.dtype != ir::DType::kBool) node = module.exprs[node.args[0]];
  if (node.op != ir::ExprOp::kFloorMod || module.exprs.ConstInt(node.args[1]) != modulus) return std::nullopt;
  Linear inner = LinearOf(module.exprs, node.args[0]);
  inner.constant += other;
  if (inner.terms.size() != 1 || inner.terms.begin()->second != 1) return std::nullopt;
  const ir::ExprNode& term = module.exprs[ir::ExprId(inner.terms.begin()->first)];
  if (term.op != ir::ExprOp::kVar || !loops.contains(ir::VarId(term.ref))) return std::nullopt;
  return Version{ir::VarId(term.ref), inner.constant, *modulus};
}

bool MayMeetItself(const Digits& digits, const Access& access, const std::set<ir::VarId>& loops) {
  std::set<ir::VarId> moving, apart;  // loop variables that occur in the indices, and those that keep iterations apart
  for (ir::ExprId index : access.indices) {
    const auto parts = digits.Of(index);
    if (!parts) return true;
    const bool of_threads = std::ranges::any_of(*parts, [](const Digit& digit) { return !digit.loop; });
    const bool told = of_threads && Digits::AreTold(*parts);
    int64_t reach = 0;  // of terms without such variables: the thread's number, the statement's own variables
    std::vector<const Digit*> around;
    for (const Digit& digit : *parts) {
      if (digit.loop && loops.contains(*digit.loop)) {
        around.push_back(&digit);
      } else {
        reach = digit.reach >= kUnbounded / digit.weight ? kUnbounded : std::min(kUnbounded, reach + digit.weight * digit.reach);
      }
    }
    for (const Digit* digit : around) {
      moving.insert(*digit->loop);
      if (told || (around.size() == 1 && digit->weight > reach)) apart.insert(*digit->loop);
    }
  }
  return !std::ranges::includes(apart, moving);
}

IndexSteps::Steps IndexSteps::Of(ir::ExprId index) const {
  const auto [at, added] = known_.try_emplace(index);
  if (!added) return at->second;
  const Linear linear = LinearOf(pool_, index);
  at->second.begin = linear.constant;
  for (const auto& [term, coefficient] : linear.terms) at->second.by = std::gcd(at->second.by, coefficient);
  return at->second;
}

bool NeverMeet(const IndexSteps& indices, const Access& a, const Access& b) {
  if (a.tile || b.tile || a.indices.size() != b.indices.size()) return false;
  for (size_t d = 0; d < a.indices.size(); ++d) {
    if (a.indices[d] == b.indices[d]) continue;
    const IndexSteps::Steps x = indices.Of(a.indices[d]), y = indices.Of(b.indices[d]);
    const int64_t step = std::gcd(x.by, y.by);
    if (step == 0 ? x.begin != y.begin : (x.begin - y.begin) % step != 0) return true;
  }
  return false;
}

}  // namespace kiln::compiler
