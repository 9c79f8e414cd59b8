// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/box.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "compiler/analysis/contains.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using ir::VarId;

// One dimension: elements `constant · factors` apart.
struct Dim {
  int64_t constant;
  std::vector<uint32_t> factors;
  std::optional<size_t> var;
  Sum index = {};
  std::vector<Sum> bounds = {};  // the index is below each of them, or the element is not accessed
  bool natural = false;          // or it is negative, likewise
};

// Which products of an offset belong to a variable's dimension.
enum class Joining {
  kOwn,       // those with the factors of the dimension's stride
  kBatches,   // also those of rows that are counted through batches, as (batch · size + row) · stride
  kCompared,  // of these, those that the conditions on the variable compare: what else is added leads to a row, as of row · stride + i, i < n
};

class Finder {
 public:
  Finder(ir::Module& module, const HostRanges& ranges, const Elements& elements, const IsWantedBelow& is_wanted, Joining joining)
      : joining_(joining),
        module_(module),
        pool_(module.exprs),
        ranges_(ranges),
        elements_(elements),
        is_wanted_(is_wanted),
        sums_(module),
        vars_(elements.vars.begin(), elements.vars.end()) {}

  std::optional<Box> Run() {
    std::map<uint32_t, ExprId> replaced;
    const std::optional<ExprId> offset = WithoutWraps(elements_.offset, replaced);
    if (!offset) return std::nullopt;
    const std::optional<Sum> sum = sums_.Of(*offset);
    if (joining_ == Joining::kCompared) std::ranges::for_each(elements_.conditions, [&](ExprId condition) { AddCompared(condition); });
    if (!sum || !Anchor(*sum) || !Distribute(*sum)) return std::nullopt;
    for (const auto& [x, m] : wraps_)
      if (!Bound(ExprOp::kLt, x, m)) return std::nullopt;
    for (ExprId condition : elements_.conditions)
      if (!Bound(condition)) return std::nullopt;
    return Written();
  }

 private:
  // The bound of a natural x, below which x % m, min(x, m - 1) and x < m ? x : y are x.
  std::optional<ExprId> WrapsAt(const ExprNode& node) {
    if (node.op == ExprOp::kMod || node.op == ExprOp::kFloorMod) return HostOnly(node.args[1]);
    if (node.op == ExprOp::kMin && HostOnly(node.args[1])) return pool_.Add(node.args[1], pool_.Int(1, pool_.Type(node.args[1])));
    if (node.op != ExprOp::kSelect) return std::nullopt;
    const ExprNode condition = pool_[node.args[0]];
    return condition.op == ExprOp::kLt && condition.args[0] == node.args[1] ? HostOnly(condition.args[1]) : std::nullopt;
  }
  std::optional<ExprId> HostOnly(ExprId id) const { return IsForHost(pool_, module_.vars, id) ? std::optional(id) : std::nullopt; }

  // The expression with x in place of each such part that a variable moves. nullopt: something needs the part itself.
  std::optional<ExprId> WithoutWraps(ExprId id, std::map<uint32_t, ExprId>& replaced) {
    if (const auto known = replaced.find(ir::Index(id)); known != replaced.end()) return known->second;
    ExprNode node = pool_[id];
    if (node.op != ExprOp::kLoad && ContainsVar(pool_, id, vars_)) {
      for (int i = 0; i < node.arg_count; ++i) {
        const std::optional<ExprId> arg = WithoutWraps(node.args[size_t(i)], replaced);
        if (!arg) return std::nullopt;
        node.args[size_t(i)] = *arg;
      }
      if (const std::optional<ExprId> bound = WrapsAt(node)) {
        const ExprId x = node.args[node.op == ExprOp::kSelect ? 1 : 0];
        const std::optional<size_t> position = OnlyVar(x);
        if (!position || !ranges_.IsNatural(x, positive_) || !is_wanted_(x, *position, *bound)) return std::nullopt;
        wraps_.emplace_back(x, *bound);
        replaced.emplace(ir::Index(id), x);
        return x;
      }
    }
    const ExprId result = pool_.Simplified(node);
    replaced.emplace(ir::Index(id), result);
    return result;
  }

  std::optional<size_t> OnlyVar(ExprId id) const {
    std::optional<size_t> only;
    for (size_t i = 0; i < elements_.vars.size(); ++i) {
      if (!ContainsVar(pool_, id, std::set<VarId>{elements_.vars[i]})) continue;
      if (only) return std::nullopt;
      only = i;
    }
    return only;
  }

  std::optional<size_t> VarOf(const Product& product) const {
    if (!product.device || pool_[*product.device].op != ExprOp::kVar) return std::nullopt;
    const auto at = std::ranges::find(elements_.vars, VarId(pool_[*product.device].ref));
    return at == elements_.vars.end() ? std::nullopt : std::optional(size_t(at - elements_.vars.begin()));
  }

  // Each variable stands in one product, whose other factors are its dimension's stride.
  bool Anchor(const Sum& sum) {
    std::vector<bool> seen(elements_.vars.size());
    for (const auto& [product, coefficient] : sum) {
      if (!product.device || !ContainsVar(pool_, *product.device, vars_)) continue;
      const std::optional<size_t> var = VarOf(product);
      if (!var || seen[*var] || coefficient < 1) return false;
      seen[*var] = true;
      dims_.push_back({coefficient, product.factors, var});
    }
    const bool any_unit = std::ranges::any_of(dims_, [](const Dim& dim) { return dim.constant == 1 && dim.factors.empty(); });
    return any_unit && std::ranges::find(seen, false) == seen.end();
  }

  // Other products join the largest stride that divides theirs, or get a dimension of their own: a batch.
  bool Distribute(const Sum& sum) {
    const size_t anchored = dims_.size();
    for (const auto& [product, coefficient] : sum) {
      if (Dim* home = HomeOf(product, coefficient, std::span(dims_).first(anchored)); home != nullptr) {
        Add(home->index, {{{Without(product.factors, home->factors), product.device}, coefficient / home->constant}}, 1);
        continue;
      }
      const auto batch = std::find_if(dims_.begin() + long(anchored), dims_.end(), [&](const Dim& dim) { return dim.factors == product.factors; });
      if (batch == dims_.end()) {
        dims_.push_back({std::abs(coefficient), product.factors, std::nullopt, {{{{}, product.device}, coefficient}}});
      } else {
        batch->constant = std::gcd(batch->constant, coefficient);
        batch->index[{{}, product.device}] = coefficient;
      }
    }
    for (size_t d = anchored; d < dims_.size(); ++d)
      for (auto& [product, coefficient] : dims_[d].index) coefficient /= dims_[d].constant;
    return true;
  }

  Dim* HomeOf(const Product& product, int64_t coefficient, std::span<Dim> anchored) const {
    Dim* home = nullptr;
    for (Dim& dim : anchored) {
      if (product.device && dim.var && dim.var == VarOf(product)) return &dim;
      const bool divides = joining_ == Joining::kOwn ? dim.factors == product.factors : std::ranges::includes(product.factors, dim.factors);
      if (!divides || coefficient % dim.constant != 0) continue;
      const Product part{Without(product.factors, dim.factors), product.device};
      if (joining_ == Joining::kCompared && !IsCompared(part, coefficient / dim.constant, dim)) continue;
      const auto size = [](const Dim& d) { return std::pair(d.factors.size(), d.constant); };
      if (home == nullptr || size(dim) > size(*home)) home = &dim;
    }
    return home;
  }

  // Whether each condition on the dimension's variable compares this part of its index.
  bool IsCompared(const Product& part, int64_t coefficient, const Dim& dim) const {
    return std::ranges::all_of(compared_, [&](const Sum& sum) {
      const auto found = sum.find(part);
      return !sum.contains(Product{{}, Ref(*dim.var)}) || (found != sum.end() && found->second == coefficient);
    });
  }

  void AddCompared(ExprId condition) {
    const ExprNode node = pool_[condition];
    if (node.arg_count != 2) return;
    if (node.op == ExprOp::kAnd || node.op == ExprOp::kBitAnd) {
      for (ExprId part : node.Args()) AddCompared(part);
      return;
    }
    for (ExprId side : node.Args())
      if (const std::optional<Sum> sum = sums_.Of(side)) compared_.push_back(*sum);
  }

  static std::vector<uint32_t> Without(const std::vector<uint32_t>& factors, const std::vector<uint32_t>& others) {
    std::vector<uint32_t> rest;
    std::ranges::set_difference(factors, others, std::back_inserter(rest));
    return rest;
  }

  bool Bound(ExprId condition) {
    const ExprNode node = pool_[condition];
    if (node.op == ExprOp::kAnd || node.op == ExprOp::kBitAnd) return Bound(node.args[0]) && Bound(node.args[1]);
    if (node.op == ExprOp::kConstInt) return node.int_value != 0;
    if (node.op == ExprOp::kGt) return Bound(ExprOp::kLt, node.args[1], node.args[0]);
    if (node.op == ExprOp::kGe) return Bound(ExprOp::kLe, node.args[1], node.args[0]);
    return (node.op == ExprOp::kLt || node.op == ExprOp::kLe) && Bound(node.op, node.args[0], node.args[1]);
  }

  // left < right, or left ≤ right. It bounds the dimension whose index it compares with what the launcher knows.
  bool Bound(ExprOp op, ExprId left, ExprId right) {
    const std::optional<Sum> a = sums_.Of(left), b = sums_.Of(right);
    if (!a || !b) return false;
    Sum rest = Minus(*a, *b);  // negative where the condition holds
    if (op == ExprOp::kLe) Add(rest, {{{}, 1}}, -1);
    for (Dim& dim : dims_) {
      if (Sum bound = Minus(dim.index, rest); IsForHost(bound)) {
        dim.bounds.push_back(std::move(bound));
        return true;
      }
      Sum negated = rest;
      Add(negated, dim.index, 1);
      if (negated == Sum{{{}, -1}}) return dim.natural = true;
    }
    return false;
  }

  std::optional<Box> Written() {
    // In the order of the loop's variables, the batch first, neighbours in memory last.
    std::ranges::stable_sort(dims_, {}, [](const Dim& dim) {
      const bool unit = dim.var && dim.constant == 1 && dim.factors.empty();
      return std::pair(unit, dim.var ? int64_t(*dim.var) : -1);
    });
    Box box;
    for (const Dim& dim : dims_) {
      const ExprId index = sums_.Write(dim.index);
      if (!dim.natural && !ranges_.IsNatural(index, positive_)) return std::nullopt;
      const std::optional<ExprId> extent = ExtentOf(dim, index);
      if (!extent) return std::nullopt;
      box.shape.push_back(*extent);
      box.strides.push_back(sums_.Write(dim.constant, dim.factors));
      Sum start = dim.index;
      if (dim.var) start.erase(Product{{}, Ref(*dim.var)});
      box.offsets.push_back(sums_.Write(start));
      box.var.push_back(dim.var);
    }
    box.positive = std::move(positive_);
    return box;
  }

  // The variable itself is of the loop that is replaced; in an index it starts at 0.
  ExprId Ref(size_t var) const { return module_.VarRef(elements_.vars[var]); }

  std::optional<ExprId> ExtentOf(const Dim& dim, ExprId index) {
    std::optional<ExprId> extent;
    for (const Sum& bound : dim.bounds) {
      const ExprId next = sums_.Write(bound);
      extent = extent ? pool_.Make(ExprOp::kMin, {*extent, next}) : next;
    }
    if (extent) return extent;
    const std::optional<ExprId> last = ranges_.High(index, positive_);
    return last ? std::optional(pool_.Add(*last, pool_.Int(1, ir::DType::kI64))) : std::nullopt;
  }

  const Joining joining_;
  ir::Module& module_;
  ir::ExprPool& pool_;
  const HostRanges& ranges_;
  const Elements& elements_;
  const IsWantedBelow& is_wanted_;
  Sums sums_;
  std::set<VarId> vars_;
  std::vector<Dim> dims_;
  std::vector<Sum> compared_;  // the sides of comparisons
  std::vector<std::pair<ExprId, ExprId>> wraps_;
  std::vector<ExprId> positive_;
};

}  // namespace

std::optional<Box> BoxOf(ir::Module& module, const HostRanges& ranges, const Elements& elements, const IsWantedBelow& is_wanted) {
  for (const Joining joining : {Joining::kOwn, Joining::kBatches, Joining::kCompared})
    if (std::optional<Box> box = Finder(module, ranges, elements, is_wanted, joining).Run()) return box;
  return std::nullopt;
}

}  // namespace kiln::compiler
