// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/tensor_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/signals.h"
#include "compiler/mapping/added_boxes.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/narrow_loads.h"
#include "compiler/rewrite/part_of_loop.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "compiler/rules/shared.h"
#include "compiler/rules/tensor.h"
#include "ir/elementwise.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::Space;

constexpr int64_t kSpan = 128;  // bytes of a row in one box
constexpr int64_t kAtom = 8;    // columns of wgmma's result that stay together

// A fragment is stored through one shared tile, piece by piece along a dimension. The last piece may be smaller.
struct Pieces {
  size_t dim;
  int64_t extent;
};

class Chooser {
 public:
  Chooser(ir::Module& module, ir::Kernel& kernel, const Context& context)
      : module_(module), kernel_(kernel), context_(context), has_signals_(HasSignals(kernel)), orders_(has_signals_ || OrdersMemory(kernel)) {}

  void Run() {
    Count(kernel_.body);
    CountVersions(kernel_.body);
    // Threads of their own would fill rings ahead of a barrier of other blocks, and what blocks write before it the tensor unit would not see.
    if (OrdersBlocks(kernel_) || (!has_wgmma_ && !has_signals_)) return;
    Place place{Facts(module_)};
    place.facts.EnterKernel(kernel_);
    const size_t buffers = module_.buffers.size();
    Visit(kernel_.body, place);
    Declare(module_, kernel_, buffers);
  }

 private:
  // Where a statement stands.
  struct Place {
    Facts facts;
    bool pipelined = false;
    bool together = true;  // all threads of the block come here
    bool counted = true;   // the only loops around are over their variables
    std::vector<ir::VarId> loops = {};
  };

  void Count(const ir::Block& body) {
    uses_ = CountAllAccesses(module_, body);
    ir::Walk(body, [&](const ir::Stmt& stmt) {
      FindLong(stmt);
      if (const ir::Atomic* atomic = AddsTile(stmt)) ++added_[atomic->buffer];
      if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) stored_[copy->dst.buffer].push_back(copy->dst);
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr) return;
      if (RowOf(*gemm, *context_.target).reads_shared) {
        has_wgmma_ = true;
        grouped_.push_back(*gemm);
        by_groups_.insert({gemm->a.buffer, gemm->b.buffer});
      } else {
        by_warps_.insert({gemm->a.buffer, gemm->b.buffer});
      }
    });
  }

  // Finds fragments that take long to compute, and in how many stores. LLVM would move such computation behind the first of several pieces, and its
  // values would then not fit the registers: each piece is computed for itself.
  void FindLong(const ir::Stmt& stmt) {
    const auto compute = [&](BufferId tile, ExprId value) {
      if (module_[tile].space == Space::kFragment && CallsMath(value)) ++long_[tile];
    };
    if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind == ir::LoopKind::kParallel) {
      ir::Walk(loop->body, [&](const ir::Stmt& inner) {
        if (const auto* store = std::get_if<ir::Store>(&inner.op)) compute(store->buffer, store->value);
      });
    }
    const ir::ElementOf first = [&](const ir::Region& region) {
      return module_.exprs.Load(region.buffer, module_[region.buffer].dtype, region.offsets);
    };
    std::visit(
        [&](const auto& op) {
          if constexpr (ir::Elementwise<std::remove_cvref_t<decltype(op)>>) compute(ir::Destination(op).buffer, ir::Becomes(module_, op, first));
        },
        stmt.op);
  }

  bool CallsMath(ExprId id) const {
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op >= ir::ExprOp::kExp && node.op <= ir::ExprOp::kSigmoid) return true;
    return std::ranges::any_of(node.Args(), [&](ExprId arg) { return CallsMath(arg); });
  }

  // Counts versions: a tile that a pipelined loop loads takes space once for each stage.
  void CountVersions(const ir::Block& body) {
    ir::Walk(body, [&](const ir::Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop == nullptr || loop->kind != ir::LoopKind::kPipelined) return;
      for (const ir::Stmt& inner : loop->body) {
        const auto* copy = std::get_if<ir::Copy>(&inner.op);
        if (copy != nullptr && module_[copy->dst.buffer].space == Space::kShared)
          versions_[copy->dst.buffer] = std::max<int64_t>(1, loop->num_stages);
      }
    });
  }

  void Visit(ir::Block& block, Place place) {
    ir::Block result;
    for (ir::Stmt& stmt : block) {
      std::visit(ir::Overloaded{
                     [&](ir::For& op) {
                       if (op.kind == ir::LoopKind::kParallel) return;
                       Place inner = place;
                       inner.facts.EnterLoop(op);
                       inner.together &= IsShared(op.extents[0]);
                       inner.pipelined |= op.kind == ir::LoopKind::kPipelined && op.num_stages >= 2;
                       inner.loops.push_back(op.vars[0]);
                       if (op.kind == ir::LoopKind::kPipelined && inner.pipelined && inner.together) Widen(op, inner.facts);
                       Visit(op.body, std::move(inner));
                     },
                     [&](ir::If& op) {
                       Place then = place;
                       then.together &= IsShared(op.cond);
                       Place otherwise = then;
                       then.facts.Assume(op.cond);
                       Visit(op.then_body, std::move(then));
                       Visit(op.else_body, std::move(otherwise));
                     },
                     [&](ir::While& op) {
                       Place inner = place;
                       inner.together &= IsShared(op.cond);
                       inner.counted = false;
                       Visit(op.body, std::move(inner));
                     },
                     [&](ir::Let& op) {
                       place.facts.Bind(op);
                       if (!IsShared(op.value)) by_thread_.insert(op.var);
                     },
                     [&](ir::Assume& op) { place.facts.Assume(op.cond); },
                     ir::Ignored<ir::Alloc, ir::Store, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Reduce, ir::Atomic, ir::Barrier,
                                 ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait, ir::RingStep,
                                 ir::PairSum, ir::StreamSum>{},
                 },
                 stmt.op);
      if (place.together && AddTile(stmt, place.facts, result)) continue;
      auto* copy = std::get_if<ir::Copy>(&stmt.op);
      const bool once = &block == &kernel_.body && copy != nullptr && by_groups_.contains(copy->dst.buffer);
      const bool loads = has_signals_ ? copy != nullptr && copy->signals : copy != nullptr && (place.pipelined || once) && place.together;
      if (loads && (narrow_.contains(copy->dst.buffer) || IsLoad(*copy, place.facts))) {
        copy->plan->instruction = ir::CopyInstruction::kTensor;
        copy->plan->panels = PanelsFit(module_, place.facts, *copy, *context_.target);
      }
      if (copy != nullptr && place.together && IsStore(*copy) && StoresOnce(*copy, place)) {
        const std::vector<int64_t> tile = module_.ShapeOf(copy->src.buffer);
        if (module_[copy->src.buffer].space == Space::kFragment) {
          if (const std::optional<Pieces> pieces = PiecesOf(*copy, place.facts, result)) {
            Stage(*copy, *pieces, stmt.loc, result);
            continue;
          }
        } else if (Fits(*copy, tile, place.facts)) {
          copy->plan = TensorPlan(*copy);
        }
      }
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

  void Widen(ir::For& loop, const Facts& facts) {
    if (has_signals_) return;
    for (const ir::Copy* copy : WidenLoads(module_, loop, facts, uses_, context_, [&](const ir::Copy& other) { return IsLoad(other, facts); })) {
      narrow_.insert(copy->dst.buffer);
      kernel_.decisions.push_back({"tensor_copies", copy->dst.buffer, fmt::format("loaded in rows of {} bytes", kNarrowRow),
                                   "the loop's other loads are tensor copies, and its ring takes no others"});
    }
  }

  bool IsLoad(const ir::Copy& copy, const Facts& facts) const {
    const ir::Buffer &src = module_[copy.src.buffer], &dst = module_[copy.dst.buffer];
    return src.space == Space::kGlobal && dst.space == Space::kShared && src.dtype == dst.dtype && !by_warps_.contains(copy.dst.buffer) &&
           (copy.dst.extents == module_.ShapeOf(copy.dst.buffer) || (copy.signals && IsOfPanels(copy.dst, facts))) &&
           TensorFits(module_, facts, copy.src, copy.dst.extents, context_.pointer_alignment());
  }

  // Nothing else of the kernel may look at the memory, or order it: it does not see when such additions end.
  bool MayAdd(const ir::Atomic& atomic) const {
    const ir::Buffer& to = module_[atomic.buffer];
    const AccessCount& uses = uses_.at(atomic.buffer);
    const bool adds = to.dtype == ir::DType::kF32 || to.dtype == ir::DType::kF16 || to.dtype == ir::DType::kBF16;
    return adds && !orders_ && to.space == Space::kGlobal && !to.may_alias && uses.reads == 0 && uses.writes == added_.at(atomic.buffer);
  }

  // A shared tile of its own, or where there is no room the one of another addition, whose end is then waited for.
  std::optional<BufferId> TileToAdd(BufferId to, const std::vector<int64_t>& shape) {
    const ir::DType dtype = module_[to].dtype;
    const int64_t bytes = std::accumulate(shape.begin(), shape.end(), ir::Bytes(dtype), std::multiplies<>());
    if (bytes > Room(/*every_stage=*/true)) {
      const auto is_like = [&](BufferId tile) { return module_[tile].dtype == dtype && module_.ShapeOf(tile) == shape; };
      const auto like = std::ranges::find_if(to_add_, is_like);
      return like == to_add_.end() ? std::nullopt : std::optional(*like);
    }
    const BufferId tile = FreshBuffer(module_, ir::Buffer{Space::kShared, dtype, ShapeOfConstants(module_, shape)}, module_[to].name + "_added");
    staged_.insert(tile);
    to_add_.insert(tile);
    return tile;
  }

  // The shared tile whose elements the loop adds as they are, each to its place in the box.
  std::optional<BufferId> TileAsItIs(const AddedBox& added, const ir::Atomic& atomic, const std::vector<int64_t>& shape) {
    const ir::ExprNode& value = module_.exprs[atomic.value];
    if (value.op != ir::ExprOp::kLoad) return std::nullopt;
    const BufferId tile{value.ref};
    const ir::Buffer& buffer = module_[tile];
    if (buffer.space != Space::kShared || buffer.dtype != module_[atomic.buffer].dtype || by_warps_.contains(tile)) return std::nullopt;
    const auto is_own = [&](ExprId index, ir::VarId var) { return index == module_.VarRef(var); };
    if (module_.ShapeOf(tile) != shape || !std::ranges::equal(value.Args(), added.vars, is_own)) return std::nullopt;
    return tile;
  }

  // Adds a tile through shared memory: the loop fills one, if its elements are not in one already, and the tensor unit adds it.
  bool AddTile(const ir::Stmt& stmt, const Facts& facts, ir::Block& result) {
    const ir::Atomic* atomic = AddsTile(stmt);
    if (atomic == nullptr || !MayAdd(*atomic)) return false;
    ir::For fill = std::get<ir::For>(stmt.op);
    const std::optional<AddedBox> added = BoxOf(module_, fill, *atomic);
    if (!added || !std::ranges::all_of(added->box.offsets, [&](ExprId offset) { return IsShared(offset); })) return false;
    if (!TakesPartsFromKnownPlaces(module_, fill, atomic->value)) return false;
    std::vector<int64_t> shape;
    std::ranges::copy_if(added->box.extents, std::back_inserter(shape), [](int64_t extent) { return extent != 1; });
    if (shape.size() != added->vars.size() || !TensorStoreFits(module_, facts, added->box, shape, context_.pointer_alignment())) return false;
    const std::optional<BufferId> own = TileAsItIs(*added, *atomic, shape), staged = own ? own : TileToAdd(atomic->buffer, shape);
    if (!staged) return false;
    kernel_.decisions.push_back({"tensor_copies", atomic->buffer, "added from a shared tile", "the block works on meanwhile"});
    ir::Store store{*staged, {}, atomic->value};
    for (ir::VarId var : added->vars) store.indices.push_back(module_.VarRef(var));
    ir::Region whole{*staged, std::vector<ExprId>(shape.size(), module_.exprs.Int(0)), shape};
    fill.body[0].op = std::move(store);
    fill.coalesced_width = 0;  // of global memory
    ir::Copy add{std::move(whole), added->box, 0, ir::CopyPlan{}};
    add.plan->instruction = ir::CopyInstruction::kTensor;
    add.plan->adds = true;
    if (!own) result.push_back({std::move(fill), stmt.loc});
    result.push_back({std::move(add), stmt.loc});
    return true;
  }

  // Whether the region is all of one of the tile's matrices, or some of its columns, which lie in whole panels.
  bool IsOfPanels(const ir::Region& region, const Facts& facts) const {
    const std::vector<int64_t> shape = module_.ShapeOf(region.buffer);
    const size_t rank = shape.size();
    if (rank < 2 || region.extents[rank - 2] != shape[rank - 2] || !module_.exprs.IsConst(region.offsets[rank - 2], 0)) return false;
    for (size_t d = 0; d + 2 < rank; ++d)
      if (region.extents[d] != 1) return false;
    if (region.extents.back() == shape.back()) return module_.exprs.IsConst(region.offsets.back(), 0);
    const int64_t bytes = std::max<int64_t>(1, ir::Bits(module_[region.buffer].dtype) / 8);
    const int64_t panel = PanelBytes(shape.back() * bytes), width = panel / bytes;
    if (panel == 0 || PanelBytes(region.extents.back() * bytes) != panel) return false;
    return region.extents.back() % width == 0 && facts.DivisorOf(region.offsets.back()) % width == 0;
  }

  // The stored tensor must be touched by such stores only, and their boxes must not overlap: then nobody waits for the elements.
  bool IsStore(const ir::Copy& copy) const {
    const ir::Buffer &src = module_[copy.src.buffer], &dst = module_[copy.dst.buffer];
    const auto uses = uses_.find(copy.dst.buffer);
    if (src.space == Space::kGlobal || src.space == Space::kLocal) return false;  // no tile: its shape may be unknown
    if (dst.space != Space::kGlobal || uses->second.reads != 0 || !AreApart(stored_.at(copy.dst.buffer), uses->second.writes)) return false;
    if (copy.src.extents != module_.ShapeOf(copy.src.buffer)) return false;
    return src.space == Space::kFragment || (src.space == Space::kShared && src.dtype == dst.dtype && !by_warps_.contains(copy.src.buffer));
  }

  bool AreApart(const std::vector<ir::Region>& boxes, int64_t writes) const {
    for (size_t i = 0; i < boxes.size(); ++i)
      for (size_t j = 0; j < i; ++j)
        if (!AreApart(boxes[i], boxes[j])) return false;
    return int64_t(boxes.size()) == writes;
  }

  // Whether the boxes are a constant distance apart along some dimension. They may belong to different iterations where none of `loops`
  // moves them along it.
  bool AreApart(const ir::Region& a, const ir::Region& b, const std::vector<ir::VarId>& loops = {}) const {
    for (size_t d = 0; d < a.offsets.size(); ++d) {
      const Linear distance = Distance(a, b, d);
      if (!distance.terms.empty() || (distance.constant < b.extents[d] && -distance.constant < a.extents[d])) continue;
      if (std::ranges::none_of(LinearOf(module_.exprs, a.offsets[d]).terms, [&](const auto& term) { return MayMove(ExprId(term.first), loops); }))
        return true;
    }
    return false;
  }

  Linear Distance(const ir::Region& a, const ir::Region& b, size_t d) const {
    Linear distance = LinearOf(module_.exprs, a.offsets[d]);
    distance.Add(LinearOf(module_.exprs, b.offsets[d]), -1);
    return distance;
  }

  bool MayMove(ExprId term, const std::vector<ir::VarId>& loops) const {
    const ir::ExprNode& node = module_.exprs[term];
    if (loops.empty()) return false;
    return node.op != ir::ExprOp::kVar || module_.vars[node.ref].kind == ir::VarKind::kLet ||
           std::ranges::find(loops, ir::VarId(node.ref)) != loops.end();
  }

  // The extent along a dimension of everything that this box and other boxes, which another iteration may bring to the same place, store.
  int64_t Reach(const ir::Region& box, size_t d, const std::vector<ir::VarId>& loops) const {
    int64_t first = 0, end = box.extents[d];
    for (const ir::Region& other : stored_.at(box.buffer)) {
      if (AreApart(other, box, loops)) continue;
      const Linear distance = Distance(other, box, d);
      if (!distance.terms.empty()) return kUnbounded;
      first = std::min(first, distance.constant);
      end = std::max(end, distance.constant + other.extents[d]);
    }
    return end - first;
  }

  bool Fits(const ir::Copy& copy, std::span<const int64_t> tile, const Facts& facts) const {
    return TensorStoreFits(module_, facts, copy.dst, tile, context_.pointer_alignment());
  }

  static ir::CopyPlan TensorPlan(const ir::Copy& copy) {
    ir::CopyPlan plan;
    plan.instruction = ir::CopyInstruction::kTensor;
    plan.vector = copy.plan->vector;
    return plan;
  }

  // As few pieces as shared memory holds beside every stage that the loops ask for. If even the smallest pieces do not fit, the loops lose
  // stages.
  std::optional<Pieces> PiecesOf(const ir::Copy& copy, const Facts& facts, const ir::Block& before) const {
    const std::vector<int64_t> tile = module_.ShapeOf(copy.src.buffer);
    const int64_t bytes = ir::Bits(module_[copy.dst.buffer].dtype) / 8;
    if (tile.size() < 2 || bytes == 0) return std::nullopt;
    const int64_t room = Room(/*every_stage=*/true), least = Room(/*every_stage=*/false);
    const auto within = [&](size_t dim, int64_t extent, int64_t limit) -> std::optional<Pieces> {
      std::vector<int64_t> piece = tile;
      piece[dim] = extent;
      const int64_t size = std::accumulate(piece.begin(), piece.end(), bytes, std::multiplies<>());
      return size <= limit && Fits(copy, piece, facts) ? std::optional(Pieces{dim, extent}) : std::nullopt;
    };
    const size_t last = tile.size() - 1;
    if (const auto whole = within(last, tile[last], room)) return whole;
    if (const std::optional<size_t> dim = SliceDim(copy.src.buffer, before)) {
      const int64_t extent = tile[*dim], unit = *dim < last ? 2 * kAtom : kSpan / bytes;
      const bool divides = extent >= unit && extent % (*dim < last ? kAtom : unit) == 0;
      for (int64_t piece = extent / unit * unit; divides && piece >= unit; piece -= unit) {
        // Of the pieces that give the same count, take the smallest. Pieces of one unit may take space from the stages.
        const int64_t count = (extent + piece - 1) / piece;
        if (piece > unit && (extent + piece - unit - 1) / (piece - unit) == count) continue;
        if (const auto pieces = within(*dim, piece, piece == unit ? least : room)) return pieces;
      }
    }
    return within(last, tile[last], least);
  }

  // The dimension along which to cut so that each group of warps has a part of every piece: the columns of wgmma's result, which may be the
  // program's rows.
  std::optional<size_t> SliceDim(BufferId fragment, const ir::Block& before) const {
    const std::vector<int64_t> shape = module_.ShapeOf(fragment);
    if (const auto at = long_.find(fragment); at != long_.end()) {
      int64_t found = 0;
      for (const ir::Stmt& stmt : LastLoops(before, fragment))
        for (const ir::Stmt& inner : std::get<ir::For>(stmt.op).body) found += CallsMath(std::get<ir::Store>(inner.op).value) ? 1 : 0;
      if (found != at->second) return std::nullopt;
    }
    for (const ir::Gemm& gemm : grouped_) {
      if (gemm.c.extents != shape || gemm.plan->warps_k > 1) continue;
      const bool by_rows = RowOf(gemm, *context_.target).swapped;
      if ((by_rows ? gemm.plan->warps_m : gemm.plan->warps_n) == 1) return shape.size() - (by_rows ? 2 : 1);
    }
    return std::nullopt;
  }

  // The loops at the end of a block that compute the fragment in place.
  std::span<const ir::Stmt> LastLoops(const ir::Block& block, BufferId fragment) const {
    size_t count = 0;
    while (count < block.size() && ComputesInPlace(module_, block[block.size() - count - 1], fragment)) ++count;
    return std::span(block).last(count);
  }

  // Bytes of shared memory beside the kernel's tiles.
  int64_t Room(bool every_stage) const { return int64_t(context_.target->max_shared_bytes) - kKernelBarrierRoom - SharedBytes(every_stage); }

  // Bytes that the kernel's tiles take.
  int64_t SharedBytes(bool every_stage) const {
    int64_t bytes = 0;
    for (uint32_t id = 0; id < module_.buffers.size(); ++id)
      if (module_.buffers[id].space == Space::kShared && (uses_.contains(BufferId(id)) || staged_.contains(BufferId(id)))) {
        int64_t bits = ir::Bits(module_.buffers[id].dtype);
        for (int64_t extent : module_.ShapeOf(BufferId(id))) bits *= extent;
        const auto versions = versions_.find(BufferId(id));
        bytes += bits / 8 * (every_stage && versions != versions_.end() ? versions->second : 1);
      }
    return bytes;
  }

  // Stores to one place have no order among each other. Each loop around must therefore move the box beyond itself, in a dimension of its
  // own.
  bool StoresOnce(const ir::Copy& copy, const Place& place) const {
    std::set<ir::VarId> apart;
    for (size_t d = 0; d < copy.dst.offsets.size(); ++d) {
      std::optional<ir::VarId> mover;
      int64_t step = 0;
      for (const auto& [term, coefficient] : LinearOf(module_.exprs, copy.dst.offsets[d]).terms) {
        const ir::ExprNode& node = module_.exprs[ExprId(term)];
        if (node.op != ir::ExprOp::kVar) return place.loops.empty() && place.counted;
        if (std::ranges::find(place.loops, ir::VarId(node.ref)) == place.loops.end()) continue;
        step = mover ? 0 : std::abs(coefficient);
        mover = ir::VarId(node.ref);
      }
      if (mover && step >= Reach(copy.dst, d, place.loops)) apart.insert(*mover);
    }
    return place.counted && apart.size() == place.loops.size();
  }

  // Whether all threads see one value: it depends only on the block, its loops, the launch, and elements of tensors.
  bool IsShared(ExprId id) const {
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ir::ExprOp::kVar) return module_.vars[node.ref].kind != ir::VarKind::kThread && !by_thread_.contains(ir::VarId(node.ref));
    if (node.op == ir::ExprOp::kLoad && module_[BufferId(node.ref)].space != Space::kGlobal) return false;
    return std::ranges::all_of(node.Args(), [&](ExprId arg) { return IsShared(arg); });
  }

  // Each piece fills a shared tile, which is then stored.
  void Stage(const ir::Copy& copy, const Pieces& pieces, ir::SourceLoc loc, ir::Block& result) {
    ir::Buffer buffer{Space::kShared, module_[copy.dst.buffer].dtype, module_[copy.src.buffer].shape};
    buffer.shape[pieces.dim] = module_.exprs.Int(pieces.extent);
    const BufferId staged = FreshBuffer(module_, std::move(buffer), module_[copy.src.buffer].name + "_out");
    staged_.insert(staged);
    const int64_t count = (copy.src.extents[pieces.dim] + pieces.extent - 1) / pieces.extent;
    const std::string many = count == 1 ? "one piece" : fmt::format("{} pieces", count);
    kernel_.decisions.push_back({"tensor_copies", copy.src.buffer, "stored through a shared tile, in " + many, "the block works on meanwhile"});
    const size_t from_end = copy.src.extents.size() - pieces.dim;
    ir::Block computed;
    if (count > 1 && long_.contains(copy.src.buffer)) {
      const auto last = result.end() - ptrdiff_t(LastLoops(result, copy.src.buffer).size());
      computed.assign(std::make_move_iterator(last), std::make_move_iterator(result.end()));
      result.erase(last, result.end());
    }
    for (int64_t first = 0, whole = copy.src.extents[pieces.dim]; first < whole; first += pieces.extent) {
      const int64_t extent = std::min(pieces.extent, whole - first);
      const ir::Region src = Part(copy.src, pieces.dim, first, extent);
      const ir::Region dst = Part(copy.dst, copy.dst.extents.size() - from_end, first, extent);
      const ir::Region tile{staged, copy.src.offsets, src.extents};
      for (const ir::Stmt& loop : computed) result.push_back(PartOfLoop(module_, loop, pieces.dim, first, extent));
      result.push_back({ir::Copy{src, tile, copy.coalesced_width, ir::CopyPlan{}}, loc});
      result.push_back({ir::Copy{tile, dst, copy.coalesced_width, TensorPlan(copy)}, loc});
    }
  }

  ir::Region Part(ir::Region region, size_t dim, int64_t first, int64_t extent) {
    ExprId& offset = region.offsets[dim];
    if (first != 0) offset = module_.exprs.Add(offset, module_.exprs.Int(first, module_.exprs.Type(offset)));
    region.extents[dim] = extent;
    return region;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const bool has_signals_;
  const bool orders_;  // an atomic or a barrier of the program orders what the block did before it
  AccessCounts uses_;
  std::set<BufferId> narrow_;                           // tiles of short rows that a ring takes
  std::set<BufferId> by_groups_;                        // operands of wgmma
  std::set<BufferId> by_warps_;                         // operands of other products, which need other layouts
  std::map<BufferId, std::vector<ir::Region>> stored_;  // by copies
  std::map<BufferId, int64_t> added_;                   // how many loops add tiles to it
  std::set<BufferId> staged_, to_add_;
  std::map<BufferId, int64_t> long_;
  std::map<BufferId, int64_t> versions_;
  std::vector<ir::Gemm> grouped_;  // by wgmma
  std::set<ir::VarId> by_thread_;  // lets that differ between threads
  bool has_wgmma_ = false;
};

// Whether offsets come from global memory only. Where registers or shared memory hold offsets, the copy is made element by element.
bool OffsetsAreShared(const ir::Module& module, const ir::Copy& copy) {
  std::vector<Access> loads;
  for (const ir::Region* region : {&copy.src, &copy.dst})
    for (ExprId offset : region->offsets) CollectLoads(module.exprs, offset, loads);
  return std::ranges::all_of(loads, [&](const Access& load) { return module[load.buffer].space == Space::kGlobal; });
}

}  // namespace

void TensorCopies(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (UsesTensorCopies(context)) Chooser(module, kernel, context).Run();
}

ir::CopyInstruction PlainInstruction(const ir::Module& module, const ir::Copy& copy, int64_t vector, const Context& context) {
  const ir::Buffer &src = module[copy.src.buffer], &dst = module[copy.dst.buffer];
  const int64_t bytes = vector * ir::Bits(src.dtype) / 8;
  const bool whole = src.dtype == dst.dtype && (bytes == 4 || bytes == 8 || bytes == 16);
  const bool zero_fill = !src.pad_value || *src.pad_value == 0;
  const bool load = src.space == Space::kGlobal && dst.space == Space::kShared && OffsetsAreShared(module, copy);
  const bool allowed = context.target->Has(target::Feature::kCpAsync) && !context.options.disable_async_copy();
  return load && whole && zero_fill && allowed ? ir::CopyInstruction::kAsync : ir::CopyInstruction::kDirect;
}

void LayOutTiles(ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  const auto lay_out = [&](BufferId id) {
    ir::Buffer& buffer = module[id];
    if (buffer.space == Space::kShared) buffer.layout = TensorSharedLayout(module.ShapeOf(id), ir::Bits(buffer.dtype));
  };
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op);
        copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor) {
      lay_out(copy->src.buffer), lay_out(copy->dst.buffer);
    }
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm == nullptr || !RowOf(*gemm, target).reads_shared) return;
    lay_out(gemm->a.buffer), lay_out(gemm->b.buffer);
  });
}

}  // namespace kiln::compiler
