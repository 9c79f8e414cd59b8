// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/regions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/leaves.h"
#include "compiler/analysis/signals.h"
#include "compiler/regions/ahead.h"
#include "compiler/regions/box.h"
#include "compiler/regions/demand.h"
#include "compiler/regions/lets.h"
#include "compiler/regions/sums.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/known_branches.h"
#include "compiler/rules/tensor.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Space;
using ir::VarId;

class Rewriter {
 public:
  Rewriter(ir::Module& module, ir::Kernel& kernel, const Context& context)
      : module_(module),
        kernel_(kernel),
        context_(context),
        lets_(module, kernel),
        demand_(module, kernel, lets_),
        ranges_(module, kernel),
        uses_(CountAllAccesses(module, kernel.body)) {}

  void Run() {
    ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr) return;
      operands_.insert({gemm->a.buffer, gemm->b.buffer});
      if (gemm->metadata) operands_.insert(gemm->metadata->buffer);
    });
    if (operands_.empty()) return;  // loads for other ends are as fast as they are
    Facts facts(module_);
    facts.EnterKernel(kernel_);
    room_ = int64_t(context_.target->max_shared_bytes) - BytesOfTiles(module_, kernel_);
    for (const bool stores : {false, true}) {  // masks of stores say what of the loads matters, so they stay until then
      stores_ = stores;
      Visit(kernel_.body, facts);
    }
    if (!turned_.empty()) Turn();
  }

 private:
  // Statements stay where they are until all are seen, for demand looks at the whole kernel. `stages`: of a loop whose copies run ahead; else 0.
  void Visit(ir::Block& block, Facts facts, int64_t stages = 0) {
    std::vector<std::pair<size_t, ir::Block>> added;
    for (size_t i = 0; i < block.size(); ++i) {
      ir::Stmt& stmt = block[i];
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
        for (size_t d = 0; d < loop->vars.size(); ++d) ranges_.Enter(loop->vars[d], loop->extents[d]);
        if (loop->kind == ir::LoopKind::kParallel) {
          ir::Block before;
          stores_ ? ReplaceStore(stmt, facts, before) : ReplaceLoad(stmt, facts);
          if (!stores_ && stages > 0) LoadAhead(stmt, facts, stages, before);
          if (!before.empty()) added.emplace_back(i, std::move(before));
        } else {
          Facts inner = facts;
          inner.EnterLoop(*loop);
          Visit(loop->body, std::move(inner), RunsAhead(kernel_, *loop) ? loop->num_stages : 0);
        }
      } else if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
        Facts then = facts;
        then.Assume(branch->cond);
        Visit(branch->then_body, std::move(then));
        Visit(branch->else_body, facts);
      } else if (auto* loop = std::get_if<ir::While>(&stmt.op)) {
        Visit(loop->body, facts);
      } else if (auto* let = std::get_if<ir::Let>(&stmt.op)) {
        facts.Bind(*let);
      } else if (auto* assume = std::get_if<ir::Assume>(&stmt.op)) {
        facts.Assume(assume->cond);
      }
    }
    for (auto& [place, before] : std::views::reverse(added)) {
      block.insert(block.begin() + long(place), std::make_move_iterator(before.begin()), std::make_move_iterator(before.end()));
    }
  }

  std::optional<std::vector<int64_t>> ExtentsOf(const ir::For& loop) const {
    std::vector<int64_t> extents;
    for (ExprId extent : loop.extents) {
      const std::optional<int64_t> value = module_.exprs.ConstInt(extent);
      if (!value) return std::nullopt;
      extents.push_back(*value);
    }
    return extents;
  }

  // A tile that only products take, element by element from memory, and zero where a mask does not hold.
  void ReplaceLoad(ir::Stmt& stmt, const Facts& facts) {
    auto& loop = std::get<ir::For>(stmt.op);
    auto* store = loop.body.size() == 1 ? std::get_if<ir::Store>(&loop.body[0].op) : nullptr;
    if (store == nullptr || !operands_.contains(store->buffer) || module_[store->buffer].space != Space::kShared) return;
    if (!IsOwnElement(module_, loop, store->indices) || !CoversElements(module_, loop, store->buffer)) return;
    if (!ReplaceByCopy(stmt, loop, *store, facts)) TurnElements(loop, *store, stmt.loc);
  }

  bool ReplaceByCopy(ir::Stmt& stmt, const ir::For& loop, const ir::Store& store, const Facts& facts) {
    const std::optional<std::vector<int64_t>> extents = ExtentsOf(loop);
    const BufferId tile = store.buffer;
    const auto is_wanted = [&](ExprId x, size_t position, ExprId m) { return demand_.IsBelow(tile, position, x, loop.vars[position], m); };
    const std::optional<Loaded> found = BoxLoaded(store.value, loop, *extents, is_wanted);
    if (!found || module_[found->root].dtype != module_[tile].dtype) return false;
    const bool turned = !IsInOrder(found->box);
    if (turned && (loop.vars.size() != 2 || !OnlyProductsTake(tile))) return false;
    std::optional<ir::Region> src = RegionOf(found->root, found->box, found->elements, facts);
    if (!src) return false;
    if (turned) AddTurned(tile, *extents);
    ir::Copy copy{std::move(*src), Whole(turned ? turned_[tile] : tile)};
    Decide(found->root, "a tile of it is copied", stmt.loc);
    stmt.op = std::move(copy);
    return true;
  }

  // Elements of a tensor that nothing writes, zero where a mask does not hold, and the box that they are.
  struct Loaded {
    BufferId root;
    Elements elements;
    Box box;
  };
  std::optional<Loaded> BoxLoaded(ExprId load, const ir::For& loop, const std::vector<int64_t>& extents, const IsWantedBelow& is_wanted) {
    Elements elements{loop.vars, extents, {}, {}};
    if (const ir::ExprNode value = module_.exprs[load]; value.op == ExprOp::kMasked) {
      if (!module_.exprs.IsZero(value.args[2])) return std::nullopt;
      elements.conditions.push_back(lets_.Expanded(value.args[0]));
      load = value.args[1];
    }
    const ir::ExprNode node = module_.exprs[load];
    if (node.op != ExprOp::kLoad) return std::nullopt;
    const BufferId root{node.ref};
    if (!IsFlat(module_[root]) || uses_[root].writes != 0) return std::nullopt;
    elements.offset = lets_.Expanded(node.args[0]);
    std::optional<Box> box = BoxOf(module_, ranges_, elements, is_wanted);
    if (!box) return std::nullopt;
    return Loaded{root, std::move(elements), *std::move(box)};
  }

  // A tile that goes to registers, to be computed with: through shared memory it is loaded by vectors, while earlier iterations compute, whatever
  // elements a thread wants. So it is done where shared memory has room for all stages. `before`: what stands before the statement.
  void LoadAhead(ir::Stmt& stmt, const Facts& facts, int64_t stages, ir::Block& before) {
    auto* loop = std::get_if<ir::For>(&stmt.op);
    auto* store = loop != nullptr && loop->body.size() == 1 ? std::get_if<ir::Store>(&loop->body[0].op) : nullptr;
    if (store == nullptr || module_[store->buffer].space != Space::kFragment) return;
    const ir::ExprNode cast = module_.exprs[store->value];
    const ExprId value = cast.op == ExprOp::kCast ? cast.args[0] : store->value;
    const std::optional<std::vector<int64_t>> extents = ExtentsOf(*loop);
    if (!extents) return;
    const std::optional<Loaded> found = BoxLoaded(value, *loop, *extents, [](ExprId, size_t, ExprId) { return false; });
    if (!found) return;
    int64_t bytes = ir::Bytes(module_[found->root].dtype) * stages;
    for (int64_t extent : *extents) bytes *= extent;
    if (bytes > room_) return;
    const std::optional<ir::Region> src = RegionOf(found->root, found->box, found->elements, facts);
    if (!src) return;
    std::vector<int64_t> shape;
    std::vector<ExprId> place;
    if (extents->size() == 1) shape.push_back(1), place.push_back(module_.exprs.Int(0));
    for (const std::optional<size_t>& var : found->box.var) {
      if (!var) continue;
      shape.push_back((*extents)[*var]);
      place.push_back(module_.VarRef(loop->vars[*var]));
    }
    const BufferId tile = FreshOfShape(module_, found->root, Space::kShared, shape, "_ahead");
    room_ -= bytes;
    before.push_back({ir::Alloc{tile}, stmt.loc});
    before.push_back({ir::Copy{*src, Whole(tile)}, stmt.loc});
    const ExprId load = module_.exprs.Load(tile, module_[tile].dtype, place);
    store->value = cast.op == ExprOp::kCast ? module_.exprs.Cast(cast.dtype, load) : load;
    Decide(found->root, "a tile of it is loaded ahead", stmt.loc);
  }

  // Where the elements are no box that the launcher knows, as rows of a sequence whose place the device loads, neighbours in memory may still be
  // those of a column. Held turned, they are loaded together.
  void TurnElements(ir::For& loop, ir::Store& store, ir::SourceLoc loc) {
    const std::optional<std::vector<int64_t>> extents = ExtentsOf(loop);
    const BufferId tile = store.buffer;
    const ir::ExprNode value = module_.exprs[store.value];
    const ir::ExprNode load = value.op == ExprOp::kMasked ? module_.exprs[value.args[1]] : value;
    if (!extents || loop.vars.size() != 2 || load.op != ExprOp::kLoad || !MayBeTurned(tile)) return;
    if (module_[BufferId{load.ref}].shape.size() != 1 || !GoesAlong(lets_.Expanded(load.args[0]), loop.vars) || !OnlyProductsTake(tile)) return;
    AddTurned(tile, *extents);
    std::swap(loop.vars[0], loop.vars[1]), std::swap(loop.extents[0], loop.extents[1]), std::swap(store.indices[0], store.indices[1]);
    store.buffer = turned_[tile];
    kernel_.decisions.push_back({"regions", tile, "held turned", "its neighbours in memory are those of a column", loc});
  }

  // Of 32-bit elements wgmma takes no operand that way.
  bool MayBeTurned(BufferId tile) const {
    const int bits = ir::Bits(module_[tile].dtype);
    return bits == 16 || (bits == 32 && (!context_.target->Has(target::Feature::kWgmma) || kernel_.threads % 128 != 0));
  }

  // Whether the first variable counts elements, and the second one, however it does, says from where on.
  bool GoesAlong(ExprId offset, std::span<const VarId> vars) {
    const std::optional<Sum> sum = Sums(module_).Of(offset);
    if (!sum) return false;
    bool unit = false, steps = false;
    for (const auto& [product, coefficient] : *sum) {
      if (!product.device) continue;
      const bool is_unit = coefficient == 1 && product.factors.empty();
      if (ContainsVar(module_.exprs, *product.device, std::set{vars[0]})) {
        if (*product.device != module_.VarRef(vars[0]) || !is_unit || unit) return false;
        unit = true;
      } else if (ContainsVar(module_.exprs, *product.device, std::set{vars[1]})) {
        if (*product.device == module_.VarRef(vars[1]) && is_unit) return false;
        steps = true;
      }
    }
    return unit && steps;
  }

  void AddTurned(BufferId tile, std::span<const int64_t> extents) {
    turned_[tile] = FreshOfShape(module_, tile, Space::kShared, std::vector<int64_t>{extents[1], extents[0]}, "_turned");
  }

  // Elements of a fragment, or what is computed of them, to memory where a mask holds. `before`: what stands before the statement.
  void ReplaceStore(ir::Stmt& stmt, const Facts& facts, ir::Block& before) {
    const ir::For& loop = std::get<ir::For>(stmt.op);
    const ir::Block* body = &loop.body;
    const std::optional<std::vector<int64_t>> extents = ExtentsOf(loop);
    if (!extents) return;
    Elements elements{loop.vars, *extents, {}, {}};
    if (const auto* branch = body->size() == 1 ? std::get_if<ir::If>(&(*body)[0].op) : nullptr; branch != nullptr && branch->else_body.empty()) {
      elements.conditions.push_back(lets_.Expanded(branch->cond));
      body = &branch->then_body;
    }
    const auto* store = body->size() == 1 ? std::get_if<ir::Store>(&(*body)[0].op) : nullptr;
    if (store == nullptr || !IsFlat(module_[store->buffer]) || uses_[store->buffer].all() != 1) return;
    const BufferId root = store->buffer;
    elements.offset = lets_.Expanded(store->indices[0]);
    const auto never = [](ExprId, size_t, ExprId) { return false; };
    const std::optional<Box> box = BoxOf(module_, ranges_, elements, never);
    if (!box || !IsInOrder(*box)) return;
    std::optional<BufferId> tile = TileOf(store->value, loop);
    if (!tile && !StaysInside(store->value, loop, facts)) return;
    std::optional<ir::Region> dst = RegionOf(root, *box, elements, facts);
    if (!dst) return;
    if (!tile) tile = Computed(*store, loop, *extents, stmt.loc, before);
    ir::Copy copy{Whole(*tile), std::move(*dst)};
    Decide(root, "a tile is copied to it", stmt.loc);
    stmt.op = std::move(copy);
  }

  // Whether the value may be computed where the mask does not hold: loads outside of tensors give zeros, those outside of tiles are errors.
  bool StaysInside(ExprId value, const ir::For& loop, Facts facts) const {
    facts.EnterLoop(loop);
    std::vector<Access> loads;
    CollectLoads(module_.exprs, value, loads);
    return std::ranges::all_of(loads, [&](const Access& load) {
      const ir::Buffer& buffer = module_[load.buffer];
      bool inside = true;
      for (size_t d = 0; d < load.indices.size(); ++d) inside &= buffer.space == Space::kGlobal || facts.Inside(load.indices[d], 1, buffer.shape[d]);
      return inside;
    });
  }

  // A fragment of the values that a loop stores, those of masked elements too.
  BufferId Computed(const ir::Store& store, const ir::For& loop, std::span<const int64_t> extents, ir::SourceLoc loc, ir::Block& before) {
    const BufferId tile = FreshOfShape(module_, store.buffer, Space::kFragment, extents, "_stored");
    ir::For computes = loop;
    computes.body.clear();
    for (VarId& var : computes.vars) var = FreshVar(module_, ir::VarKind::kLoop, module_[var].dtype, "e");
    ir::Store own{tile, {}, store.value};
    for (size_t d = 0; d < loop.vars.size(); ++d) {
      own.indices.push_back(module_.VarRef(computes.vars[d]));
      own.value = module_.exprs.Substitute(own.value, loop.vars[d], own.indices.back());
    }
    computes.body.push_back({std::move(own), loc});
    before.push_back({ir::Alloc{tile}, loc});
    before.push_back({std::move(computes), loc});
    return tile;
  }

  // Whether the loop's variables run along the box in their order.
  static bool IsInOrder(const Box& box) {
    return std::ranges::is_sorted(box.var);  // none, of a batch, is less than any
  }

  // The fragment whose own element the iteration stores, converted or not.
  std::optional<BufferId> TileOf(ExprId value, const ir::For& loop) const {
    const ir::ExprNode* node = &module_.exprs[value];
    if (node->op == ExprOp::kCast && ir::IsFloat(node->dtype) && ir::IsFloat(module_.exprs.Type(node->args[0]))) node = &module_.exprs[node->args[0]];
    if (node->op != ExprOp::kLoad || module_[BufferId(node->ref)].space != Space::kFragment) return std::nullopt;
    const bool own = IsOwnElement(module_, loop, node->Args()) && CoversElements(module_, loop, BufferId(node->ref));
    return own ? std::optional(BufferId(node->ref)) : std::nullopt;
  }

  // The box in a view of `root`, if a tensor copy could move it; of stores, while they are looked at, without a byte beside it.
  std::optional<ir::Region> RegionOf(BufferId root, const Box& box, const Elements& elements, const Facts& facts) {
    ir::Region region{.buffer = {}, .offsets = box.offsets, .extents = {}};
    std::vector<int64_t> tile;
    for (const std::optional<size_t>& var : box.var) {
      region.extents.push_back(var ? elements.extents[*var] : 1);
      if (var) tile.push_back(elements.extents[*var]);
    }
    if (tile.size() == 1 && !stores_) tile.insert(tile.begin(), 1);  // one row
    const size_t buffers = module_.buffers.size();
    if (!HasRoomForViews(module_)) return std::nullopt;
    region.buffer = ViewOf(root, box);
    const auto fits = stores_ ? TensorStoreFits : TensorFits;
    if (fits(module_, facts, region, tile, context_.pointer_alignment())) return region;
    if (module_.buffers.size() > buffers) module_.buffers.pop_back();
    return std::nullopt;
  }

  // A tensor that several loops take boxes of has one view.
  BufferId ViewOf(BufferId root, const Box& box) {
    for (uint32_t id = 0; id < module_.buffers.size(); ++id) {
      ir::Buffer& known = module_.buffers[id];
      if (!known.view || known.view->of != root || known.shape != box.shape || known.strides != box.strides) continue;
      for (ExprId expr : box.positive)
        if (std::ranges::find(known.view->positive, expr) == known.view->positive.end()) known.view->positive.push_back(expr);
      return BufferId(id);
    }
    ir::Buffer view{.space = Space::kGlobal, .dtype = module_[root].dtype, .shape = box.shape, .strides = box.strides};
    view.view = ir::View{root, box.positive};
    return FreshBuffer(module_, std::move(view), module_[root].name + "_view");
  }

  ir::Region Whole(BufferId tile) {
    const std::vector<int64_t> shape = module_.ShapeOf(tile);
    return {tile, std::vector<ExprId>(shape.size(), module_.exprs.Int(0)), shape};
  }

  bool OnlyProductsTake(BufferId tile) {
    int64_t operands = 0;
    bool whole = true;
    ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr) return;
      for (const ir::Region* region : {&gemm->a, &gemm->b}) {
        if (region->buffer != tile) continue;
        ++operands;
        whole &= region->extents == module_.ShapeOf(tile) && region->extents.size() == 2;
      }
    });
    return whole && uses_[tile].reads == operands && uses_[tile].writes == 1 && !turned_.contains(tile);
  }

  // Products take the turned tiles in place of the old ones.
  void Turn() {
    ir::Walk(kernel_.body, [&](ir::Stmt& stmt) {
      if (auto* alloc = std::get_if<ir::Alloc>(&stmt.op)) {
        if (const auto to = turned_.find(alloc->buffer); to != turned_.end()) alloc->buffer = to->second;
      }
      auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr) return;
      for (const auto& [region, transpose] : {std::pair(&gemm->a, &gemm->transpose_a), {&gemm->b, &gemm->transpose_b}}) {
        const auto to = turned_.find(region->buffer);
        if (to == turned_.end()) continue;
        *region = Whole(to->second);
        *transpose = !*transpose;
      }
    });
  }

  void Decide(BufferId root, std::string text, ir::SourceLoc loc) {
    kernel_.decisions.push_back({"regions", root, std::move(text), "its elements and their mask are a box of a strided tensor", loc});
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const Lets lets_;
  Demand demand_;
  HostRanges ranges_;
  AccessCounts uses_;
  std::set<BufferId> operands_;          // of products
  std::map<BufferId, BufferId> turned_;  // tiles by those that hold their transpose
  bool stores_ = false;
  int64_t room_ = 0;  // bytes of shared memory that are left for tiles which products do not take
};

}  // namespace

void Regions(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  ReplaceKnownBranches(module, kernel);
  if (context.pointer_alignment() % 16 == 0) Rewriter(module, kernel, context).Run();
  LoadAhead(module, kernel, context);
}

}  // namespace kiln::compiler
