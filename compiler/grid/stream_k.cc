// SPDX-License-Identifier: Apache-2.0
#include "compiler/grid/stream_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/grid/tile_order.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "compiler/rules/stream_cost.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Stmt;

struct StreamPlan {
  int64_t blocks;   // B
  int64_t tiles;    // X · Y
  int64_t steps;    // S, of each
  int64_t turns;    // tiles that each block computes alone first
  int64_t sharing;  // the first so many blocks share the remaining tiles
  bool pays;        // as the cost model has it
};

constexpr int64_t kMostUnits = INT32_MAX;  // steps times blocks are counted in 32 bits

bool IsRingStep(const Stmt& stmt) { return std::holds_alternative<ir::RingStep>(stmt.op); }

class Planner {
 public:
  Planner(const ir::Module& module, const ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  // The only loop with rings, which must be a statement of the kernel's body itself.
  std::optional<size_t> FindLoop() const {
    std::optional<size_t> at;
    for (size_t i = 0; i < kernel_.body.size(); ++i) {
      bool holds = false;
      ir::WalkWithin(kernel_.body[i], [&](const Stmt& stmt) { holds |= IsRingStep(stmt); });
      if (!holds) continue;
      if (at || !Fits(i)) return std::nullopt;
      at = i;
    }
    return at;
  }

  std::optional<StreamPlan> Plan(size_t at) const {
    const auto& loop = std::get<ir::For>(kernel_.body[at].op);
    const auto product = std::ranges::find_if(loop.body, [](const Stmt& stmt) { return std::holds_alternative<ir::Gemm>(stmt.op); });
    const auto& gemm = std::get<ir::Gemm>(product->op);
    int64_t tiles = 1;
    for (ExprId extent : kernel_.grid) {
      const int64_t size = module_.exprs.ConstInt(extent).value_or(0);
      if (size <= 0 || size > kMostUnits / tiles) return std::nullopt;
      tiles *= size;
    }
    const int64_t multiprocessors = int64_t(context_.target->multiprocessors);
    if (tiles > multiprocessors && kernel_.threads < kLargeBlock) return std::nullopt;  // several blocks may share a multiprocessor
    const TileWork work = WorkOf(module_, gemm, *context_.target, tiles, module_.exprs.ConstInt(loop.extents[0]).value_or(0));
    const bool pinned = context_.options.stream_k() == v1::STREAM_K_ALWAYS;
    Streams streams = BestStreams(work);
    if (streams.blocks == 0) return std::nullopt;
    const bool pays = StreamedCycles(work, streams) < context_.target->costs.worth_streaming * DealtCycles(work);
    if (!pays && !pinned) return std::nullopt;
    if (!pays) streams = WaysToStream(work).back();
    const int64_t dealt = streams.turns * multiprocessors;
    if (tiles - dealt > kMostUnits / work.steps / (streams.blocks + 1)) return std::nullopt;
    return StreamPlan{.blocks = dealt > 0 ? multiprocessors : streams.blocks,
                      .tiles = tiles,
                      .steps = work.steps,
                      .turns = streams.turns,
                      .sharing = streams.blocks,
                      .pays = pays};
  }

 private:
  bool Fits(size_t at) const {
    const auto* loop = std::get_if<ir::For>(&kernel_.body[at].op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kSerial) return false;
    const ir::Gemm* gemm = nullptr;
    for (const Stmt& stmt : loop->body) {
      if (const auto* product = std::get_if<ir::Gemm>(&stmt.op); product != nullptr && gemm == nullptr) {
        gemm = product;
        continue;
      }
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      const bool fills = copy != nullptr && copy->plan && copy->plan->ring;
      if (!fills && !IsRingStep(stmt) && !std::holds_alternative<ir::Let>(stmt.op)) return false;
    }
    if (gemm == nullptr || gemm->clear_accum || gemm->plan->in_flight) return false;
    if (!RowOf(*gemm, *context_.target).IsByGroup() || ir::Bits(module_[gemm->c.buffer].dtype) != 32) return false;
    for (size_t i = 0; i < at; ++i)
      if (WritesGlobal(module_, kernel_.body[i])) return false;
    return ZeroedBy(module_, std::span(kernel_.body).first(at), gemm->c.buffer) != nullptr;
  }

  const ir::Module& module_;
  const ir::Kernel& kernel_;
  const Context& context_;
};

class Streamer {
 public:
  Streamer(ir::Module& module, ir::Kernel& kernel, const Context& context, const StreamPlan& plan)
      : module_(module), kernel_(kernel), plan_(plan), order_(module, kernel, *context.target, {}) {}

  void Run() {
    const ir::Block old = std::move(kernel_.body);
    const ir::VarId block = order_.AddVar(ir::VarKind::kBlock, "block"), turn = order_.AddVar(ir::VarKind::kLoop, "turn");
    ir::Block body;
    block_ = module_.VarRef(block);
    part_ = order_.Bind(module_.exprs.Sub(order_.Int(plan_.sharing - 1), block_), body, "part");
    first_ = order_.Bind(Div(Mul(part_, Units()), plan_.sharing), body, "first");
    last_ = order_.Bind(Div(Mul(module_.exprs.Add(part_, order_.Int(1)), Units()), plan_.sharing), body, "last");
    first_tile_ = order_.Bind(Div(first_, plan_.steps), body, "first_tile");
    const ExprId last_tile = Div(module_.exprs.Sub(last_, order_.Int(1)), plan_.steps);
    ExprId turns = module_.exprs.Add(module_.exprs.Sub(last_tile, first_tile_), order_.Int(plan_.turns + 1));
    if (plan_.sharing < plan_.blocks) {
      turns = module_.exprs.Make(ExprOp::kSelect, {order_.Make(ExprOp::kLe, order_.Int(0), part_), turns, order_.Int(plan_.turns)});
    }
    ir::For loop{ir::LoopKind::kSerial, {turn}, {turns}, {}};
    Bounds(module_.VarRef(turn), loop.body);
    Move(old, body, loop.body);
    order_.Use(loop.body);
    body.push_back({std::move(loop), {}});
    kernel_.body = std::move(body);
    kernel_.grid = {module_.exprs.Int(plan_.blocks, module_.exprs.Type(kernel_.grid[0]))};
    kernel_.block_vars = {block};
    kernel_.raster_panel = 0;
  }

 private:
  int64_t Units() const { return (plan_.tiles - plan_.turns * plan_.blocks) * plan_.steps; }
  ExprId Mul(ExprId a, int64_t b) { return module_.exprs.Mul(a, order_.Int(b)); }
  ExprId Div(ExprId a, int64_t b) { return order_.Make(ExprOp::kFloorDiv, a, order_.Int(b)); }

  // Computes the tile of this turn, the range of its steps, and how many blocks have the steps behind that range.
  void Bounds(ExprId turn, ir::Block& body) {
    const ExprId zero = order_.Int(0), steps = order_.Int(plan_.steps);
    const ExprId number = order_.Bind(module_.exprs.Add(first_tile_, module_.exprs.Sub(turn, order_.Int(plan_.turns))), body, "number");
    const ExprId start = order_.Bind(Mul(number, plan_.steps), body, "start");
    ExprId tile = number, from = order_.Make(ExprOp::kMax, module_.exprs.Sub(first_, start), zero);
    ExprId to = order_.Make(ExprOp::kMin, module_.exprs.Sub(last_, start), steps);
    // The number of the part that has the tile's last step.
    const ExprId end = Mul(module_.exprs.Add(start, steps), plan_.sharing);
    ExprId behind = module_.exprs.Sub(Div(module_.exprs.Sub(end, order_.Int(1)), Units()), part_);
    if (plan_.turns > 0) {
      const ExprId alone = order_.Bind(order_.Make(ExprOp::kLt, turn, order_.Int(plan_.turns)), body, "alone");
      const auto either = [&](ExprId a, ExprId b) { return module_.exprs.Make(ExprOp::kSelect, {alone, a, b}); };
      tile = either(module_.exprs.Add(block_, Mul(turn, plan_.blocks)), module_.exprs.Add(tile, order_.Int(plan_.turns * plan_.blocks)));
      from = either(zero, from);
      to = either(steps, to);
      behind = either(zero, behind);
    }
    order_.Place(order_.Bind(tile, body, "tile"), body);
    from_ = order_.Bind(from, body, "from");
    count_ = order_.Bind(module_.exprs.Sub(to, from_), body, "steps");
    owns_ = order_.Bind(order_.Make(ExprOp::kEq, from_, zero), body, "owns");
    parts_ = order_.Bind(behind, body, "parts");
  }

  void Move(const ir::Block& old, ir::Block& outside, ir::Block& inside) {
    ir::If finish{owns_, {}, {}};
    bool behind = false;
    for (Stmt stmt : old) {
      if (std::holds_alternative<ir::Alloc>(stmt.op)) {
        outside.push_back(std::move(stmt));
        continue;
      }
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (behind || loop == nullptr || std::ranges::none_of(loop->body, IsRingStep)) {
        (behind ? finish.then_body : inside).push_back(std::move(stmt));
        continue;
      }
      behind = true;
      const ir::SourceLoc loc = stmt.loc;
      const ir::StreamSum sum = MakeSum(*loop);
      const ExprId step = module_.VarRef(loop->vars[0]);
      Substitute(module_, loop->body, loop->vars[0], module_.exprs.Add(step, module_.exprs.Cast(module_.exprs.Type(step), from_)));
      loop->extents[0] = module_.exprs.Cast(module_.exprs.Type(loop->extents[0]), count_);
      inside.push_back(std::move(stmt));
      inside.push_back({sum, loc});
    }
    inside.push_back({std::move(finish), {}});
  }

  ir::StreamSum MakeSum(const ir::For& loop) {
    const auto gemm = std::ranges::find_if(loop.body, [](const Stmt& stmt) { return std::holds_alternative<ir::Gemm>(stmt.op); });
    const BufferId sum = std::get<ir::Gemm>(gemm->op).c.buffer;
    const int64_t elements = module_[sum].layout->Registers() * int64_t(kernel_.threads);
    const auto add = [&](ir::DType dtype, std::vector<int64_t> shape, std::string_view suffix) {
      ir::Buffer buffer{.space = ir::Space::kGlobal, .dtype = dtype, .shape = ShapeOfConstants(module_, shape), .workspace = true};
      return FreshBuffer(module_, std::move(buffer), module_[sum].name + std::string(suffix));
    };
    const BufferId partials = add(module_[sum].dtype, {plan_.sharing, elements}, "_parts"), flags = add(ir::DType::kU32, {plan_.sharing}, "_flags");
    return {sum, partials, flags, block_, owns_, parts_};
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const StreamPlan plan_;
  TileOrder order_;
  ExprId block_{}, part_{}, first_{}, last_{}, first_tile_{}, from_{}, count_{}, owns_{}, parts_{};
};

}  // namespace

void StreamK(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (context.options.stream_k() == v1::STREAM_K_NEVER || kernel.producers == 0 || !kernel.cluster.empty() || MeetsOtherBlocks(kernel)) return;
  const Planner planner(module, kernel, context);
  const std::optional<size_t> at = planner.FindLoop();
  if (!at) return;
  const std::optional<StreamPlan> plan = planner.Plan(*at);
  if (!plan) return;
  Streamer(module, kernel, context, *plan).Run();
  kernel.decisions.push_back(
      {"stream_k", std::nullopt,
       fmt::format("{} blocks share the steps of {} of {} tiles", plan->sharing, plan->tiles - plan->turns * plan->blocks, plan->tiles),
       plan->pays ? "whole tiles would leave more multiprocessors idle" : "asked for"});
}

bool IsStreamed(const ir::Kernel& kernel) {
  bool streamed = false;
  ir::Walk(kernel.body, [&](const Stmt& stmt) { streamed |= std::holds_alternative<ir::StreamSum>(stmt.op); });
  return streamed;
}

}  // namespace kiln::compiler
