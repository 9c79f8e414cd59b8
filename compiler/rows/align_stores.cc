// SPDX-License-Identifier: Apache-2.0
#include "compiler/rows/align_stores.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/threads/divergence.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Space;

constexpr int64_t kVector = 16;        // bytes
constexpr int64_t kGoodAccess = 4;     // bytes of a lane: those of a warp are a line of memory
constexpr int64_t kLeastRun = 64;      // elements: of shorter ones, most are near an end
constexpr int64_t kMostBytes = 36864;  // of a run in shared memory: several blocks still share a multiprocessor
constexpr int64_t kMostElements = kMostBytes;

// The elements of a tensor that a parallel loop stores: start … start + length − 1 in the tensor's order, each once. Those behind the end of their
// row are none of the tensor's, where the run may leave it.
struct Run {
  BufferId tensor;
  ExprId start;                // i64
  std::optional<ExprId> rest;  // i64: elements of the row from `start` on, where the run may leave it
  std::vector<int64_t> steps;  // of each variable of the loop
  int64_t length;
  int64_t unit;  // elements of a vector
  int64_t Vectors(bool aligned) const { return (length + unit - 1 + (aligned ? 0 : unit - 1)) / unit; }
};

class Aligner {
 public:
  Aligner(ir::Module& module, ir::Kernel& kernel, const Context& context)
      : module_(module), kernel_(kernel), context_(context), divergence_(module, kernel), uses_(CountAllAccesses(module, kernel.body)) {
    for (const auto& [buffer, count] : uses_)
      if (module[buffer].space == Space::kShared) shared_bytes_ += Elements(module.ShapeOf(buffer)) * ir::Bytes(module[buffer].dtype);
  }

  void Align() {
    Facts facts(module_);
    facts.EnterKernel(kernel_);
    Visit(kernel_.body, facts);
  }

 private:
  static int64_t Elements(const std::vector<int64_t>& shape) { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }

  void Visit(ir::Block& block, Facts facts) {
    ir::Block result;
    for (ir::Stmt& stmt : block) {
      loc_ = stmt.loc;
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) facts.Bind(*let);
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) facts.Assume(assume->cond);
      before_.clear(), after_.clear();
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (loop->kind == ir::LoopKind::kParallel) Replace(stmt, *loop, facts);
        else if (ComesTogether(*loop)) VisitLoop(*loop, facts);
      } else if (const auto* copy = std::get_if<ir::Copy>(&stmt.op); copy != nullptr && MayBeOdd(*copy, facts)) {
        ir::Stmt by_elements{CopyLoop(module_, *copy), stmt.loc};
        if (Replace(by_elements, std::get<ir::For>(by_elements.op), facts)) stmt = std::move(by_elements);
      }
      std::ranges::move(before_, std::back_inserter(result));
      result.push_back(std::move(stmt));
      std::ranges::move(after_, std::back_inserter(result));
    }
    before_.clear(), after_.clear();
    block = std::move(result);
  }

  bool ComesTogether(const ir::For& loop) const {
    return (loop.kind == ir::LoopKind::kSerial || loop.kind == ir::LoopKind::kUnroll) && !divergence_.IsLeftEarly(&loop) &&
           std::ranges::none_of(loop.extents, [&](ExprId extent) { return divergence_.Differs(extent); });
  }

  void VisitLoop(ir::For& loop, const Facts& facts) {
    Facts inner = facts;
    inner.EnterLoop(loop);
    Visit(loop.body, inner);
  }

  // A copy from a tile to a tensor whose rows may begin anywhere.
  bool MayBeOdd(const ir::Copy& copy, const Facts& facts) const {
    if (copy.plan || copy.signals || copy.coalesced_width != 0) return false;
    const ir::Space from = module_[copy.src.buffer].space;
    const ir::Buffer& tensor = module_[copy.dst.buffer];
    if (tensor.space != Space::kGlobal || from == Space::kGlobal || from == Space::kLocal) return false;
    if (tensor.shape.empty() || ir::Bits(tensor.dtype) % 8 != 0) return false;
    return facts.DivisorOf(tensor.shape.back()) * ir::Bytes(tensor.dtype) % kGoodAccess != 0;
  }

  // Puts runs in shared memory in the place of the tensors that the loop stores in such runs. Whether there are any. What the loop tells other
  // threads in an ordered atomic would come before the stores.
  bool Replace(ir::Stmt& stmt, ir::For& loop, const Facts& outside) {
    if (HasOrder(loop.body)) return false;
    Facts facts = outside;
    facts.EnterLoop(loop);
    bool any = false;
    for (const Access& access : AccessesOf(module_, stmt)) {
      ir::Store* store = access.write ? StoreOf(loop, access.buffer) : nullptr;
      const std::optional<Run> run = store == nullptr ? std::nullopt : RunOf(loop, *store, access, facts);
      if (!run) continue;
      const bool aligned = facts.DivisorOf(run->start) % run->unit == 0;
      const int64_t bytes = run->Vectors(aligned) * kVector;
      if (bytes > kMostBytes || shared_bytes_ + bytes > int64_t(context_.target->max_shared_bytes) / 2) continue;
      shared_bytes_ += bytes;
      StoreByVectors(loop, *store, *run, aligned);
      kernel_.decisions.push_back({"align_stores", run->tensor, "moves through shared memory in whole vectors",
                                   aligned ? "its rows are no whole vectors" : "its rows begin anywhere", loc_});
      any = true;
    }
    return any;
  }

  static bool HasOrder(const ir::Block& body) {
    bool has = false;
    ir::Walk(body, [&](const ir::Stmt& stmt) { has |= Acquires(stmt) || Releases(stmt); });
    return has;
  }

  // The statement of the loop's body that stores to the tensor, whatever else holds.
  static ir::Store* StoreOf(ir::For& loop, BufferId tensor) {
    for (ir::Stmt& stmt : loop.body)
      if (auto* store = std::get_if<ir::Store>(&stmt.op); store != nullptr && store->buffer == tensor) return store;
    return nullptr;
  }

  // --- what is a run ---

  std::optional<Run> RunOf(const ir::For& loop, const ir::Store& store, const Access& access, const Facts& facts) {
    const ir::Buffer& buffer = module_[access.buffer];
    const bool is_parameter = std::ranges::find(module_.params, ir::Param(access.buffer)) != module_.params.end();
    if (!is_parameter || !HasRoomForViews(module_) || access.tile || access.indices.empty() || !buffer.strides.empty() || buffer.may_alias ||
        HasGaps(module_, access.buffer) || uses_.at(access.buffer).all() != 1)
      return std::nullopt;
    if (ir::Bits(buffer.dtype) % 8 != 0 || ir::Bytes(buffer.dtype) >= kGoodAccess || !RowsAreInside(access, facts)) return std::nullopt;
    const bool leaves = access.indices.size() > 1 && !facts.Inside(access.indices.back(), 1, buffer.shape.back());
    if (leaves && ReadsTiles(store)) return std::nullopt;
    std::optional<Run> run = Flat(loop, access, leaves);
    if (!run || !IsDense(loop, *run) || !IsOneForAll(run->start) || (run->rest && !IsOneForAll(*run->rest))) return std::nullopt;
    const auto along = std::ranges::find(run->steps, 1);
    if (along == run->steps.end() || IsMovedWell(loop, *run, size_t(along - run->steps.begin()), access, facts)) return std::nullopt;
    return run;
  }

  // What is stored beyond a row is nothing that a tile has to have a value for, but it would be read.
  bool ReadsTiles(const ir::Store& store) const {
    return std::ranges::any_of(ir::LoadsOf(module_.exprs, store.value), [&](ExprId load) {
      const Space space = module_[BufferId(module_.exprs[load].ref)].space;
      return space == Space::kShared || space == Space::kLocal;
    });
  }

  // Whether all threads have it, wherever between the loop's beginning and its end they compute it.
  bool IsOneForAll(ExprId start) const {
    const auto stays = [&](ExprId load) {
      const auto from = BufferId(module_.exprs[load].ref);
      return module_[from].space == Space::kGlobal && (!uses_.contains(from) || uses_.at(from).writes == 0);
    };
    return !divergence_.Differs(start) && std::ranges::all_of(ir::LoadsOf(module_.exprs, start), stays);
  }

  // Whether neighbours in the tensor are stored together as it is.
  bool IsMovedWell(const ir::For& loop, const Run& run, size_t along, const Access& access, const Facts& facts) const {
    // Where only the tensor's end is in the way, stores of single elements still fill whole lines.
    const int64_t neighbours = std::gcd(facts.DivisorOf(run.start), ExtentsOf(module_, loop)[along]);
    if (neighbours % run.unit == 0) return true;
    const int64_t width = VectorWidthIn(module_, facts, loop, along, access.buffer, access.indices, run.unit, context_.pointer_alignment());
    return width * ir::Bytes(module_[access.buffer].dtype) >= kGoodAccess;
  }

  // The access as sums of the loop's variables by constants, from a start that does not depend on them. One that may leave its row is of one row.
  std::optional<Run> Flat(const ir::For& loop, const Access& access, bool leaves) {
    const ir::Buffer& buffer = module_[access.buffer];
    const std::set<ir::VarId> bound = BoundIn(loop);
    Run run{access.buffer, Number(0), std::nullopt, std::vector<int64_t>(loop.vars.size()), 1, kVector / ir::Bytes(buffer.dtype)};
    int64_t stride = 1;  // 0: not a constant, or beyond all memory
    ExprId elements = Number(1);
    for (size_t d = access.indices.size(); d-- > 0;) {
      ExprId first = access.indices[d];
      const Linear linear = LinearOf(module_.exprs, first);
      for (const auto& [term, coefficient] : linear.terms) {
        const ir::ExprNode& node = module_.exprs[ExprId(term)];
        const auto var = node.op == ExprOp::kVar ? std::ranges::find(loop.vars, ir::VarId(node.ref)) : loop.vars.end();
        if (var == loop.vars.end() && ContainsVar(module_.exprs, ExprId(term), bound)) return std::nullopt;
        if (var == loop.vars.end()) continue;
        if (stride == 0 || coefficient < 0 || (leaves && d + 1 < access.indices.size())) return std::nullopt;
        run.steps[size_t(var - loop.vars.begin())] += coefficient * stride;
      }
      for (ir::VarId var : loop.vars) first = module_.exprs.Substitute(first, var, module_.exprs.Int(0, module_[var].dtype));
      if (leaves && d + 1 == access.indices.size()) run.rest = module_.exprs.Sub(Wide(buffer.shape[d]), Wide(first));
      run.start = module_.exprs.Add(run.start, module_.exprs.Mul(Wide(first), elements));
      elements = module_.exprs.Mul(elements, Wide(buffer.shape[d]));
      const std::optional<int64_t> extent = module_.exprs.ConstInt(buffer.shape[d]);
      stride = extent && *extent > 0 && *extent <= kMostElements && stride < int64_t{1} << 40 ? stride * *extent : 0;
    }
    return run;
  }

  // Sets the run's length. Whether each element of it is stored once.
  bool IsDense(const ir::For& loop, Run& run) {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    std::vector<std::pair<int64_t, int64_t>> steps;
    for (size_t v = 0; v < extents.size(); ++v)
      if (extents[v] > 1) steps.emplace_back(run.steps[v], extents[v]);
    std::ranges::sort(steps);
    for (const auto& [step, extent] : steps) {
      if (step != run.length || extent > kMostElements / run.length) return false;
      run.length *= extent;
    }
    return run.length >= kLeastRun;
  }

  // Whether the element's row is one of the tensor's, or lies behind the tensor, and the element does not lie before its row.
  bool RowsAreInside(const Access& access, const Facts& facts) const {
    const ir::Buffer& buffer = module_[access.buffer];
    for (size_t d = 1; d + 1 < access.indices.size(); ++d)
      if (!facts.Inside(access.indices[d], 1, buffer.shape[d])) return false;
    return facts.RangeOf(access.indices.front()).min >= 0 && facts.RangeOf(access.indices.back()).min >= 0;
  }

  // --- expressions ---

  ExprId Number(int64_t value) { return module_.exprs.Int(value, ir::DType::kI64); }
  ExprId Wide(ExprId id) { return module_.exprs.Cast(ir::DType::kI64, id); }
  ExprId Narrow(ExprId id) { return module_.exprs.Cast(ir::DType::kI32, id); }
  ExprId Over(ExprId a, int64_t b) { return module_.exprs.Make(ExprOp::kFloorDiv, {a, Number(b)}); }
  ExprId Less(ExprId a, ExprId b) { return module_.exprs.Make(ExprOp::kLt, {a, b}); }
  ExprId UpTo(ExprId a, ExprId b) { return module_.exprs.Make(ExprOp::kLe, {a, b}); }
  ExprId Both(ExprId a, ExprId b) { return module_.exprs.Make(ExprOp::kAnd, {a, b}); }
  ExprId Element(BufferId buffer, std::initializer_list<ExprId> indices) {
    return module_.exprs.Load(buffer, module_[buffer].dtype, std::vector<ExprId>(indices));
  }

  ExprId Named(ExprId value, std::string_view name, ir::Block& block) {
    if (module_.exprs.ConstInt(value)) return value;
    const ir::VarId var = FreshVar(module_, ir::VarKind::kLet, module_.exprs.Type(value), name);
    block.push_back({ir::Let{var, value}, loc_});
    return module_.VarRef(var);
  }

  // --- the run's places ---

  struct Places {
    BufferId shared, vectors, elements;  // the run and what lies around it; the tensor by vectors; by elements
    int64_t count;                       // of vectors in `shared`
    ExprId size;                         // of the tensor, i64
    ExprId first;                        // the vector in which the run begins, i64
    ExprId phase;                        // the run's place there, i32
  };

  Places PlacesOf(const Run& run, bool aligned) {
    Places places{};
    places.count = run.Vectors(aligned);
    places.size = Number(1);
    for (ExprId extent : module_[run.tensor].shape) places.size = module_.exprs.Mul(places.size, Wide(extent));
    places.shared = FreshOfShape(module_, run.tensor, Space::kShared, std::array{places.count * run.unit}, "_run");
    before_.push_back({ir::Alloc{places.shared}, loc_});
    places.vectors = View(run.tensor, {Over(places.size, run.unit), Number(run.unit)}, {Number(run.unit), Number(1)}, "_vectors");
    places.elements = View(run.tensor, {places.size}, {Number(1)}, "_elements");
    const ExprId start = Named(run.start, "start", before_);
    places.first = Named(Over(start, run.unit), "first", before_);
    places.phase = aligned ? module_.exprs.Int(0) : Named(Narrow(module_.exprs.Make(ExprOp::kFloorMod, {start, Number(run.unit)})), "phase", before_);
    return places;
  }

  // The same of every run of the tensor.
  BufferId View(BufferId tensor, std::vector<ExprId> shape, std::vector<ExprId> strides, std::string_view suffix) {
    for (uint32_t id = 0; id < module_.buffers.size(); ++id) {
      const ir::Buffer& known = module_.buffers[id];
      if (known.view && known.view->of == tensor && known.shape == shape && known.strides == strides) return BufferId(id);
    }
    ir::Buffer view{.space = Space::kGlobal, .dtype = module_[tensor].dtype, .shape = std::move(shape), .strides = std::move(strides)};
    view.view = ir::View{tensor, {}};
    return FreshBuffer(module_, std::move(view), module_[tensor].name + std::string(suffix));
  }

  ExprId PlaceIn(const Run& run, ExprId vector, ExprId element) {
    return module_.exprs.Add(module_.exprs.Mul(vector, module_.exprs.Int(run.unit)), element);
  }

  // Of the loop's own element.
  ExprId PlaceOf(const ir::For& loop, const Run& run, const Places& places) {
    ExprId place = places.phase;
    for (size_t v = 0; v < loop.vars.size(); ++v) {
      const ExprId step = module_.exprs.Int(run.steps[v]);
      if (run.steps[v] != 0) place = module_.exprs.Add(place, module_.exprs.Mul(Narrow(module_.VarRef(loop.vars[v])), step));
    }
    return place;
  }

  // for c, e in vectors, elements of each { body(c, e) }
  ir::Stmt EachElement(const Run& run, const Places& places, auto body) {
    ElementLoop each = MakeElementLoop(module_, std::array{places.count, run.unit}, "v");
    each.loop.body.push_back(body(each.indices[0], each.indices[1]));
    return {std::move(each.loop), loc_};
  }

  // for e in elements of a vector { if cond(e) { body(e) } }
  ir::Stmt EachOfVector(const Run& run, auto cond, auto body) {
    ElementLoop each = MakeElementLoop(module_, std::array{run.unit}, "e");
    each.loop.body.push_back(When(cond(each.indices[0]), {body(each.indices[0]), loc_}));
    return {std::move(each.loop), loc_};
  }

  ir::Stmt When(ExprId cond, ir::Stmt stmt) {
    ir::If branch{.cond = cond};
    branch.then_body.push_back(std::move(stmt));
    return {std::move(branch), loc_};
  }

  // --- the stores ---

  void StoreByVectors(const ir::For& loop, ir::Store& store, const Run& run, bool aligned) {
    const Places places = PlacesOf(run, aligned);
    store.buffer = places.shared, store.indices = {PlaceOf(loop, run, places)};
    const ExprId begin = module_.exprs.Add(module_.exprs.Mul(places.first, Number(run.unit)), Wide(places.phase));
    const ExprId length = run.rest ? module_.exprs.Make(ExprOp::kMin, {Number(run.length), *run.rest}) : Number(run.length);
    const ExprId last = module_.exprs.Make(ExprOp::kMin, {module_.exprs.Add(begin, length), places.size});
    const ExprId end = Named(module_.exprs.Make(ExprOp::kMax, {last, begin}), "end", after_);
    // The run's whole vectors, counted from `first`.
    const ExprId from = aligned
                            ? module_.exprs.Int(0)
                            : Named(Narrow(Over(Wide(module_.exprs.Add(places.phase, module_.exprs.Int(run.unit - 1))), run.unit)), "from", after_);
    const ExprId to = Named(Narrow(module_.exprs.Sub(Over(end, run.unit), places.first)), "to", after_);
    after_.push_back(EachElement(run, places, [&](ExprId vector, ExprId element) {
      const ExprId value = Element(places.shared, {PlaceIn(run, vector, element)});
      const ExprId at = module_.exprs.Add(places.first, Wide(vector));
      return When(Both(UpTo(from, vector), Less(vector, to)), {ir::Store{places.vectors, {at, Wide(element)}, value}, loc_});
    }));
    const auto ends = [&](ExprId vector, std::optional<ExprId> where) {
      const auto element = [&](ExprId e) {
        return module_.exprs.Add(module_.exprs.Mul(module_.exprs.Add(places.first, Wide(vector)), Number(run.unit)), Wide(e));
      };
      after_.push_back(EachOfVector(
          run,
          [&](ExprId e) {
            const ExprId own = Both(UpTo(begin, element(e)), Less(element(e), end));
            return where ? Both(*where, own) : own;
          },
          [&](ExprId e) { return ir::Store{places.elements, {element(e)}, Element(places.shared, {PlaceIn(run, vector, e)})}; }));
    };
    if (!aligned) ends(module_.exprs.Int(0), Less(module_.exprs.Int(0), from));
    ends(to, std::nullopt);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const Divergence divergence_;
  const AccessCounts uses_;
  ir::SourceLoc loc_;
  ir::Block before_, after_;  // of the statement
  int64_t shared_bytes_ = 0;
};

bool HasProducts(const ir::Kernel& kernel) {
  bool has = false;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) { has |= std::holds_alternative<ir::Gemm>(stmt.op) || std::holds_alternative<ir::Mma>(stmt.op); });
  return has;
}

}  // namespace

void AlignStores(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (!context.target->Has(target::Feature::kCpAsync) || context.pointer_alignment() % kVector != 0 || HasProducts(kernel)) return;
  Aligner(module, kernel, context).Align();
}

}  // namespace kiln::compiler
