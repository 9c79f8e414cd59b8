// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/unpack.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/front/block_bytes.h"
#include "compiler/front/nibbles.h"
#include "compiler/front/shared_bytes.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::DType;
using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;
using ir::Stmt;
using ir::VarId;

using Exprs = std::vector<ExprId>;

bool IsShort(DType type) { return ir::Bits(type) < 8; }

// The type of 8 bits that has all values of a type of 4.
DType Widened(DType type) {
  switch (type) {
    case DType::kI4: return DType::kI8;
    case DType::kU4: return DType::kU8;
    case DType::kF4E2M1: return DType::kF8E4M3;
    default: return type;
  }
}

// Variables that stand for others in one of the two halves of an iteration.
using Names = std::vector<std::pair<VarId, ExprId>>;

class Unpacker {
 public:
  Unpacker(ir::Module& module, int64_t registers, ir::Diagnostics& diagnostics)
      : module_(module), registers_(registers), diagnostics_(diagnostics), nibbles_(module.exprs) {
    for (const ir::Buffer& buffer : module.buffers) declared_.push_back(buffer.dtype);
  }

  bool HasWork() const {
    if (std::ranges::any_of(declared_, IsShort)) return true;
    if (std::ranges::any_of(module_.vars, [](const ir::Var& var) { return IsShort(var.dtype); })) return true;
    for (uint32_t id = 0; id < module_.exprs.size(); ++id)
      if (module_.exprs.Type(ExprId(id)) == DType::kF4E2M1) return true;
    return false;
  }

  void Run() {
    const size_t errors = diagnostics_.errors();
    for (ir::Var& var : module_.vars) {
      if (IsShort(var.dtype) && var.kind != ir::VarKind::kLet)
        Refuse(fmt::format("'{}' is a number of {} that the caller gives", var.name, ir::Name(var.dtype)), "pass a wider number and convert it");
      if (var.dtype == DType::kF4E2M1) var.dtype = DType::kF8E4M3;
    }
    for (uint32_t id = 0; id < module_.buffers.size(); ++id) Retype(BufferId(id));
    if (diagnostics_.errors() > errors) return;
    for (ir::Kernel& kernel : module_.kernels) {
      Facts facts(module_);
      facts.EnterKernel(kernel);
      values_.clear();
      used_.clear();
      divergence_.emplace(module_, kernel);
      blocks_.emplace(module_, kernel);
      kernel.body = Rewritten(kernel.body, facts);
      for (const BufferId id : used_) Report(kernel, id);
    }
  }

 private:
  void Report(ir::Kernel& kernel, BufferId id) const {
    const std::string_view type = ir::Name(Declared(id));
    if (IsPacked(id)) {
      kernel.decisions.push_back({"unpack", id, fmt::format("bytes of two {}", type), "half of a byte has no address"});
    } else {
      kernel.decisions.push_back(
          {"unpack", id, fmt::format("held as {}", ir::Name(module_[id].dtype)), fmt::format("it has all values of {}", type)});
    }
  }

  // --- buffers ---

  bool IsPacked(BufferId id) const {
    return ir::Index(id) < declared_.size() && IsShort(Declared(id)) && module_[id].space == ir::Space::kGlobal && !module_[id].workspace;
  }
  DType Declared(BufferId id) const { return ir::Index(id) < declared_.size() ? declared_[ir::Index(id)] : module_[id].dtype; }

  void Retype(BufferId id) {
    ir::Buffer& buffer = module_[id];
    if (!IsShort(buffer.dtype)) return;
    if (!IsPacked(id)) {
      buffer.dtype = Widened(buffer.dtype);
      return;
    }
    if (buffer.pad_value) buffer.pad_value = nibbles_.BytePair(buffer.dtype, *buffer.pad_value);
    buffer.dtype = DType::kU8;
    const auto halved = [&](ExprId& extent, std::string_view what) {
      const std::optional<int64_t> constant = module_.exprs.ConstInt(extent);
      if (constant && *constant % 2 != 0)
        return Refuse(fmt::format("'{}', whose elements of {} share bytes, has {} of {}", buffer.name, ir::Name(Declared(id)), what, *constant),
                      "make it even: each row begins with a byte of its own");
      extent = nibbles_.Half(extent);
    };
    if (buffer.shape.empty()) return Refuse(fmt::format("'{}' is half of a byte", buffer.name), "give it a dimension of 2 elements or more");
    // A vector of an odd number of elements at run time ends in half of a byte. The launcher makes no such rows.
    ExprId& last = buffer.shape.back();
    if (!module_.exprs.ConstInt(last)) last = module_.exprs.Add(last, module_.exprs.Int(1, module_.exprs.Type(last)));
    halved(last, "a last dimension");
    for (size_t d = 0; d + 1 < buffer.strides.size(); ++d) halved(buffer.strides[d], "a stride");
    if (!buffer.strides.empty() && !module_.exprs.IsConst(buffer.strides.back(), 1))
      Refuse(fmt::format("'{}' has elements of {} that are not neighbours in their bytes", buffer.name, ir::Name(Declared(id))),
             "let the last stride be 1");
  }

  // --- expressions ---

  // The value of `id`, in which no buffer has short elements and no value is an f4e2m1.
  ExprId Value(ExprId id) {
    if (const auto it = values_.find(ir::Index(id)); it != values_.end()) return it->second;
    const ExprNode node = module_.exprs[id];
    std::array<ExprId, ir::kMaxRank> args{};
    for (int i = 0; i < node.arg_count; ++i) args[size_t(i)] = Value(node.args[size_t(i)]);
    const ExprId value = Made(id, node, {args.data(), node.arg_count});
    values_.emplace(ir::Index(id), value);
    return value;
  }

  ExprId Made(ExprId id, const ExprNode& node, std::span<const ExprId> args) {
    ir::ExprPool& exprs = module_.exprs;
    const bool is_f4 = node.dtype == DType::kF4E2M1;
    switch (node.op) {
      case ExprOp::kConstInt: return id;
      case ExprOp::kConstFloat: return is_f4 ? nibbles_.Float(node.FloatValue()) : id;
      case ExprOp::kVar: return is_f4 ? module_.VarRef(VarId(node.ref)) : id;
      case ExprOp::kLoad: return Element(BufferId(node.ref), args, std::nullopt);
      case ExprOp::kMasked: {
        const ExprNode load = exprs[node.args[1]];
        Exprs indices;
        for (ExprId index : load.Args()) indices.push_back(Value(index));
        return Element(BufferId(load.ref), indices, std::pair(args[0], args[2]));
      }
      case ExprOp::kCast: {
        const DType from = exprs.Type(node.args[0]);
        if (is_f4) return from == DType::kF4E2M1 ? args[0] : nibbles_.Rounded(args[0]);
        return exprs.Cast(node.dtype, args[0]);
      }
      case ExprOp::kReinterpret: {
        const DType from = exprs.Type(node.args[0]);
        if (from == node.dtype) return args[0];
        if (is_f4 || from == DType::kF4E2M1) return nibbles_.Decoded(nibbles_.Encoded(args[0], from), node.dtype);
        break;
      }
      default: break;
    }
    ExprNode made = node;
    std::ranges::copy(args, made.args.begin());
    if (!is_f4) return exprs.Simplified(made);
    made.dtype = DType::kF8E4M3;
    if (ir::Chooses(node.op)) return exprs.Simplified(made);
    // Arithmetic of f4e2m1: exact sums and products, rounded once.
    made.dtype = DType::kF32;
    for (int i = 0; i < made.arg_count; ++i) made.args[size_t(i)] = exprs.Cast(DType::kF32, args[size_t(i)]);
    return nibbles_.Rounded(exprs.Simplified(made));
  }

  // An element, where a mask holds if there is one: a bool and what is there else.
  ExprId Element(BufferId id, std::span<const ExprId> indices, std::optional<std::pair<ExprId, ExprId>> mask) {
    ir::ExprPool& exprs = module_.exprs;
    const DType declared = Declared(id), stored = module_[id].dtype;
    if (IsPacked(id)) used_.insert(id);
    const auto load = [&](std::span<const ExprId> at, ExprId other) {
      const ExprId element = exprs.Load(id, stored, at);
      if (!mask) return element;
      return exprs.Simplified({.op = ExprOp::kMasked, .dtype = stored, .arg_count = 3, .args = {mask->first, element, other}});
    };
    if (!IsPacked(id)) {
      const ExprId element = load(indices, mask ? exprs.Cast(stored, mask->second) : ExprId{});
      return declared == DType::kF4E2M1 ? element : exprs.Cast(declared, element);
    }
    const ExprId byte = load(ByteOf(indices), exprs.Int(0, DType::kU8));
    const ExprId value = nibbles_.Decoded(nibbles_.Of(byte, indices.back()), declared);
    return mask ? exprs.Select(mask->first, value, mask->second) : value;
  }

  Exprs ByteOf(std::span<const ExprId> indices) {
    Exprs at(indices.begin(), indices.end());
    at.back() = nibbles_.Half(at.back());
    return at;
  }

  // --- statements ---

  Block Rewritten(const Block& block, Facts facts) {
    Block out;
    for (const Stmt& stmt : block) {
      stmt_ = &stmt;
      Append(stmt, facts, out);
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) facts.Bind(*let);
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) facts.Assume(assume->cond);
    }
    return out;
  }

  void Append(const Stmt& stmt, const Facts& facts, Block& out) {
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) return AppendLoop(*loop, nullptr, stmt.loc, facts, out);
    if (const auto* store = std::get_if<ir::Store>(&stmt.op)) return AppendStore(*store, stmt.loc, facts, out);
    if (std::optional<ir::For> elements = AsLoop(stmt.op)) return AppendLoop(*elements, &stmt.op, stmt.loc, facts, out);
    Check(stmt.op);
    if (const auto* alloc = std::get_if<ir::Alloc>(&stmt.op); alloc != nullptr && IsShort(Declared(alloc->buffer))) used_.insert(alloc->buffer);
    Stmt rewritten = stmt;
    ir::ForEachExpr(rewritten.op, [&](ExprId& id) { id = Value(id); });
    if (auto* fill = std::get_if<ir::Fill>(&rewritten.op)) fill->value = module_.exprs.Cast(module_[fill->dst.buffer].dtype, fill->value);
    ir::ForEachBody(rewritten.op, [&](Block& body) {
      Facts inner = facts;
      if (const auto* branch = std::get_if<ir::If>(&rewritten.op); branch != nullptr && &body == &branch->then_body) inner.Assume(branch->cond);
      body = Rewritten(body, inner);
    });
    stmt_ = &stmt;
    out.push_back(std::move(rewritten));
  }

  // A copy or an elementwise op whose elements are to be taken apart, put together or rounded, as the loop that it means.
  std::optional<ir::For> AsLoop(const ir::Op& op) {
    if (const auto* copy = std::get_if<ir::Copy>(&op)) {
      const DType from = Declared(copy->src.buffer), to = Declared(copy->dst.buffer);
      if (!IsPacked(copy->src.buffer) && !IsPacked(copy->dst.buffer) && (!IsShort(to) || from == to)) return std::nullopt;
      if (copy->signals) Refuse("a copy of elements that share bytes cannot signal a barrier", "arrive at the barrier behind the copy");
      return Typed([&] { return CopyLoop(module_, *copy); });
    }
    if (const auto* fill = std::get_if<ir::Fill>(&op); fill != nullptr && IsPacked(fill->dst.buffer))
      return Typed([&] { return ElementwiseLoop(module_, fill->dst, [&](const ir::ElementOf&) { return fill->value; }); });
    return std::nullopt;
  }

  // Runs `make` while the buffers have the types that the program declares, in which the loop is to be written.
  template <typename Make>
  ir::For Typed(Make&& make) {
    std::vector<DType> own;
    for (size_t i = 0; i < declared_.size(); ++i) own.push_back(std::exchange(module_.buffers[i].dtype, declared_[i]));
    ir::For loop = make();
    for (size_t i = 0; i < declared_.size(); ++i) module_.buffers[i].dtype = own[i];
    return loop;
  }

  void Check(const ir::Op& op) {
    const auto is_short = [&](BufferId id) { return IsShort(Declared(id)); };
    if (const auto* reduce = std::get_if<ir::Reduce>(&op)) {
      const bool sums = reduce->kind == ir::ReduceKind::kSum || reduce->kind == ir::ReduceKind::kAbsSum;
      if (sums && is_short(reduce->src.buffer))
        Refuse(fmt::format("a sum of {}", ir::Name(Declared(reduce->src.buffer))), "copy the tile to one of a wider type, and add that up");
    } else if (const auto* mma = std::get_if<ir::Mma>(&op); mma != nullptr && (is_short(mma->a.buffer) || is_short(mma->b.buffer))) {
      Refuse("an instruction whose operands share bytes", "use a gemm of such tiles: the compiler chooses its instruction");
    } else if (const auto* atomic = std::get_if<ir::Atomic>(&op); atomic != nullptr && is_short(atomic->buffer)) {
      Refuse("an atomic operation on half of a byte", "use a tensor of a wider type");
    }
  }

  // `means`: the statement that the loop stands for, if it is not the program's own.
  void AppendLoop(const ir::For& loop, const ir::Op* means, ir::SourceLoc loc, const Facts& facts, Block& out) {
    Facts inner = facts;
    inner.EnterLoop(loop);
    ir::For rewritten = loop;
    for (ExprId& extent : rewritten.extents) extent = Value(extent);
    const bool own = means != nullptr && NamesPrivate(module_, *means);  // each thread runs all of it
    const auto append = [&](ir::For made) {
      if (own) MakePrivate(module_, made, *means, registers_);
      out.push_back({std::move(made), loc});
    };
    const bool parallel = loop.kind == ir::LoopKind::kParallel;
    if (parallel && !StoresAlone(module_, loop, *divergence_, [&](BufferId id) { return IsPacked(id); })) {
      if (std::optional<ir::For> paired = Paired(loop, inner)) return append(*std::move(paired));
      if (!own)
        Refuse("iterations of a parallel loop store elements that share bytes, and it is not known that one iteration may store both of them",
               "let the last index be an even number and the loop's variable, of an even extent; or copy a tile with T.copy");
    }
    const bool around = std::exchange(in_parallel_, in_parallel_ || (parallel && !own));
    rewritten.body = Rewritten(loop.body, inner);
    in_parallel_ = around;
    append(std::move(rewritten));
  }

  // A store changes half of a byte, of which no other block, and outside of parallel loops no other thread, may change the other half.
  void CheckHalves(const ir::Store& store, const Facts& facts) {
    if (blocks_->ShareBytes(store, facts)) return Refuse("blocks store elements that share bytes", "let each block store all elements of its bytes");
    for (const auto& [term, factor] : LinearOf(module_.exprs, store.indices.back()).terms) {
      if (in_parallel_ || factor % 2 == 0 || facts.DivisorOf(ExprId(term)) % 2 == 0 || !divergence_->Differs(ExprId(term))) continue;
      return Refuse("threads store elements that share bytes", "let each thread store all elements of its bytes, or copy a tile with T.copy");
    }
  }

  void AppendStore(const ir::Store& store, ir::SourceLoc loc, const Facts& facts, Block& out) {
    if (IsPacked(store.buffer)) CheckHalves(store, facts);
    AppendElement(store, loc, out);
  }

  void AppendElement(const ir::Store& store, ir::SourceLoc loc, Block& out) {
    ir::Store stored = store;
    for (ExprId& index : stored.indices) index = Value(index);
    const ExprId value = Value(store.value);
    if (!IsPacked(store.buffer)) {
      stored.value = module_.exprs.Cast(module_[store.buffer].dtype, value);
    } else {
      used_.insert(store.buffer);
      const ExprId half = stored.indices.back();
      stored.indices = ByteOf(stored.indices);
      const ExprId byte = module_.exprs.Load(store.buffer, DType::kU8, stored.indices);
      stored.value = nibbles_.With(byte, half, nibbles_.Encoded(value, Declared(store.buffer)));
    }
    out.push_back({std::move(stored), loc});
  }

  // --- parallel loops ---

  // The loop with half as many iterations along the variable that counts neighbours of the stores; each does two of them.
  std::optional<ir::For> Paired(const ir::For& loop, const Facts& facts) {
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      const VarId var = loop.vars[v];
      if (facts.DivisorOf(loop.extents[v]) % 2 != 0 || !CountsNeighbours(loop.body, var, facts)) continue;
      ir::For paired = loop;
      paired.coalesced_width = 0;
      paired.vars[v] = FreshVar(module_, ir::VarKind::kLoop, module_[var].dtype, module_[var].name);
      const ExprId first = module_.exprs.Mul(module_.VarRef(paired.vars[v]), module_.exprs.Int(2, module_[var].dtype));
      for (size_t i = 0; i < loop.extents.size(); ++i) paired.extents[i] = Value(loop.extents[i]);
      paired.extents[v] = nibbles_.Half(paired.extents[v]);
      paired.body.clear();
      const Names low{{var, first}}, high{{var, module_.exprs.Add(first, module_.exprs.Int(1, module_[var].dtype))}};
      if (AppendPairs(loop.body, low, high, paired.body)) return paired;
    }
    return std::nullopt;
  }

  // What differs between two neighbouring iterations of a parallel loop's body: the loop's variable, what lets make of it, and elements that the
  // body stores.
  struct Differing {
    std::set<VarId> vars;
    std::set<BufferId> stored;
  };

  bool Differs(ExprId id, const Differing& by) const {
    const ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kVar && by.vars.contains(VarId(node.ref))) return true;
    if (node.op == ExprOp::kLoad && by.stored.contains(BufferId(node.ref))) return true;
    return std::ranges::any_of(node.Args(), [&](ExprId arg) { return Differs(arg, by); });
  }

  // Whether the index is a multiple of `var` and what is the same for its neighbours.
  bool IsOwn(ExprId index, VarId var, const Differing& by) const {
    Linear linear = LinearOf(module_.exprs, index);
    if (linear.Coefficient(module_.VarRef(var)) == 0) return false;
    linear.terms.erase(ir::Index(module_.VarRef(var)));
    return std::ranges::none_of(linear.terms, [&](const auto& term) { return Differs(ExprId(term.first), by); });
  }

  // Whether the stores to packed tensors go to an even number and `var` in the last dimension, and nowhere else by it; and whether two iterations
  // may take turns statement by statement: of what the body also reads, each stores elements of its own.
  bool CountsNeighbours(const Block& body, VarId var, const Facts& facts) {
    Differing by{{var}, {}};
    std::set<BufferId> loaded;
    ir::Walk(body, [&](const Stmt& stmt) {
      if (const auto* store = std::get_if<ir::Store>(&stmt.op)) by.stored.insert(store->buffer);
      ir::ForEachExpr(stmt.op, [&](ExprId id) {
        for (const ExprId load : ir::LoadsOf(module_.exprs, id)) loaded.insert(BufferId(module_.exprs[load].ref));
      });
    });
    bool counts = true;
    ir::Walk(body, [&](const Stmt& stmt) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op); let != nullptr && Differs(let->value, by)) by.vars.insert(let->var);
      const auto* store = std::get_if<ir::Store>(&stmt.op);
      if (store == nullptr) return;
      if (loaded.contains(store->buffer)) counts = counts && std::ranges::any_of(store->indices, [&](ExprId i) { return IsOwn(i, var, by); });
      if (!IsPacked(store->buffer)) return;
      for (size_t d = 0; d + 1 < store->indices.size(); ++d) counts = counts && !Differs(store->indices[d], by);
      const ExprId last = store->indices.back();
      const Linear linear = LinearOf(module_.exprs, last);
      counts = counts && IsOwn(last, var, by) && linear.Coefficient(module_.VarRef(var)) == 1 && linear.constant % 2 == 0;
      for (const auto& [term, factor] : linear.terms)
        counts = counts && (ExprId(term) == module_.VarRef(var) || factor % 2 == 0 || facts.DivisorOf(ExprId(term)) % 2 == 0);
    });
    return counts;
  }

  ExprId Named(ExprId id, const Names& names) {
    for (const auto& [var, value] : names) id = module_.exprs.Substitute(id, var, value);
    return id;
  }

  // Both iterations of a body of lets, stores, and conditions that are the same for the two. False for other bodies.
  bool AppendPairs(const Block& body, Names low, Names high, Block& out) {
    for (const Stmt& stmt : body) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) {
        for (Names* names : {&low, &high}) {
          const VarId var = module_.AddVar(ir::Var(module_[let->var]));
          out.push_back({ir::Let{var, Value(Named(let->value, *names))}, stmt.loc});
          names->emplace_back(let->var, module_.exprs.Var(var, module_.exprs.Type(let->value)));
        }
      } else if (const auto* store = std::get_if<ir::Store>(&stmt.op)) {
        AppendPair(*store, low, high, stmt.loc, out);
      } else if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        const ExprId cond = Named(branch->cond, low);
        if (cond != Named(branch->cond, high)) return false;
        ir::If both{Value(cond), {}, {}};
        if (!AppendPairs(branch->then_body, low, high, both.then_body) || !AppendPairs(branch->else_body, low, high, both.else_body)) return false;
        out.push_back({std::move(both), stmt.loc});
      } else {
        return false;
      }
    }
    return true;
  }

  void AppendPair(const ir::Store& store, const Names& low, const Names& high, ir::SourceLoc loc, Block& out) {
    ir::Store first = store, second = store;
    for (const auto& [half, names] : {std::pair(&first, &low), std::pair(&second, &high)}) {
      for (ExprId& index : half->indices) index = Named(index, *names);
      half->value = Named(half->value, *names);
    }
    if (!IsPacked(store.buffer)) {
      for (const ir::Store* half : {&first, &second}) AppendElement(*half, loc, out);
      return;
    }
    const DType type = Declared(store.buffer);
    used_.insert(store.buffer);
    Exprs indices;
    for (ExprId index : first.indices) indices.push_back(Value(index));
    const ExprId byte = nibbles_.Pair(nibbles_.Encoded(Value(first.value), type), nibbles_.Encoded(Value(second.value), type));
    out.push_back({ir::Store{store.buffer, ByteOf(indices), byte}, loc});
  }

  void Refuse(std::string message, std::string hint) {
    diagnostics_.Unsupported(std::move(message), std::move(hint), stmt_ != nullptr ? stmt_->loc : ir::SourceLoc{});
  }

  ir::Module& module_;
  const int64_t registers_;  // of a thread
  ir::Diagnostics& diagnostics_;
  Nibbles nibbles_;
  std::vector<DType> declared_;  // of the buffers that the program has
  std::unordered_map<uint32_t, ExprId> values_;
  std::set<BufferId> used_;               // by the kernel, of short elements
  std::optional<Divergence> divergence_;  // of the kernel as it was
  std::optional<BlockBytes> blocks_;
  bool in_parallel_ = false;
  const Stmt* stmt_ = nullptr;
};

}  // namespace

ir::Result Unpack(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  const size_t errors = diagnostics.errors();
  Unpacker unpacker(module, context.target->registers_per_thread, diagnostics);
  if (unpacker.HasWork()) unpacker.Run();
  if (diagnostics.errors() > errors) return std::unexpected(ir::Failed{});
  return {};
}

void RestoreDeclared(ir::Module& module, const std::vector<ir::Buffer>& declared) {
  for (const ir::Param& param : module.params) {
    const auto* id = std::get_if<BufferId>(&param);
    if (id == nullptr || !IsShort(declared[ir::Index(*id)].dtype)) continue;
    const ir::Buffer& before = declared[ir::Index(*id)];
    ir::Buffer& buffer = module[*id];
    buffer.dtype = before.dtype, buffer.shape = before.shape, buffer.strides = before.strides, buffer.pad_value = before.pad_value;
  }
}

}  // namespace kiln::compiler
