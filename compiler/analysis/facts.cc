// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/facts.h"

#include "ir/op.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>
#include <vector>

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

constexpr Range kAnything{-kUnbounded, kUnbounded};

int64_t Saturate(__int128 value) { return int64_t(std::clamp<__int128>(value, -kUnbounded, kUnbounded)); }
int64_t SatAdd(int64_t a, int64_t b) {
  if (std::abs(a) == kUnbounded) return a;
  if (std::abs(b) == kUnbounded) return b;
  return Saturate(__int128(a) + b);
}
int64_t SatMul(int64_t a, int64_t b) { return Saturate(__int128(a) * b); }

Range MulRange(Range a, Range b) {
  const auto [lo, hi] = std::minmax({SatMul(a.min, b.min), SatMul(a.min, b.max), SatMul(a.max, b.min), SatMul(a.max, b.max)});
  return {lo, hi};
}

int64_t FloorDivide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

bool ReadsMemory(const ir::ExprPool& pool, ExprId id) {
  std::vector<ExprId> open{id};
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const ExprId next = open.back();
    open.pop_back();
    if (pool[next].op == ExprOp::kLoad) return true;
    if (!seen.insert(ir::Index(next)).second) continue;
    for (ExprId arg : pool[next].Args()) open.push_back(arg);
  }
  return false;
}

// Arithmetic wraps: what leaves its type may be anything in it.
Range Fit(Range range, ir::DType type) {
  if (!ir::IsInteger(type) || ir::Bits(type) > 60) return range;
  const int bits = ir::Bits(type);
  const Range whole = ir::IsSigned(type) ? Range{-(int64_t{1} << (bits - 1)), (int64_t{1} << (bits - 1)) - 1} : Range{0, (int64_t{1} << bits) - 1};
  return range.min < whole.min || range.max > whole.max ? whole : range;
}

bool IsWideningCast(const ir::ExprPool& pool, const ExprNode& node) {
  if (node.op != ExprOp::kCast) return false;
  const ir::DType from = pool.Type(node.args[0]);
  return ir::IsInteger(node.dtype) && ir::IsInteger(from) && ir::Bits(node.dtype) >= ir::Bits(from);
}

// Of y mod c, with a constant c.
bool IsRemainder(const ir::ExprPool& pool, ExprId id) {
  const ExprNode& node = pool[id];
  return (node.op == ExprOp::kFloorMod || node.op == ExprOp::kMod) && pool.ConstInt(node.args[1]).value_or(0) > 0;
}

// What two divisors of a number tell together; 0 divides 0 alone.
int64_t Common(int64_t a, int64_t b) { return a == 0 || b == 0 ? 0 : std::lcm(a, b); }

// The expression without the casts that keep its value, as those from an index's type to that of a size.
ExprId Uncast(const ir::ExprPool& pool, ExprId id) {
  const auto keeps = [&](const ExprNode& node) {
    const ir::DType from = pool.Type(node.args[0]);
    return IsWideningCast(pool, node) &&
           (ir::IsSigned(from) == ir::IsSigned(node.dtype) || (!ir::IsSigned(from) && ir::Bits(node.dtype) > ir::Bits(from)));
  };
  while (pool[id].op == ExprOp::kCast && keeps(pool[id])) id = pool[id].args[0];
  return id;
}

}  // namespace

void Facts::EnterKernel(const ir::Kernel& kernel) {
  for (uint32_t id = 0; id < module_->vars.size(); ++id) {
    if (module_->vars[id].kind == ir::VarKind::kThread) vars_.Set(id, {{0, int64_t(kernel.threads) - 1}, 1});
    if (module_->vars[id].kind == ir::VarKind::kSymbol) vars_.Set(id, {{0, kUnbounded}, 1});
  }
  for (size_t axis = 0; axis < kernel.block_vars.size(); ++axis) Index(kernel.block_vars[axis], kernel.grid[axis]);
}

void Facts::EnterLoop(const ir::For& loop) {
  for (size_t i = 0; i < loop.vars.size(); ++i) Index(loop.vars[i], loop.extents[i]);
}

void Facts::Index(ir::VarId var, ExprId extent) {
  memo_.Clear();
  vars_.Set(ir::Index(var), {{0, std::max<int64_t>(0, SatAdd(RangeOf(extent).max, -1))}, 1, Uncast(module_->exprs, extent)});
}

void Facts::Bind(const ir::Let& let) {
  vars_.Set(ir::Index(let.var), {RangeOf(let.value), DivisorOf(let.value)});
  memo_.Clear();
}

void Facts::Assume(ExprId cond) {
  const ir::ExprPool& pool = module_->exprs;
  const ExprNode& node = pool[cond];
  if (node.op == ExprOp::kAnd) {
    Assume(node.args[0]);
    Assume(node.args[1]);
    return;
  }
  if (node.arg_count != 2 || !ir::IsInteger(pool.Type(node.args[0]))) return;
  const auto narrow = [&](ExprId id, int64_t min, int64_t max) {
    if (ReadsMemory(pool, id)) return;  // a store may change it before it is read again
    const Range known = RangeOf(id);
    memo_.Clear();
    ranges_.Set(ir::Index(id), {std::max(known.min, min), std::min(known.max, max)});
  };
  const ExprId a = node.args[0], b = node.args[1];
  const Range ra = RangeOf(a), rb = RangeOf(b);
  if (node.op == ExprOp::kLt) Order(a, b);
  if (node.op == ExprOp::kGt) Order(b, a);
  switch (node.op) {
    case ExprOp::kLt:
      narrow(a, -kUnbounded, SatAdd(rb.max, -1));
      narrow(b, SatAdd(ra.min, 1), kUnbounded);
      break;
    case ExprOp::kLe:
      narrow(a, -kUnbounded, rb.max);
      narrow(b, ra.min, kUnbounded);
      break;
    case ExprOp::kGt:
      narrow(a, SatAdd(rb.min, 1), kUnbounded);
      narrow(b, -kUnbounded, SatAdd(ra.max, -1));
      break;
    case ExprOp::kGe:
      narrow(a, rb.min, kUnbounded);
      narrow(b, -kUnbounded, ra.max);
      break;
    case ExprOp::kEq: {
      narrow(a, rb.min, rb.max);
      narrow(b, ra.min, ra.max);
      // x % d == 0
      const ExprNode& left = pool[a];
      const bool is_mod = left.op == ExprOp::kMod || left.op == ExprOp::kFloorMod;
      if (is_mod && pool.IsConst(b, 0)) {
        const std::optional<int64_t> d = pool.ConstInt(left.args[1]);
        if (d && *d != 0 && !ReadsMemory(pool, left.args[0])) {
          const int64_t* known = divisors_.Find(ir::Index(left.args[0]));
          divisors_.Set(ir::Index(left.args[0]), std::lcm(known == nullptr ? 1 : *known, *d));
          memo_.Clear();
        }
      }
      break;
    }
    default: break;
  }
}

void Facts::Order(ExprId below, ExprId above) {
  const ir::ExprPool& pool = module_->exprs;
  if (ReadsMemory(pool, below) || ReadsMemory(pool, above)) return;  // a store may change it before it is read again
  const uint32_t key = ir::Index(Uncast(pool, below));
  const std::vector<ExprId>* known = above_.Find(key);
  std::vector<ExprId> all = known == nullptr ? std::vector<ExprId>() : *known;
  all.push_back(Uncast(pool, above));
  above_.Set(key, std::move(all));
}

Range Facts::RangeOf(ExprId id) const {
  if (const auto known = memo_.ranges.find(ir::Index(id)); known != memo_.ranges.end()) return known->second;
  Range range = Fit(Compute(id), module_->exprs.Type(id));
  if (const Range* said = ranges_.Find(ir::Index(id)); said != nullptr) {
    range = {std::max(said->min, range.min), std::min(said->max, range.max)};
  }
  memo_.ranges.emplace(ir::Index(id), range);
  return range;
}

Range Facts::Compute(ExprId id) const {
  const ir::ExprPool& pool = module_->exprs;
  const ExprNode& node = pool[id];
  const auto arg = [&](int i) { return RangeOf(node.args[i]); };
  switch (node.op) {
    case ExprOp::kConstInt: return {node.int_value, node.int_value};
    case ExprOp::kVar: {
      const VarFact* fact = vars_.Find(node.ref);
      if (fact == nullptr) return kAnything;
      const Range whole = Fit(kAnything, node.dtype);
      return {std::max(fact->range.min, whole.min), std::min(fact->range.max, whole.max)};
    }
    case ExprOp::kAdd: {
      const Range a = arg(0), b = arg(1);
      return {SatAdd(a.min, b.min), SatAdd(a.max, b.max)};
    }
    case ExprOp::kSub: {
      const Range a = arg(0), b = arg(1);
      return {SatAdd(a.min, -b.max), SatAdd(a.max, -b.min)};
    }
    case ExprOp::kMul: return MulRange(arg(0), arg(1));
    case ExprOp::kMin: {
      const Range a = arg(0), b = arg(1);
      return {std::min(a.min, b.min), std::min(a.max, b.max)};
    }
    case ExprOp::kMax: {
      const Range a = arg(0), b = arg(1);
      return {std::max(a.min, b.min), std::max(a.max, b.max)};
    }
    case ExprOp::kMasked:
    case ExprOp::kSelect: {
      const Range a = arg(1), b = arg(2);
      return {std::min(a.min, b.min), std::max(a.max, b.max)};
    }
    case ExprOp::kDiv:
    case ExprOp::kFloorDiv: {
      const Range a = arg(0), b = arg(1);
      if (!b.IsPoint() || b.min <= 0 || (node.op == ExprOp::kDiv && a.min < 0)) return kAnything;
      const auto divide = [&](int64_t v) { return std::abs(v) == kUnbounded ? v : FloorDivide(v, b.min); };
      return {divide(a.min), divide(a.max)};
    }
    case ExprOp::kMod:
    case ExprOp::kFloorMod: {
      const Range a = arg(0), b = arg(1);
      if (!b.IsPoint() || b.min <= 0 || (node.op == ExprOp::kMod && a.min < 0)) return kAnything;
      if (a.min >= 0 && a.max < b.min) return a;
      return {0, b.min - 1};
    }
    case ExprOp::kBitAnd: {
      const Range a = arg(0), b = arg(1);
      if (a.min < 0 && b.min < 0) return kAnything;
      return {0, std::min(a.min < 0 ? kUnbounded : a.max, b.min < 0 ? kUnbounded : b.max)};
    }
    case ExprOp::kCast: return ir::IsInteger(node.dtype) && ir::IsInteger(pool.Type(node.args[0])) ? arg(0) : kAnything;
    default: return kAnything;
  }
}

int64_t Facts::DivisorOf(ExprId id) const {
  if (const auto known = memo_.divisors.find(ir::Index(id)); known != memo_.divisors.end()) return known->second;
  const int64_t divisor = ComputeDivisor(id);
  memo_.divisors.emplace(ir::Index(id), divisor);
  return divisor;
}

int64_t Facts::ComputeDivisor(ExprId id) const {
  const ir::ExprPool& pool = module_->exprs;
  const ExprNode& node = pool[id];
  int64_t divisor = 1;
  switch (node.op) {
    case ExprOp::kConstInt: return std::abs(node.int_value);
    case ExprOp::kVar:
      if (const VarFact* fact = vars_.Find(node.ref); fact != nullptr) divisor = fact->divisor;
      break;
    case ExprOp::kAdd:
    case ExprOp::kSub:
      divisor = std::gcd(DivisorOf(node.args[0]), DivisorOf(node.args[1]));
      if (const ExprId part = Uncast(pool, node.args[1]); node.op == ExprOp::kSub && IsRemainder(pool, part)) {
        const bool same = Uncast(pool, pool[part].args[0]) == Uncast(pool, node.args[0]);  // x − x mod c
        if (same) divisor = Common(divisor, *pool.ConstInt(pool[part].args[1]));
      }
      break;
    case ExprOp::kMin:
    case ExprOp::kMax: divisor = std::gcd(DivisorOf(node.args[0]), DivisorOf(node.args[1])); break;
    case ExprOp::kMul: divisor = SatMul(DivisorOf(node.args[0]), DivisorOf(node.args[1])); break;
    case ExprOp::kMasked:
    case ExprOp::kSelect: divisor = std::gcd(DivisorOf(node.args[1]), DivisorOf(node.args[2])); break;
    case ExprOp::kFloorMod: divisor = std::gcd(DivisorOf(node.args[0]), DivisorOf(node.args[1])); break;
    case ExprOp::kFloorDiv:
      if (const int64_t by = pool.ConstInt(node.args[1]).value_or(0); by > 0 && DivisorOf(node.args[0]) % by == 0)
        divisor = DivisorOf(node.args[0]) / by;
      break;
    case ExprOp::kCast:
      if (IsWideningCast(pool, node)) divisor = DivisorOf(node.args[0]);
      break;
    default: break;
  }
  const int64_t* said = divisors_.Find(ir::Index(id));
  return said == nullptr || *said == 0 ? divisor : Common(divisor, *said);
}

bool Facts::Inside(ExprId index, int64_t extent, ExprId size) const {
  const Range at = RangeOf(index), limit = RangeOf(size);
  if (at.min < 0) return false;
  if (at.max < kUnbounded && SatAdd(at.max, extent) <= limit.min) return true;
  const std::vector<ExprId>* above = above_.Find(ir::Index(Uncast(module_->exprs, index)));
  return extent == 1 && above != nullptr && std::ranges::find(*above, Uncast(module_->exprs, size)) != above->end();
}

bool Facts::CountsTo(ExprId index, ExprId size) const {
  const ExprNode& node = module_->exprs[Uncast(module_->exprs, index)];
  const VarFact* var = node.op == ExprOp::kVar ? vars_.Find(node.ref) : nullptr;
  return var != nullptr && var->end == Uncast(module_->exprs, size);
}

int64_t Linear::Coefficient(ExprId term) const {
  const auto it = terms.find(ir::Index(term));
  return it == terms.end() ? 0 : it->second;
}

void Linear::Add(const Linear& other, int64_t factor) {
  constant += other.constant * factor;
  for (const auto& [term, coefficient] : other.terms) {
    if ((terms[term] += coefficient * factor) == 0) terms.erase(term);
  }
}

namespace {

using LinearMemo = std::unordered_map<uint32_t, Linear>;

const Linear& LinearIn(const ir::ExprPool& pool, ExprId id, LinearMemo& memo);

Linear ComputeLinear(const ir::ExprPool& pool, ExprId id, LinearMemo& memo) {
  const ExprNode& node = pool[id];
  Linear result;
  switch (node.op) {
    case ExprOp::kConstInt: result.constant = node.int_value; return result;
    case ExprOp::kAdd:
    case ExprOp::kSub:
      result = LinearIn(pool, node.args[0], memo);
      result.Add(LinearIn(pool, node.args[1], memo), node.op == ExprOp::kAdd ? 1 : -1);
      return result;
    case ExprOp::kMul: {
      const Linear a = LinearIn(pool, node.args[0], memo), b = LinearIn(pool, node.args[1], memo);
      if (a.terms.empty()) return result.Add(b, a.constant), result;
      if (b.terms.empty()) return result.Add(a, b.constant), result;
      break;
    }
    case ExprOp::kCast:
      if (IsWideningCast(pool, node)) return LinearIn(pool, node.args[0], memo);
      break;
    default: break;
  }
  result.terms[ir::Index(id)] = 1;
  return result;
}

const Linear& LinearIn(const ir::ExprPool& pool, ExprId id, LinearMemo& memo) {
  if (const auto known = memo.find(ir::Index(id)); known != memo.end()) return known->second;
  Linear result = ComputeLinear(pool, id, memo);
  return memo.emplace(ir::Index(id), std::move(result)).first->second;
}

}  // namespace

Linear LinearOf(const ir::ExprPool& pool, ExprId id) {
  LinearMemo memo;
  return LinearIn(pool, id, memo);
}

Congruent WithoutRemainders(const ir::ExprPool& pool, const Linear& sum) {
  Congruent result{.sum = {.constant = sum.constant, .terms = {}}};
  for (const auto& [term, coefficient] : sum.terms) {
    const ExprId value = Uncast(pool, ExprId(term));
    const bool remainder = IsRemainder(pool, value);
    result.sum.Add(remainder ? LinearOf(pool, pool[value].args[0]) : Linear{.constant = 0, .terms = {{term, 1}}}, coefficient);
    if (remainder) result.modulus = std::gcd(result.modulus, SatMul(coefficient, *pool.ConstInt(pool[value].args[1])));
  }
  return result;
}

}  // namespace kiln::compiler
