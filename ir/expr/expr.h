// SPDX-License-Identifier: Apache-2.0
//
// Scalar expressions, hash-consed in a pool that a module owns: equal expressions have equal ids, and an expression refers only
// to ids below its own, so no walk can run in a circle. An expression has no effect; it is evaluated where the statement that
// holds it runs, and its loads see memory as it is then.
//
// Arithmetic. Integers wrap (two's complement). Division and remainder by zero give an unspecified value and no trap; shifts take the count
// modulo the width. Floats follow IEEE 754 with round to nearest even, except under fast_math (division, square root and transcendental
// functions approximate, subnormals flushed; if a row of a product's operand shares a factor, the product's sums may be multiplied by it
// instead). min and max give the other operand where one is NaN. cast float → integer truncates and saturates, NaN gives 0; float →
// narrower float rounds to nearest even and, for the 8-bit types, saturates to the largest finite value; integer → narrower integer keeps
// the low bits; number → bool is "not zero". A contracted multiply-add (one rounding) is allowed everywhere. A select does not run the
// loads of the arm that is not chosen. "and" and "or" do not run the loads of their second operand if the first one decides the result. So
// all three may guard an index. masked(c, load, other) is select(c, load, other) whose element is not touched where c does not hold: where a
// select guards an index that stays inside of a tensor, the element may still be read and dropped. If the arithmetic of an index overflows its
// type, the access touches an unspecified element of the buffer, or none.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ir/type.h"

namespace kiln::ir {

enum class ExprOp : uint8_t {
#define KILN_EXPR(number, id, name, args, since, rule) id = number,
#include "ir/expr/exprs.def"
};
std::string_view Name(ExprOp op);
std::optional<ExprOp> ExprOpFromName(std::string_view name);
std::optional<ExprOp> ExprOpFromNumber(uint32_t number);
int ArgCount(ExprOp op);  // -1: a load

// How types go through an operation: the rule column of exprs.def.
enum class TypeRule : uint8_t {
  leaf,
  load,
  cast,
  select,
  masked,
  arith,
  integer,
  bits,
  unary,
  logic,
  negation,
  compare,
  math,
  math2,
  math3,
  predicate
};
TypeRule RuleOf(ExprOp op);
inline bool IsComparison(ExprOp op) { return op >= ExprOp::kEq && op <= ExprOp::kGe; }
// Whether its first argument, a bool, chooses between the second and the third, which it gives the type of.
inline bool Chooses(ExprOp op) { return op == ExprOp::kSelect || op == ExprOp::kMasked; }

// Indices into a module's tables.
enum class ExprId : uint32_t {};
enum class VarId : uint32_t {};
enum class BufferId : uint32_t {};
enum class FunctionId : uint32_t {};
constexpr uint32_t Index(ExprId id) { return uint32_t(id); }
constexpr uint32_t Index(VarId id) { return uint32_t(id); }
constexpr uint32_t Index(BufferId id) { return uint32_t(id); }
constexpr uint32_t Index(FunctionId id) { return uint32_t(id); }

inline constexpr int kMaxRank = 8;

struct ExprNode {
  ExprOp op;
  DType dtype;
  uint8_t arg_count = 0;
  std::array<ExprId, kMaxRank> args{};
  int64_t int_value = 0;  // kConstInt (sign- or zero-extended to the type's width); bit pattern of the double for kConstFloat
  uint32_t ref = 0;       // kVar: VarId, kLoad: BufferId

  std::span<const ExprId> Args() const { return {args.data(), arg_count}; }
  double FloatValue() const;  // kConstFloat
  bool operator==(const ExprNode&) const = default;
};

class ExprPool {
 public:
  // Hash-conses `node` as it is, without simplifying. Arguments must exist.
  ExprId Intern(const ExprNode& node);

  // The builders fold constants and apply identities that hold for every value (x + 0, x · 1, x · 0 of integers, nested
  // additions of constants, floordiv and floormod by 1, select of a constant, casts to the same type). Operands must agree in
  // type, as ExprNode's rule in exprs.def says.
  ExprId Int(int64_t value, DType dtype = DType::kI32);
  ExprId Float(double value, DType dtype = DType::kF32);
  ExprId Bool(bool value) { return Int(value, DType::kBool); }
  ExprId Var(VarId var, DType dtype);
  ExprId Load(BufferId buffer, DType dtype, std::span<const ExprId> indices);
  ExprId Cast(DType dtype, ExprId a);
  ExprId Select(ExprId cond, ExprId a, ExprId b);
  ExprId Make(ExprOp op, std::initializer_list<ExprId> args);  // result type by the op's rule
  // `node` as the builders above would make it. Its dtype is taken from it, so casts are welcome.
  ExprId Simplified(const ExprNode& node);
  ExprId Add(ExprId a, ExprId b) { return Make(ExprOp::kAdd, {a, b}); }
  ExprId Sub(ExprId a, ExprId b) { return Make(ExprOp::kSub, {a, b}); }
  ExprId Mul(ExprId a, ExprId b) { return Make(ExprOp::kMul, {a, b}); }
  ExprId CeilDiv(ExprId a, int64_t b);

  const ExprNode& operator[](ExprId id) const { return nodes_[Index(id)]; }
  uint32_t size() const { return uint32_t(nodes_.size()); }
  DType Type(ExprId id) const { return nodes_[Index(id)].dtype; }
  std::optional<int64_t> ConstInt(ExprId id) const;
  bool IsConst(ExprId id, int64_t value) const;
  bool IsZero(ExprId id) const;  // a constant integer or float

  // `id` with variables and loads replaced; memoised over shared subexpressions. `leaf` returns the replacement of a kVar or
  // kLoad node (whose indices are already replaced), or nullopt to keep it.
  template <typename Leaf>
  ExprId Rewrite(ExprId id, Leaf&& leaf) {
    std::unordered_map<uint32_t, ExprId> memo;
    return RewriteMemo(id, leaf, memo);
  }
  // Replaces one variable.
  ExprId Substitute(ExprId id, VarId var, ExprId value);

 private:
  ExprId Rebuild(const ExprNode& node, std::span<const ExprId> args);
  ExprId Constant(const ExprNode& node);
  template <typename Leaf>
  ExprId RewriteMemo(ExprId id, Leaf& leaf, std::unordered_map<uint32_t, ExprId>& memo) {
    if (auto it = memo.find(Index(id)); it != memo.end()) return it->second;
    const ExprNode node = (*this)[id];
    std::array<ExprId, kMaxRank> args;
    for (int i = 0; i < node.arg_count; ++i) args[i] = RewriteMemo(node.args[i], leaf, memo);
    ExprId result = Rebuild(node, {args.data(), node.arg_count});
    if (node.op == ExprOp::kVar || node.op == ExprOp::kLoad) {
      if (std::optional<ExprId> replaced = leaf(result)) result = *replaced;
    }
    memo.emplace(Index(id), result);
    return result;
  }

  std::deque<ExprNode> nodes_;  // references stay valid while the pool grows
  std::unordered_multimap<size_t, uint32_t> index_;
};

// The loads in an expression, each once: the loads of its operands and indices first, from the first operand on.
std::vector<ExprId> LoadsOf(const ExprPool& pool, ExprId id);

// An element that an expression reads, everywhere or only where a mask holds.
struct Read {
  ExprId value;  // the load, or the masked expression that it is part of
  ExprId load;
  std::optional<ExprId> mask;
};
// What an expression reads, in the order of LoadsOf. A load that has several masks, or one and none, is read once for each of them.
std::vector<Read> ReadsOf(const ExprPool& pool, ExprId id);

// Describes what is wrong with the types of `node` under its rule ("add of f16 and f32"); empty if nothing is. Leaves and loads are checked
// as far as the pool knows them; the verifier checks that they agree with their variable or buffer.
std::string TypeProblem(const ExprPool& pool, const ExprNode& node);

}  // namespace kiln::ir
