// SPDX-License-Identifier: Apache-2.0
#include "ir/expr/expr.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <unordered_set>

#include "ir/expr/fold.h"
#include "ir/expr/numeric.h"

namespace kiln::ir {
namespace {

struct Row {
  ExprOp op;
  std::string_view name;
  int args;
  TypeRule rule;
};
constexpr Row kRows[] = {
#define KILN_EXPR(number, id, name, args, since, rule) {ExprOp::id, name, args, TypeRule::rule},
#include "ir/expr/exprs.def"
};

const Row* FindRow(uint32_t number) {
  for (const Row& row : kRows) {
    if (uint32_t(row.op) == number) return &row;
  }
  return nullptr;
}

// The rows by number, so that a lookup needs no search.
constexpr size_t kNumbers = 64;
constexpr auto kByNumber = [] {
  std::array<Row, kNumbers> table{};
  for (const Row& row : kRows) table[size_t(row.op)] = row;
  return table;
}();
const Row& RowOf(ExprOp op) { return kByNumber[size_t(op)]; }

size_t Mix(size_t seed, uint64_t value) { return (seed ^ value) * 0x9e3779b97f4a7c15 ^ (seed >> 29); }

// The seed differs between processes, so that nobody can send expressions which all fall into one bucket. No order depends on it.
const char kAnywhere = 0;
size_t Seed() { return Mix(reinterpret_cast<uintptr_t>(&kAnywhere), 0x5bd1e995); }

size_t HashOf(const ExprNode& node) {
  size_t hash = Mix(Seed() ^ (uint64_t(node.op) << 8 | uint64_t(node.dtype)), uint64_t(node.int_value));
  hash = Mix(hash, node.ref);
  for (ExprId arg : node.Args()) hash = Mix(hash, Index(arg));
  return hash;
}

DType ResultType(const ExprPool& pool, ExprOp op, std::span<const ExprId> args) {
  switch (RowOf(op).rule) {
    case TypeRule::compare:
    case TypeRule::predicate:
    case TypeRule::logic:
    case TypeRule::negation: return DType::kBool;
    case TypeRule::select:
    case TypeRule::masked: return pool.Type(args[1]);
    default: return pool.Type(args[0]);
  }
}

bool IsConstant(const ExprNode& node) { return node.op == ExprOp::kConstInt || node.op == ExprOp::kConstFloat; }

bool IsCommutative(ExprOp op) {
  switch (op) {
    case ExprOp::kAdd:
    case ExprOp::kMul:
    case ExprOp::kMin:
    case ExprOp::kMax:
    case ExprOp::kBitAnd:
    case ExprOp::kBitOr:
    case ExprOp::kBitXor:
    case ExprOp::kAnd:
    case ExprOp::kOr:
    case ExprOp::kEq:
    case ExprOp::kNe: return true;
    default: return false;
  }
}

// Operations on integers for which (x ∘ c) ∘ d = x ∘ (c ∘ d).
bool IsAssociative(ExprOp op) {
  switch (op) {
    case ExprOp::kAdd:
    case ExprOp::kMul:
    case ExprOp::kMin:
    case ExprOp::kMax:
    case ExprOp::kBitAnd:
    case ExprOp::kBitOr:
    case ExprOp::kBitXor: return true;
    default: return false;
  }
}

// Identities of two operands whose right one is the constant `c`; nothing where none holds.
class WithConstant {
 public:
  WithConstant(ExprPool& pool, const ExprNode& node) : pool_(pool), node_(node), x_(node.args[0]), c_(pool[node.args[1]]) {}

  std::optional<ExprId> Simplify() const {
    if (IsFloat(c_.dtype)) return Floats();
    if (auto same = Integers()) return same;
    if (node_.op == ExprOp::kSub && IsSigned(node_.dtype)) {
      return pool_.Add(x_, pool_.Int(WrapTo(node_.dtype, int64_t(-uint64_t(c_.int_value))), node_.dtype));
    }
    return Reassociate();
  }

 private:
  bool Is(int64_t value) const { return c_.int_value == WrapTo(c_.dtype, value); }
  std::optional<ExprId> If(bool holds, ExprId result) const { return holds ? std::optional(result) : std::nullopt; }
  ExprId Zero() const { return pool_.Int(0, node_.dtype); }

  // x + 0.0 is not x for x = −0.0, and x · 0.0 is not 0 for infinities.
  std::optional<ExprId> Floats() const {
    double value = c_.FloatValue();
    bool is_zero = value == 0;
    switch (node_.op) {
      case ExprOp::kAdd: return If(is_zero && std::signbit(value), x_);
      case ExprOp::kSub: return If(is_zero && !std::signbit(value), x_);
      case ExprOp::kMul:
      case ExprOp::kDiv: return If(value == 1, x_);
      default: return std::nullopt;
    }
  }

  std::optional<ExprId> Integers() const {
    switch (node_.op) {
      case ExprOp::kAdd:
      case ExprOp::kSub:
      case ExprOp::kBitXor:
      case ExprOp::kShl:
      case ExprOp::kShr: return If(Is(0), x_);
      case ExprOp::kMul: return Is(0) ? Zero() : If(Is(1), x_);
      case ExprOp::kDiv:
      case ExprOp::kFloorDiv: return If(Is(1), x_);
      case ExprOp::kMod:
      case ExprOp::kFloorMod: return If(Is(1), Zero());
      case ExprOp::kBitAnd: return Is(0) ? Zero() : If(Is(-1), x_);
      case ExprOp::kBitOr: return Is(0) ? x_ : If(Is(-1), node_.args[1]);
      case ExprOp::kAnd: return Is(1) ? x_ : Zero();
      case ExprOp::kOr: return Is(1) ? node_.args[1] : x_;
      case ExprOp::kEq: return If(c_.dtype == DType::kBool && Is(1), x_);
      case ExprOp::kNe: return If(c_.dtype == DType::kBool && Is(0), x_);
      default: return std::nullopt;
    }
  }

  std::optional<ExprId> Reassociate() const {
    const ExprNode& x = pool_[x_];
    if (!IsAssociative(node_.op) || x.op != node_.op || pool_[x.args[1]].op != ExprOp::kConstInt) return std::nullopt;
    ExprId inner = x.args[0];
    return pool_.Make(node_.op, {inner, pool_.Make(node_.op, {x.args[1], node_.args[1]})});
  }

  ExprPool& pool_;
  const ExprNode& node_;
  ExprId x_;
  const ExprNode c_;
};

// x ∘ x of integers and bool.
std::optional<ExprId> WithItself(ExprPool& pool, const ExprNode& node) {
  ExprId x = node.args[0];
  if (IsFloat(pool.Type(x))) return std::nullopt;
  switch (node.op) {
    case ExprOp::kSub:
    case ExprOp::kBitXor: return pool.Int(0, node.dtype);
    case ExprOp::kMin:
    case ExprOp::kMax:
    case ExprOp::kBitAnd:
    case ExprOp::kBitOr:
    case ExprOp::kAnd:
    case ExprOp::kOr: return x;
    case ExprOp::kEq:
    case ExprOp::kLe:
    case ExprOp::kGe: return pool.Bool(true);
    case ExprOp::kNe:
    case ExprOp::kLt:
    case ExprOp::kGt: return pool.Bool(false);
    default: return std::nullopt;
  }
}

std::optional<ExprId> SimplifyUnary(const ExprPool& pool, const ExprNode& node) {
  const ExprNode& arg = pool[node.args[0]];
  bool is_cast = node.op == ExprOp::kCast || node.op == ExprOp::kReinterpret;
  if (is_cast && arg.dtype == node.dtype) return node.args[0];
  bool is_involution = node.op == ExprOp::kNeg || node.op == ExprOp::kNot || node.op == ExprOp::kBitNot;
  if (is_involution && arg.op == node.op) return arg.args[0];
  return std::nullopt;
}

std::optional<ExprId> SimplifySelect(const ExprPool& pool, const ExprNode& node) {
  if (node.args[1] == node.args[2]) return node.args[1];
  if (std::optional<int64_t> cond = pool.ConstInt(node.args[0])) return node.args[*cond != 0 ? 1 : 2];
  return std::nullopt;
}

}  // namespace

std::string_view Name(ExprOp op) { return RowOf(op).name; }
int ArgCount(ExprOp op) { return RowOf(op).args; }
TypeRule RuleOf(ExprOp op) { return RowOf(op).rule; }

std::optional<ExprOp> ExprOpFromName(std::string_view name) {
  for (const Row& row : kRows) {
    if (row.name == name) return row.op;
  }
  return std::nullopt;
}

std::optional<ExprOp> ExprOpFromNumber(uint32_t number) {
  const Row* row = FindRow(number);
  return row ? std::optional(row->op) : std::nullopt;
}

double ExprNode::FloatValue() const { return std::bit_cast<double>(int_value); }

ExprId ExprPool::Intern(const ExprNode& node) {
  size_t hash = HashOf(node);
  auto [begin, end] = index_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (nodes_[it->second] == node) return ExprId(it->second);
  }
  nodes_.push_back(node);
  index_.emplace(hash, uint32_t(nodes_.size() - 1));
  return ExprId(nodes_.size() - 1);
}

ExprId ExprPool::Int(int64_t value, DType dtype) { return IsFloat(dtype) ? Float(double(value), dtype) : Intern(ConstIntNode(dtype, value)); }
ExprId ExprPool::Float(double value, DType dtype) { return Intern(ConstFloatNode(dtype, value)); }
ExprId ExprPool::Var(VarId var, DType dtype) { return Intern({.op = ExprOp::kVar, .dtype = dtype, .ref = Index(var)}); }

ExprId ExprPool::Load(BufferId buffer, DType dtype, std::span<const ExprId> indices) {
  ExprNode node{.op = ExprOp::kLoad, .dtype = dtype, .arg_count = uint8_t(indices.size()), .ref = Index(buffer)};
  std::copy(indices.begin(), indices.end(), node.args.begin());
  return Intern(node);
}

ExprId ExprPool::Cast(DType dtype, ExprId a) { return Simplified({.op = ExprOp::kCast, .dtype = dtype, .arg_count = 1, .args = {a}}); }
ExprId ExprPool::Select(ExprId cond, ExprId a, ExprId b) { return Make(ExprOp::kSelect, {cond, a, b}); }

ExprId ExprPool::Make(ExprOp op, std::initializer_list<ExprId> args) {
  ExprNode node{.op = op, .dtype = ResultType(*this, op, {args.begin(), args.size()}), .arg_count = uint8_t(args.size())};
  std::copy(args.begin(), args.end(), node.args.begin());
  return Simplified(node);
}

ExprId ExprPool::CeilDiv(ExprId a, int64_t b) {
  DType type = Type(a);
  return Make(ExprOp::kFloorDiv, {Add(a, Int(b - 1, type)), Int(b, type)});
}

ExprId ExprPool::Simplified(const ExprNode& given) {
  ExprNode node = given;
  // Where a pass has put a value in the load's place, there is nothing left to keep from reading.
  if (node.op == ExprOp::kMasked && (*this)[node.args[1]].op != ExprOp::kLoad) node.op = ExprOp::kSelect;
  if (node.op == ExprOp::kConstInt || node.op == ExprOp::kConstFloat) return Constant(node);
  if (node.arg_count == 0 || node.op == ExprOp::kLoad) return Intern(node);
  if (IsCommutative(node.op) && IsConstant((*this)[node.args[0]]) && !IsConstant((*this)[node.args[1]])) {
    std::swap(node.args[0], node.args[1]);
  }
  std::array<const ExprNode*, kMaxRank> args;
  for (int i = 0; i < node.arg_count; ++i) args[i] = &(*this)[node.args[i]];
  if (std::optional<ExprNode> folded = Fold(node, {args.data(), node.arg_count})) return Intern(*folded);
  std::optional<ExprId> simple;
  if (node.arg_count == 1) simple = SimplifyUnary(*this, node);
  if (Chooses(node.op)) simple = SimplifySelect(*this, node);
  if (node.arg_count == 2 && node.args[0] == node.args[1]) simple = WithItself(*this, node);
  if (!simple && node.arg_count == 2 && IsConstant(*args[1])) simple = WithConstant(*this, node).Simplify();
  return simple ? *simple : Intern(node);
}

ExprId ExprPool::Constant(const ExprNode& node) {
  if (node.op == ExprOp::kConstInt) return Intern(ConstIntNode(node.dtype, node.int_value));
  return Intern(ConstFloatNode(node.dtype, node.FloatValue()));
}

std::optional<int64_t> ExprPool::ConstInt(ExprId id) const {
  const ExprNode& node = (*this)[id];
  return node.op == ExprOp::kConstInt ? std::optional(node.int_value) : std::nullopt;
}

bool ExprPool::IsConst(ExprId id, int64_t value) const { return ConstInt(id) == value; }

bool ExprPool::IsZero(ExprId id) const {
  const ExprNode& node = (*this)[id];
  return IsConst(id, 0) || (node.op == ExprOp::kConstFloat && node.FloatValue() == 0);
}

ExprId ExprPool::Rebuild(const ExprNode& node, std::span<const ExprId> args) {
  ExprNode rebuilt = node;
  std::copy(args.begin(), args.end(), rebuilt.args.begin());
  return Simplified(rebuilt);
}

ExprId ExprPool::Substitute(ExprId id, VarId var, ExprId value) {
  return Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
    const ExprNode& node = (*this)[leaf];
    return node.op == ExprOp::kVar && node.ref == Index(var) ? std::optional(value) : std::nullopt;
  });
}

namespace {

void AddLoads(const ExprPool& pool, ExprId id, std::unordered_set<uint32_t>& seen, std::vector<ExprId>& loads) {
  if (!seen.insert(Index(id)).second) return;
  for (ExprId arg : pool[id].Args()) AddLoads(pool, arg, seen, loads);
  if (pool[id].op == ExprOp::kLoad) loads.push_back(id);
}

}  // namespace

std::vector<ExprId> LoadsOf(const ExprPool& pool, ExprId id) {
  std::unordered_set<uint32_t> seen;
  std::vector<ExprId> loads;
  AddLoads(pool, id, seen, loads);
  return loads;
}

namespace {

void AddReads(const ExprPool& pool, ExprId id, std::unordered_set<uint32_t>& seen, std::vector<Read>& reads) {
  if (!seen.insert(Index(id)).second) return;
  const ExprNode& node = pool[id];
  for (size_t a = 0; a < node.Args().size(); ++a) {
    if (node.op != ExprOp::kMasked || a != 1) {
      AddReads(pool, node.args[a], seen, reads);
      continue;
    }
    for (ExprId index : pool[node.args[a]].Args()) AddReads(pool, index, seen, reads);
  }
  if (node.op == ExprOp::kLoad) reads.push_back({id, id, std::nullopt});
  if (node.op == ExprOp::kMasked) reads.push_back({id, node.args[1], node.args[0]});
}

}  // namespace

std::vector<Read> ReadsOf(const ExprPool& pool, ExprId id) {
  std::unordered_set<uint32_t> seen;
  std::vector<Read> reads;
  AddReads(pool, id, seen, reads);
  return reads;
}

}  // namespace kiln::ir
