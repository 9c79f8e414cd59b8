// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/loop/neighbours.h"

#include <set>

#include "compiler/accesses/packed.h"
#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/vector_width.h"

namespace kiln::llvm_ir {

using ir::DType;
using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

namespace {

bool IsArithmetic(ExprOp op) { return op == ExprOp::kAdd || op == ExprOp::kSub || op == ExprOp::kMul; }

uint32_t BitsOfUnit(DType type) { return type == DType::kBF16 ? 0x4300 : 0x6400; }

}  // namespace

Values Neighbours::Eval(const ir::Store& store, int64_t first, int64_t count) {
  Loads loads;
  for (const ExprId comparison : SharedIn(store, count)) {
    loads[ir::Index(comparison)] = Values(size_t(count), elements_.Eval(comparison, first, 1, {})[0]);
  }
  auto plan = store.plan->loads.begin();
  for (const ir::Read& read : ir::ReadsOf(pool(), store.value)) {
    const ExprNode& load = pool()[read.load];
    const ir::Space space = module()[ir::BufferId(load.ref)].space;
    if (space != ir::Space::kGlobal && space != ir::Space::kShared) continue;
    if (plan->form != ir::LoadForm::kEach) loads[ir::Index(read.value)] = Load(*plan, read, loads, first, count);
    ++plan;
  }
  return EvalPacked(store.value, store.plan->packed, first, count, loads);
}

bool Neighbours::IsShared(ExprId comparison, int64_t count) const {
  if (compiler::Contains(pool(), comparison, [&](ExprId part) { return pool()[part].op == ExprOp::kLoad; })) return false;
  return compiler::MaskWidth(module(), facts(), *loop_.loop, loop_.extents.size() - 1, comparison, count) == count;
}

// The comparisons of a value that are one for all neighbours, as x < n is where x is a multiple of eight in the first of eight, and n is one.
std::span<const ExprId> Neighbours::SharedIn(const ir::Store& store, int64_t count) {
  const auto [known, is_new] = shared_.try_emplace(&store);
  if (!is_new || count == 1) return known->second;
  std::vector<ExprId> left{store.value};
  std::set<uint32_t> seen{ir::Index(store.value)};
  while (!left.empty()) {
    const ExprId id = left.back();
    left.pop_back();
    const ExprNode& node = pool()[id];
    if (ir::IsComparison(node.op) && IsShared(id, count)) {
      known->second.push_back(id);
      continue;
    }
    for (const ExprId arg : node.Args())
      if (seen.insert(ir::Index(arg)).second) left.push_back(arg);
  }
  return known->second;
}

// The values of a read. Where it has a mask, that of the first neighbour holds for all that one access takes. But vectors of which some elements are
// not wanted are loaded whatever the masks say. The emulator would take that for an access to what lies around the elements, so it loads these.
Values Neighbours::Load(const ir::LoadPlan& planned, const ir::Read& read, const Loads& loads, int64_t first, int64_t count) {
  ir::LoadPlan plan = planned;
  if (ir::TakesOthers(plan.form) && target().emulated) plan.form = ir::LoadForm::kVector, plan.width = 1;
  if (ir::TakesOthers(plan.form) && read.mask) {
    const Values loaded = vectors_.Load(plan, addresses_.Of(plan.buffer, pool()[read.load].Args()), first, count);
    return Select(elements_.Eval(*read.mask, first, count, loads), loaded, elements_.Eval(pool()[read.value].args[2], first, count, loads));
  }
  const ElementAddress& address = addresses_.Of(plan.buffer, pool()[read.load].Args(), read.mask);
  if (!read.mask) return vectors_.Load(plan, address, first, count);
  const int64_t width = plan.form == ir::LoadForm::kSame ? count : plan.width;
  Values masks;
  for (int64_t i = 0; i < count; ++i) {
    masks.push_back(i % width == 0 ? elements_.Eval(*read.mask, first + i, 1, Slice(loads, i, 1))[0] : masks.back());
  }
  const ExprId else_value = pool()[read.value].args[2];
  const bool constant = pool()[else_value].op == ExprOp::kConstInt || pool()[else_value].op == ExprOp::kConstFloat;
  if (constant) {
    Value* otherwise = ToMemory(elements_.Eval(else_value, first, 1, {})[0], module()[plan.buffer].dtype);
    return vectors_.Load(plan, address, first, count, masks, otherwise);
  }
  const Values loaded = vectors_.Load(plan, address, first, count, masks);
  return Select(masks, loaded, elements_.Eval(else_value, first, count, loads));
}

Values Neighbours::Select(const Values& masks, const Values& loaded, const Values& other) const {
  Values values;
  for (size_t i = 0; i < loaded.size(); ++i) values.push_back(b().CreateSelect(masks[i], loaded[i], other[i]));
  return values;
}

// The value of neighbours, `packed` of which are computed at once.
Values Neighbours::EvalPacked(ExprId value, int64_t packed, int64_t first, int64_t count, const Loads& loads) {
  if (packed == 1) return elements_.Eval(value, first, count, loads);
  if (compiler::IsPackedConversion(pool(), value)) return ConvertTogether(value, first, count, loads);
  Values result;
  for (int64_t i = 0; i < count; i += 2) {
    Value* pair = EvalPair(value, first + i, Slice(loads, i, 2));
    pairs_.clear();
    for (uint64_t j : {0, 1}) result.push_back(b().CreateExtractElement(pair, j));
  }
  return result;
}

Values Neighbours::ConvertTogether(ExprId cast, int64_t first, int64_t count, const Loads& loads) {
  const ExprNode& node = pool()[cast];
  const int64_t group = 32 / ir::Bits(node.dtype);
  const Values wide = elements_.Eval(node.args[0], first, count, loads);
  auto* packed = llvm::FixedVectorType::get(ValueType(llvm(), node.dtype), unsigned(group));
  Values result;
  for (int64_t i = 0; i < count; i += group) {
    Value* word = device().ConvertPacked({wide.data() + i, size_t(group)}, DType::kF32, node.dtype);
    Value* vector = b().CreateBitCast(word, packed);
    for (int64_t j = 0; j < group; ++j) result.push_back(b().CreateExtractElement(vector, uint64_t(j)));
  }
  return result;
}

// Subexpressions of one pair, each once.
Value* Neighbours::EvalPair(ExprId id, int64_t first, const Loads& loads) {
  if (const auto it = pairs_.find(ir::Index(id)); it != pairs_.end()) return it->second;
  Value* pair = MakePair(id, first, loads);
  pairs_.emplace(ir::Index(id), pair);
  return pair;
}

Value* Neighbours::MakePair(ExprId id, int64_t first, const Loads& loads) {
  const ExprNode& node = pool()[id];
  if (compiler::IsSmallInteger(module(), facts(), id)) return SmallIntegers(id, 0, first, loads);
  if (compiler::IsPackedBits(pool(), id)) {
    return b().CreateBitCast(PackIntegers(node.args[0], first, loads), llvm::FixedVectorType::get(ValueType(llvm(), node.dtype), 2));
  }
  if (IsArithmetic(node.op)) {
    const ExprNode& subtrahend = pool()[node.args[1]];
    if (node.op == ExprOp::kSub && compiler::IsSmallInteger(module(), facts(), node.args[0]) && subtrahend.op == ExprOp::kConstFloat) {
      const double bias = subtrahend.FloatValue();
      // This gives the same value as the cast and the operation one after the other.
      if (bias >= 0 && bias < double(compiler::MantissaUnit(node.dtype)) && bias == double(int64_t(bias)))
        return SmallIntegers(node.args[0], int64_t(bias), first, loads);
    }
    Value *a = EvalPair(node.args[0], first, loads), *c = EvalPair(node.args[1], first, loads);
    return node.op == ExprOp::kAdd ? b().CreateFAdd(a, c) : node.op == ExprOp::kSub ? b().CreateFSub(a, c) : b().CreateFMul(a, c);
  }
  const Values values = EvalPacked(id, compiler::IsPackedConversion(pool(), id) ? 2 : 1, first, 2, loads);
  Value* pair = llvm::PoisonValue::get(llvm::FixedVectorType::get(values[0]->getType(), 2));
  return b().CreateInsertElement(b().CreateInsertElement(pair, values[0], uint64_t{0}), values[1], uint64_t{1});
}

// Two integers as the halves of a word. They have at most 16 bits or are known to be small.
Value* Neighbours::PackIntegers(ExprId id, int64_t first, const Loads& loads) {
  if (const auto it = pairs_.find(ir::Index(id)); it != pairs_.end()) return it->second;
  Value* word = MakeWord(id, first, loads);
  pairs_.emplace(ir::Index(id), word);
  return word;
}

Value* Neighbours::MakeWord(ExprId id, int64_t first, const Loads& loads) {
  const ExprNode& node = pool()[id];
  const auto both = [&](int64_t half) { return b().getInt32(uint32_t(half & 0xffff) * 0x10001u); };
  const auto word = [&](int i) { return PackIntegers(node.args[size_t(i)], first, loads); };
  const bool wide = ir::Bits(node.dtype) > 16;  // a half would not hold the operands
  if (const auto low = settled_.At(id, first), high = settled_.At(id, first + 1); !wide && low && high) {
    return b().getInt32(uint32_t(*low & 0xffff) | uint32_t(*high & 0xffff) << 16);
  }
  const bool shifts = (node.op == ExprOp::kShl || node.op == ExprOp::kShr) && node.dtype == DType::kU16;
  const std::optional<int64_t> settled = shifts ? settled_.At(node.args[1], first) : std::nullopt;
  const int64_t count = settled && settled == settled_.At(node.args[1], first + 1) ? *settled : -1;
  switch (node.op) {
    case ExprOp::kConstInt: return both(node.int_value);
    case ExprOp::kSelect: {
      const std::optional<int64_t> low = settled_.At(node.args[0], first);
      if (!low || low != settled_.At(node.args[0], first + 1)) break;
      return word(*low != 0 ? 1 : 2);
    }
    case ExprOp::kBitAnd:
      if (Value* shifted = MakeShiftedWord(node, first, loads)) return shifted;
      if (wide) break;
      return b().CreateAnd(word(0), word(1));
    case ExprOp::kBitOr:
      if (wide) break;
      return b().CreateOr(word(0), word(1));
    case ExprOp::kBitXor:
      if (wide) break;
      return b().CreateXor(word(0), word(1));
    case ExprOp::kShl:
      if (count < 0 || count > 15) break;
      return b().CreateAnd(b().CreateShl(word(0), uint64_t(count)), both(int64_t{0xffff} << count));
    case ExprOp::kShr:
      if (count < 0 || count > 15) break;
      return b().CreateAnd(b().CreateLShr(word(0), uint64_t(count)), both(0xffff >> count));
    case ExprOp::kCast:
      if (const ExprNode& from = pool()[node.args[0]]; ir::Bits(node.dtype) == 16) {
        if (Value* shifted = from.op == ExprOp::kBitAnd ? MakeShiftedWord(from, first, loads) : MakeHalves(from, first, loads)) return shifted;
      }
      if (!wide && ir::IsUnsigned(pool().Type(node.args[0])) && ir::Bits(pool().Type(node.args[0])) <= ir::Bits(node.dtype)) return word(0);
      break;
    default: break;
  }
  if (ir::Bits(node.dtype) <= 16 && settled_.AreOne(id, first)) {
    return b().CreateMul(b().CreateZExt(elements_.Eval(id, first, 1, loads)[0], b().getInt32Ty()), b().getInt32(0x10001u));
  }
  const Values values = elements_.Eval(id, first, 2, loads);
  Value *low = b().CreateZExt(values[0], b().getInt32Ty()), *high = b().CreateZExt(values[1], b().getInt32Ty());
  return b().CreateOr(low, b().CreateShl(high, uint64_t{16}));
}

// x >> s of one x of 32 bits, whose halves the two integers are; nullptr where it is not that.
Value* Neighbours::MakeHalves(const ExprNode& shift, int64_t first, const Loads& loads) {
  if (shift.op != ExprOp::kShr || shift.dtype != DType::kU32) return nullptr;
  const std::optional<int64_t> low = settled_.At(shift.args[1], first), high = settled_.At(shift.args[1], first + 1);
  if (!low || !high || *low < 0 || *low > 15 || *high != *low + 16 || !settled_.AreOne(shift.args[0], first)) return nullptr;
  return b().CreateLShr(elements_.Eval(shift.args[0], first, 1, loads)[0], uint64_t(*low));
}

// (x >> s) & mask of one x, with both halves from one product or shift; nullptr if the expression is something else.
Value* Neighbours::MakeShiftedWord(const ExprNode& node, int64_t first, const Loads& loads) {
  const ExprNode& shift = pool()[node.args[0]];
  const std::optional<int64_t> mask = pool().ConstInt(node.args[1]);
  if (!mask || *mask < 0 || shift.op != ExprOp::kShr || (shift.dtype != DType::kU8 && shift.dtype != DType::kU32)) return nullptr;
  const std::optional<int64_t> low = settled_.At(shift.args[1], first), high = settled_.At(shift.args[1], first + 1);
  const int64_t bits = ir::Bits(shift.dtype);
  if (!low || !high || *low < 0 || *low >= bits || *high < 0 || *high >= bits) return nullptr;
  if (bits == 32 ? *mask > 0xffff || *high != *low + 16 : *mask >> (16 - *high) != 0) return nullptr;
  const Values values = elements_.Eval(shift.args[0], first, settled_.AreOne(shift.args[0], first) ? 1 : 2, loads);
  if (values.front() != values.back()) return nullptr;
  Value* both = nullptr;
  if (bits == 32) {
    both = b().CreateLShr(values[0], uint64_t(*low));
  } else {
    // Low bits that the second shift drops end up where the mask clears them.
    Value* byte = b().CreateZExt(values[0], b().getInt32Ty());
    both = *low == 0 ? b().CreateMul(byte, b().getInt32(1u | 1u << (16 - *high)))
                     : b().CreateOr(b().CreateLShr(byte, uint64_t(*low)), b().CreateShl(byte, uint64_t(16 - *high)));
  }
  return b().CreateAnd(both, b().getInt32(uint32_t(*mask) * 0x10001u));
}

// Two small integers as floats, minus `bias`: the integers become mantissas of 2^m, from which 2^m + bias is subtracted.
Value* Neighbours::SmallIntegers(ExprId cast, int64_t bias, int64_t first, const Loads& loads) {
  const DType type = pool().Type(cast);
  const ExprId integer = pool()[cast].args[0];
  Value* word = PackIntegers(integer, first, loads);
  Value* unit = b().getInt32(BitsOfUnit(type) * 0x10001u);
  const auto* masked = llvm::dyn_cast<llvm::BinaryOperator>(word);
  const bool masks = masked != nullptr && masked->getOpcode() == llvm::Instruction::And && llvm::isa<llvm::ConstantInt>(masked->getOperand(1));
  word = masks ? device().AndOr(masked->getOperand(0), masked->getOperand(1), unit) : b().CreateOr(word, unit);
  auto* pair = llvm::FixedVectorType::get(ValueType(llvm(), type), 2);
  return b().CreateFSub(b().CreateBitCast(word, pair), llvm::ConstantFP::get(pair, double(compiler::MantissaUnit(type) + bias)));
}

}  // namespace kiln::llvm_ir
