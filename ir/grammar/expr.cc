// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "ir/grammar/writer.h"

namespace kiln::ir::grammar {
namespace {

std::vector<ExprOp> OpsOf(std::initializer_list<TypeRule> rules) {
  constexpr ExprOp kAll[] = {
#define KILN_EXPR(number, id, name, args, since, rule) ExprOp::id,
#include "ir/exprs.def"
  };
  std::vector<ExprOp> ops;
  for (const ExprOp op : kAll) {
    if (std::ranges::count(rules, RuleOf(op)) > 0) ops.push_back(op);
  }
  return ops;
}

// What gives a value of the type from operands of the same type.
const std::vector<ExprOp>& OpsFor(DType type) {
  static const std::vector<ExprOp> of_floats = OpsOf({TypeRule::arith, TypeRule::unary, TypeRule::math, TypeRule::math2, TypeRule::math3});
  static const std::vector<ExprOp> of_integers = OpsOf({TypeRule::arith, TypeRule::unary, TypeRule::integer, TypeRule::bits});
  static const std::vector<ExprOp> of_bools = OpsOf({TypeRule::logic, TypeRule::negation, TypeRule::bits});
  if (type == DType::kBool) return of_bools;
  return IsFloat(type) ? of_floats : of_integers;
}

}  // namespace

ExprId Writer::Made(ExprOp op, DType type, std::initializer_list<ExprId> args) {
  ExprNode node{.op = op, .dtype = type, .arg_count = uint8_t(args.size())};
  std::ranges::copy(args, node.args.begin());
  return options_.simplified || Coin() ? module.exprs.Simplified(node) : module.exprs.Intern(node);
}

ExprId Writer::Constant(DType type) {
  if (type == DType::kBool) return module.exprs.Bool(Coin());
  if (IsFloat(type)) return module.exprs.Float(FloatValue(), type);
  if (OneIn(6))
    return module.exprs.Int(Pick<int64_t>({std::numeric_limits<int64_t>::min(), -1, std::numeric_limits<int32_t>::max(), 1 << 20, 127}), type);
  return module.exprs.Int(Below(9) - 4, type);
}

ExprId Writer::Leaf(DType type) {
  if (OneIn(3)) {
    std::vector<VarId> fitting;
    std::ranges::copy_if(scope.values, std::back_inserter(fitting), [&](VarId var) { return module[var].dtype == type; });
    if (!fitting.empty()) return module.VarRef(Pick(fitting));
  }
  if (!scope.counts.empty() && OneIn(3)) return Made(ExprOp::kCast, type, {Pick(scope.counts).value});
  if (OneIn(3)) return Element(type, 0);
  return Constant(type);
}

ExprId Writer::Element(DType type, int depth) {
  const BufferId buffer = ElementBuffer();
  std::vector<ExprId> indices = place.parallel && OneIn(2) ? OwnIndices(buffer) : Indices(buffer);
  if (depth > 1 && !indices.empty() && module[buffer].space == Space::kGlobal && OneIn(8))
    indices[0] = Made(ExprOp::kCast, DType::kI32, {Element(DType::kI32, 0)});  // gathered
  ExprId load = module.exprs.Load(buffer, module[buffer].dtype, indices);
  if (depth > 1 && OneIn(4)) load = Made(ExprOp::kMasked, module[buffer].dtype, {Condition(depth - 1), load, Value(module[buffer].dtype, depth - 1)});
  if (module[buffer].dtype == type) return load;
  const bool bits = Bits(module[buffer].dtype) == Bits(type) && OneIn(4);
  return Made(bits ? ExprOp::kReinterpret : ExprOp::kCast, type, {load});
}

ExprId Writer::Operation(DType type, int depth) {
  const ExprOp op = Pick(OpsFor(type));
  const ExprId a = Value(type, depth - 1);
  switch (ArgCount(op)) {
    case 1: return Made(op, type, {a});
    case 2: return Made(op, type, {a, OneIn(8) ? a : Value(type, depth - 1)});
    default: return Made(op, type, {a, Value(type, depth - 1), Value(type, depth - 1)});
  }
}

ExprId Writer::Value(DType type, int depth) {
  if (depth <= 0) return Leaf(type);
  switch (Below(9)) {
    case 0: return Leaf(type);
    case 1: return Made(ExprOp::kCast, type, {Value(AnyType(), depth - 1)});
    case 2: return Made(ExprOp::kSelect, type, {Condition(depth - 1), Value(type, depth - 1), Value(type, depth - 1)});
    case 3:
    case 4: return Element(type, depth);
    case 5: {
      const DType other = AnyType();
      if (Bits(other) == Bits(type)) return Made(ExprOp::kReinterpret, type, {Value(other, depth - 1)});
      break;
    }
    default: break;
  }
  return type == DType::kBool && Coin() ? Condition(depth) : Operation(type, depth);
}

ExprId Writer::Condition(int depth) {
  static const std::vector<ExprOp> compares = OpsOf({TypeRule::compare}), predicates = OpsOf({TypeRule::predicate}), joins = OpsOf({TypeRule::logic});
  if (depth <= 0 && OneIn(4)) return Leaf(DType::kBool);
  const int64_t kind = Below(6);
  if (kind == 0 && depth > 0) return Made(Pick(joins), DType::kBool, {Condition(depth - 1), Condition(depth - 1)});
  if (kind == 1 && depth > 0) return Made(ExprOp::kNot, DType::kBool, {Condition(depth - 1)});
  if (kind == 2) {
    const DType type = Pick<DType>({DType::kF16, DType::kF32, DType::kBF16, DType::kF64, DType::kF8E4M3, DType::kF8E5M2FNUZ});
    return Made(Pick(predicates), DType::kBool, {Value(type, depth - 1)});
  }
  if (!scope.counts.empty() && kind < 5) {
    const Count count = Pick(scope.counts);
    const DType type = module.exprs.Type(count.value);
    return Made(Pick(compares), DType::kBool, {count.value, module.exprs.Int(count.bound > 0 ? Below(count.bound + 1) : Below(100), type)});
  }
  const DType type = Number();
  return Made(Pick(compares), DType::kBool, {Value(type, depth - 1), Value(type, depth - 1)});
}

bool Writer::DiffersByThread(ExprId id) const {
  const ExprNode& node = module.exprs[id];
  if (node.op == ExprOp::kLoad) return true;
  if (node.op == ExprOp::kVar) return module[VarId(node.ref)].kind == VarKind::kThread || differing.contains(VarId(node.ref));
  return std::ranges::any_of(node.Args(), [&](ExprId arg) { return DiffersByThread(arg); });
}

std::pair<ExprId, bool> Writer::Branch() {
  ExprId cond = Condition(int(Below(3)));
  for (int tries = 0; tries < 3 && DiffersByThread(cond) && !place.parallel && !OneIn(5); ++tries) cond = Condition(int(Below(2)));
  return {cond, !DiffersByThread(cond)};
}

// `count`, brought into [0, extent).
ExprId Writer::Varied(const Count& count, int64_t extent) {
  ExprPool& pool = module.exprs;
  const DType type = pool.Type(count.value);
  const auto constant = [&](int64_t value) { return pool.Int(value, type); };
  if (count.bound > 0 && count.bound <= extent) {
    const int64_t room = extent / count.bound;
    if (room > 1 && OneIn(3)) return pool.Mul(count.value, constant(room));
    if (extent > count.bound && OneIn(3)) return pool.Add(count.value, constant(Below(extent - count.bound + 1)));
    if (OneIn(6)) return pool.Sub(constant(extent - 1), count.value);
    return count.value;
  }
  if (Odd(60)) return count.value;
  if (OneIn(4)) return pool.Make(ExprOp::kMax, {constant(0), pool.Make(ExprOp::kMin, {count.value, constant(extent - 1)})});
  return pool.Make(ExprOp::kFloorMod, {count.value, constant(extent)});
}

ExprId Writer::Index(int64_t extent) {
  if (extent <= 0) extent = 64;  // of a tensor, whose extent is known at the launch
  if (scope.counts.empty() || OneIn(3)) return module.exprs.Int(Odd(100) ? extent : Below(extent));
  if (extent > 1 << 30) return Pick(scope.counts).value;
  return Varied(Pick(scope.counts), extent);
}

ExprId Writer::HostValue() {
  const ExprId symbol = module.VarRef(Pick(symbols_));
  ExprPool& pool = module.exprs;
  const auto constant = [&](int64_t value) { return pool.Int(value, pool.Type(symbol)); };
  switch (Below(5)) {
    case 0: return pool.CeilDiv(symbol, Pick<int64_t>({2, 16, 64, 100, 128}));
    case 1: return pool.Mul(symbol, constant(Pick<int64_t>({2, 3, 8})));
    case 2: return pool.Add(symbol, constant(1 + Below(8)));
    case 3: return pool.Make(ExprOp::kMin, {symbol, constant(Below(200))});
    default: return symbol;
  }
}

ExprId Writer::UniformCount() {
  for (int tries = 0; tries < 4; ++tries) {
    const ExprId value = scope.counts.empty() ? module.exprs.Int(Below(5)) : Pick(scope.counts).value;
    if (!DiffersByThread(value)) return value;
  }
  return module.exprs.Int(Below(20));
}

}  // namespace kiln::ir::grammar
