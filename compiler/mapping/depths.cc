// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/depths.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/walk_together.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::Space;
using ir::Stmt;

// A loop that writes elements of an ordered buffer. The variable counts the places.
struct Writer {
  ir::For* loop;
  ir::VarId place;
};

// The buffers that hold rows of some products' B, and the dimension of each along which the rows are numbered.
class Order {
 public:
  Order(ir::Module& module, const Depth& depth, int64_t k) : module_(module), depth_(depth), k_(k) {}

  void Add(BufferId buffer, size_t dim) { dims_.try_emplace(buffer, dim); }

  // Follows copies until no buffer is new. False if a statement touches one of them that the order cannot change.
  bool Close(const std::set<const ir::Gemm*>& products) {
    for (size_t before = 0; before != dims_.size();) {
      before = dims_.size(), writers_.clear();
      bool may = std::ranges::all_of(dims_, [&](const auto& ordered) { return IsInside(ordered.first, ordered.second); });
      for (ir::Kernel& kernel : module_.kernels) {
        WalkTogether(module_, kernel, [&](Stmt& stmt, const Facts& facts, const ir::ThreadRange&) { may = may && Takes(stmt, facts, products); });
      }
      if (!may) return false;
    }
    return true;
  }

  bool Holds(BufferId buffer) const { return dims_.contains(buffer); }

  void Write() {
    for (const Writer& writer : writers_) {
      const ExprId place = module_.VarRef(writer.place), column = depth_.ColumnAt(module_.exprs, place);
      ir::Walk(writer.loop->body, [&](Stmt& stmt) {
        std::optional<ExprId> kept;
        auto* store = std::get_if<ir::Store>(&stmt.op);
        const auto ordered = store == nullptr ? dims_.end() : dims_.find(store->buffer);
        if (ordered != dims_.end()) kept = store->indices[ordered->second];
        ir::ForEachExpr(stmt.op, [&](ExprId& id) { id = module_.exprs.Substitute(id, writer.place, column); });
        if (kept) store->indices[ordered->second] = *kept;
      });
    }
  }

 private:
  // Only what the kernels alone see can have another order: shared memory, and workspaces of whole groups of rows.
  bool IsInside(BufferId id, size_t dim) const {
    const ir::Buffer& buffer = module_[id];
    if (buffer.space != Space::kShared && !buffer.workspace) return false;
    return Facts(module_).DivisorOf(buffer.shape[dim]) % k_ == 0;
  }

  bool Takes(Stmt& stmt, const Facts& facts, const std::set<const ir::Gemm*>& products) {
    const std::vector<Access> accesses = AccessesOf(module_, stmt);
    const auto ordered = [&](const Access& access) { return dims_.contains(access.buffer); };
    if (std::ranges::none_of(accesses, ordered)) return true;
    if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
      return std::ranges::count_if(accesses, ordered) == 1 && TakesLoop(*loop, facts, *std::ranges::find_if(accesses, ordered));
    }
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) {
      return products.contains(gemm) && !dims_.contains(gemm->a.buffer) && IsWhole(gemm->b, dims_.at(gemm->b.buffer), facts);
    }
    if (const auto* fill = std::get_if<ir::Fill>(&stmt.op)) return IsWhole(fill->dst, dims_.at(fill->dst.buffer), facts);
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    return copy != nullptr && TakesCopy(*copy, facts);
  }

  // Whole groups of rows.
  bool IsWhole(const ir::Region& region, size_t dim, const Facts& facts) const {
    return facts.DivisorOf(region.offsets[dim]) % k_ == 0 && region.extents[dim] % k_ == 0;
  }

  bool TakesCopy(const ir::Copy& copy, const Facts& facts) {
    const bool from_src = dims_.contains(copy.src.buffer);
    const ir::Region &one = from_src ? copy.src : copy.dst, &other = from_src ? copy.dst : copy.src;
    const size_t dim = dims_.at(one.buffer);
    if (!IsWhole(one, dim, facts)) return false;
    // Dimensions of extent 1 apart, both tiles have the same.
    const auto long_dims = [](const ir::Region& region, size_t end) {
      return std::ranges::count_if(region.extents.begin(), region.extents.begin() + ptrdiff_t(end), [](int64_t extent) { return extent != 1; });
    };
    for (size_t d = 0; d < other.extents.size(); ++d) {
      if (other.extents[d] == 1 || long_dims(other, d) != long_dims(one, dim)) continue;
      if (!IsWhole(other, d, facts)) return false;
      return dims_.try_emplace(other.buffer, d).first->second == d;
    }
    return false;
  }

  // Whether the loop writes one element in each iteration, at a place that is a variable of its own beyond a multiple of k.
  bool TakesLoop(ir::For& loop, const Facts& facts, const Access& access) {
    if (loop.kind != ir::LoopKind::kParallel || !access.write || access.tile) return false;
    const Linear index = LinearOf(module_.exprs, access.indices[dims_.at(access.buffer)]);
    std::optional<ir::VarId> place;
    if (index.constant % k_ != 0) return false;
    for (const auto& [term, factor] : index.terms) {
      const auto var = std::ranges::find_if(loop.vars, [&](ir::VarId id) { return module_.VarRef(id) == ExprId(term); });
      if (var == loop.vars.end() || factor != 1 || place) {
        if (factor * facts.DivisorOf(ExprId(term)) % k_ != 0) return false;
        continue;
      }
      if (module_.exprs.ConstInt(loop.extents[size_t(var - loop.vars.begin())]).value_or(1) % k_ != 0) return false;
      place = *var;
    }
    if (!place) return false;
    // No other part of the index may go with the place.
    for (const auto& [term, factor] : index.terms)
      if (ExprId(term) != module_.VarRef(*place) && ContainsVar(module_.exprs, ExprId(term), std::set{*place})) return false;
    bool stores = true;
    ir::Walk(loop.body, [&](const Stmt& stmt) {
      const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
      stores &= atomic == nullptr || atomic->buffer != access.buffer;
    });
    if (stores) writers_.push_back({&loop, *place});
    return stores;
  }

  ir::Module& module_;
  const Depth& depth_;
  const int64_t k_;
  std::map<BufferId, size_t> dims_;
  std::vector<Writer> writers_;
};

class Orders {
 public:
  Orders(ir::Module& module, const Context& context) : module_(module), context_(context) {}

  void Run() {
    for (ir::Kernel& kernel : module_.kernels) TakeOrders(kernel);
    for (ir::Kernel& kernel : module_.kernels) Find(kernel);
    while (!products_.empty()) Try(products_.front());
  }

 private:
  struct Product {
    ir::Gemm* gemm;
    ir::Kernel* kernel;
    ir::SourceLoc loc;
    Depth depth;
  };

  // By fragment, the product as whose sum it lies: sums, and what is computed of them element by element.
  using Sums = std::map<BufferId, const ir::Gemm*>;

  // Products whose A the program itself writes in the order: the loop then writes the columns as they come.
  void TakeOrders(ir::Kernel& kernel) {
    const AccessCounts uses = CountAllAccesses(module_, kernel.body);
    const Sums sums = SumsOf(kernel);
    std::map<BufferId, ir::For*> writers;
    ir::Walk(kernel.body, [&](Stmt& stmt) {
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->vars.size() != 2 || loop->body.size() != 1) return;
      const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
      if (store == nullptr || module_[store->buffer].space != Space::kFragment) return;
      if (IsOwnElement(module_, *loop, store->indices) && CoversElements(module_, *loop, store->buffer)) writers[store->buffer] = loop;
    });
    ir::Walk(kernel.body, [&](Stmt& stmt) {
      auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr || gemm->transpose_a || gemm->plan->as_sums || !writers.contains(gemm->a.buffer)) return;
      const AccessCount& count = uses.at(gemm->a.buffer);
      if (module_[gemm->a.buffer].space != Space::kFragment || count.reads != 1 || count.writes != 1) return;
      if (gemm->a.extents == module_.ShapeOf(gemm->a.buffer)) TakeOrder(*gemm, *writers.at(gemm->a.buffer), sums, kernel, stmt.loc);
    });
  }

  void TakeOrder(ir::Gemm& gemm, ir::For& loop, const Sums& sums, ir::Kernel& kernel, ir::SourceLoc loc) {
    const target::MmaInstruction& mma = RowOf(gemm, *context_.target);
    const std::optional<Depth> depth = DepthAsSums(mma, mma);
    if (!depth) return;
    const ExprId row = module_.VarRef(loop.vars[0]), place = module_.VarRef(loop.vars[1]);
    const int64_t extent = module_.exprs.ConstInt(loop.extents[1]).value_or(0);
    auto& store = std::get<ir::Store>(loop.body[0].op);
    // Reads the sum at the column of the place; whatever else the value depends on, it is not the place.
    bool ordered = false;
    const auto read = [&](ExprId column) {
      return module_.exprs.Rewrite(store.value, [&](ExprId leaf) -> std::optional<ExprId> {
        const ir::ExprNode node = module_.exprs[leaf];
        if (node.op != ir::ExprOp::kLoad || node.Args().size() != 2 || node.Args()[0] != row) return std::nullopt;
        const auto sum = sums.find(BufferId(node.ref));
        if (sum == sums.end() || !HaveSameWarps(gemm, *sum->second) || DepthAsSums(mma, RowOf(*sum->second, *context_.target)) != depth) {
          return std::nullopt;
        }
        if (!IsOrder(node.Args()[1], loop.vars[1], extent, *depth)) return std::nullopt;
        ordered = true;
        return module_.exprs.Load(BufferId(node.ref), node.dtype, std::vector{row, column});
      });
    };
    const ExprId none = read(module_.exprs.Int(0, module_.exprs.Type(place)));
    if (!ordered || ContainsVar(module_.exprs, none, std::set{loop.vars[1]})) return;
    store.value = read(place);
    gemm.plan->as_sums = true;
    kernel.decisions.push_back({"depths", gemm.a.buffer, "stays in the registers of the sum that it was",
                                fmt::format("the program takes k in the order of these registers, as rows of '{}'", module_[gemm.b.buffer].name),
                                loc});
  }

  // Whether the index is, for each place, the column that the depth has there.
  bool IsOrder(ExprId index, ir::VarId var, int64_t extent, const Depth& depth) {
    const ir::DType type = module_[var].dtype;
    const ExprId column = depth.ColumnAt(module_.exprs, module_.VarRef(var));
    for (int64_t place = 0; place < extent; ++place) {
      const ExprId at = module_.exprs.Int(place, type);
      const std::optional<int64_t> is = module_.exprs.ConstInt(module_.exprs.Substitute(index, var, at));
      if (!is || is != module_.exprs.ConstInt(module_.exprs.Substitute(column, var, at))) return false;
    }
    return extent > 0;
  }

  // Products whose A lies as a sum does but for the order of k.
  void Find(ir::Kernel& kernel) {
    const Sums sums = SumsOf(kernel);
    ir::Walk(kernel.body, [&](Stmt& stmt) {
      auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr || gemm->transpose_a || module_[gemm->b.buffer].space != Space::kShared) return;
      const auto sum = sums.find(gemm->a.buffer);
      if (sum == sums.end() || gemm->plan->as_sums || gemm->a.extents != module_.ShapeOf(gemm->a.buffer) || !HaveSameWarps(*gemm, *sum->second))
        return;
      const target::MmaInstruction& mma = RowOf(*gemm, *context_.target);
      std::optional<Depth> depth = DepthAsSums(mma, RowOf(*sum->second, *context_.target));
      if (depth && depth == DepthAsSums(mma, mma)) products_.push_back({gemm, &kernel, stmt.loc, *std::move(depth)});
    });
  }

  // Whether a warp has all columns of its rows of the sum, and needs no others of A.
  static bool HaveSameWarps(const ir::Gemm& gemm, const ir::Gemm& sum) {
    return gemm.plan->warps_m == sum.plan->warps_m && gemm.plan->warps_n == 1 && sum.plan->warps_n == 1;
  }

  Sums SumsOf(const ir::Kernel& kernel) const {
    Sums sums;
    ir::Walk(kernel.body, [&](const Stmt& stmt) {
      if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) sums.emplace(gemm->c.buffer, gemm);
    });
    for (size_t before = 0; before != sums.size();) {
      before = sums.size();
      ir::Walk(kernel.body, [&](const Stmt& stmt) { AddOwn(stmt, sums); });
    }
    return sums;
  }

  void AddOwn(const Stmt& stmt, Sums& sums) const {
    const auto add = [&](BufferId to, BufferId from) {
      if (module_[to].space != Space::kFragment || !sums.contains(from) || module_.ShapeOf(to) != module_.ShapeOf(from)) return;
      sums.emplace(to, sums.at(from));
    };
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) {
      if (module_[copy->dst.buffer].space == Space::kFragment && copy->dst.extents == module_.ShapeOf(copy->dst.buffer))
        add(copy->dst.buffer, copy->src.buffer);
      return;
    }
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel) return;
    ir::Walk(loop->body, [&](const Stmt& inner) {
      const auto* store = std::get_if<ir::Store>(&inner.op);
      if (store == nullptr || !IsOwnElement(module_, *loop, store->indices)) return;
      for (const ExprId load : ir::LoadsOf(module_.exprs, store->value)) {
        const ir::ExprNode& node = module_.exprs[load];
        if (IsOwnElement(module_, *loop, node.Args())) add(store->buffer, BufferId(node.ref));
      }
    });
  }

  // All products of one B have one order, or keep k's own.
  void Try(const Product& product) {
    const BufferId b = product.gemm->b.buffer;
    const target::MmaInstruction& mma = RowOf(*product.gemm, *context_.target);
    const Depth depth = product.depth;
    Order order(module_, depth, mma.k);
    order.Add(b, product.gemm->b.extents.size() - (product.gemm->transpose_b ? 1 : 2));
    std::set<const ir::Gemm*> together;
    for (const Product& other : products_)
      if (other.depth == depth && other.gemm->transpose_b == product.gemm->transpose_b) together.insert(other.gemm);
    const bool closed = order.Close(together);
    if (closed) order.Write();
    const auto with = [&](const Product& other) { return closed ? order.Holds(other.gemm->b.buffer) : other.gemm->b.buffer == b; };
    for (const Product& other : products_) {
      if (!closed || !with(other)) continue;
      other.gemm->plan->as_sums = true;
      other.kernel->decisions.push_back({"depths", other.gemm->a.buffer, "stays in the registers of the sum that it was",
                                         fmt::format("rows of '{}' are in the order of these registers", module_[other.gemm->b.buffer].name),
                                         other.loc});
    }
    std::erase_if(products_, with);
  }

  ir::Module& module_;
  const Context& context_;
  std::vector<Product> products_;
};

}  // namespace

ir::Result Depths(ir::Module& module, const Context& context, ir::Diagnostics&) {
  Orders(module, context).Run();
  return {};
}

}  // namespace kiln::compiler
