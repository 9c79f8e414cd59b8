// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/prefetch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::Space;
using ir::Stmt;
using ir::VarId;

// Choices: the body is repeated once for each iteration ahead, and a loop of products has few of a thread's registers to spare.
constexpr int64_t kMostAhead = 4;
constexpr int64_t kMostWords = 16;

// A load of a parallel loop, and the loop's variables that its indices use.
struct Load {
  size_t position;  // of the parallel loop in the body
  BufferId source;
  ExprId value;
  std::vector<VarId> variables;
  std::vector<int64_t> shape;
  ir::Layout layout;
};

// One loop around a ring.
class Loads {
 public:
  Loads(ir::Module& module, ir::Kernel& kernel, const Context& context, ir::For& loop, const std::set<BufferId>& written)
      : module_(module), kernel_(kernel), context_(context), loop_(loop), written_(written) {}

  // Returns the statements that run before the loop.
  Block Run() {
    Block before, body;
    TakeAllocs(loop_.body, before);
    ir::Walk(loop_.body, [&](const Stmt& stmt) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) inside_.insert(let->var);
      if (const auto* inner = std::get_if<ir::For>(&stmt.op)) inside_.insert(inner->vars.begin(), inner->vars.end());
    });
    for (size_t i = 0; i < loop_.body.size(); ++i) Find(i);
    if (loads_.empty()) return before;
    const int64_t ahead = Ahead();
    std::set<BufferId> sources;
    for (const Load& load : loads_) sources.insert(load.source);
    for (const BufferId source : sources) {
      const std::string steps = ahead == 1 ? "one step" : fmt::format("{} steps", ahead);
      kernel_.decisions.push_back({"prefetch", source, "loaded into registers " + steps + " ahead", "products do not wait for memory"});
    }
    for (int64_t turn = 0; turn < ahead; ++turn) Repeat(turn, ahead, before, body);
    loop_.body = std::move(body);
    loop_.extents[0] = module_.exprs.Make(ir::ExprOp::kFloorDiv, {loop_.extents[0], Int(ahead)});
    return before;
  }

 private:
  void Find(size_t position) {
    const Stmt& stmt = loop_.body[position];
    const auto* inner = std::get_if<ir::For>(&stmt.op);
    if (inner == nullptr || inner->kind != ir::LoopKind::kParallel || !inner->layout) return;
    for (const Access& access : AccessesOf(module_, stmt)) {
      // What has a mask is read under it, where the mask's values are there.
      if (access.write || access.tile || access.mask || written_.contains(access.buffer)) continue;
      const ir::Buffer& buffer = module_[access.buffer];
      if (buffer.space != Space::kGlobal || ir::Bits(buffer.dtype) < 8) continue;
      std::optional<std::vector<VarId>> variables = VariablesOf(*inner, access);
      if (!variables) continue;
      Load load{position, access.buffer, access.load, *std::move(variables), {}, {}};
      if (Place(*inner, load)) loads_.push_back(std::move(load));
    }
  }

  // The variables of `loop` that the indices use; nullopt where the indices depend on values that only exist within the iteration.
  std::optional<std::vector<VarId>> VariablesOf(const ir::For& loop, const Access& access) const {
    std::set<VarId> used;
    std::set<ExprId> seen;
    bool moves = false, known = true;
    const auto visit = [&](auto& self, ExprId id) -> void {
      if (!seen.insert(id).second) return;
      const ir::ExprNode& node = module_.exprs[id];
      known &= node.op != ir::ExprOp::kLoad;
      if (node.op == ir::ExprOp::kVar) {
        const VarId var{node.ref};
        const bool own = std::ranges::find(loop.vars, var) != loop.vars.end();
        moves |= var == loop_.vars[0];
        if (own) used.insert(var);
        known &= own || !inside_.contains(var);
      }
      for (ExprId arg : node.Args()) self(self, arg);
    };
    for (ExprId index : access.indices) visit(visit, index);
    if (!moves || !known) return std::nullopt;
    std::vector<VarId> variables;
    std::ranges::copy_if(loop.vars, std::back_inserter(variables), [&](VarId var) { return used.contains(var); });
    return variables;
  }

  // Each thread holds the values that its own iterations read. False if those are too many for its registers.
  bool Place(const ir::For& loop, Load& load) const {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    Projection projection;
    for (VarId var : load.variables) {
      const auto at = std::ranges::find(loop.vars, var) - loop.vars.begin();
      projection.var.push_back(int(at));
      projection.offset.push_back(0);
      load.shape.push_back(extents[size_t(at)]);
    }
    if (load.variables.empty()) {
      load.shape.push_back(1);
      load.layout = ir::Layout::Replicated(load.shape, kernel_.threads);
      return true;
    }
    std::optional<ir::Layout> layout = FragmentFromLoop(*loop.layout, projection);
    if (!layout) return false;
    load.layout = layout->Normalized();
    return Words(load) <= kMostWords;
  }

  static int64_t Words(const Load& load) { return load.layout.Registers(); }

  // How many iterations to load ahead: enough to cover a load's latency, within the registers and a divisor of the iterations.
  int64_t Ahead() const {
    int64_t words = 0;
    const double cycles = Cycles();
    const int64_t most = cycles > 0 ? std::clamp(int64_t(context_.target->costs.latency / cycles), int64_t{1}, kMostAhead) : kMostAhead;
    for (const Load& load : loads_) words += Words(load);
    const std::optional<int64_t> extent = module_.exprs.ConstInt(loop_.extents[0]);
    for (int64_t ahead = most; ahead > 1; --ahead)
      if (extent && *extent % ahead == 0 && words * ahead <= kMostWords) return ahead;
    return 1;
  }

  // Cycles of the products of one iteration.
  double Cycles() const {
    double cycles = 0;
    for (const Stmt& stmt : loop_.body) {
      if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) cycles += CyclesOf(*gemm, *context_.target);
    }
    return cycles;
  }

  ExprId Int(int64_t value) { return module_.exprs.Int(value, module_.exprs.Type(loop_.extents[0])); }

  // Appends repetition `turn` of `ahead`: the body, with a reload of each value after the loop that uses it.
  void Repeat(int64_t turn, int64_t ahead, Block& before, Block& body) {
    const ExprId k = module_.exprs.Add(module_.exprs.Mul(module_.VarRef(loop_.vars[0]), Int(ahead)), Int(turn));
    const ExprId last = module_.exprs.Sub(loop_.extents[0], Int(1));
    const ExprId next = module_.exprs.Make(ir::ExprOp::kMin, {module_.exprs.Add(k, Int(ahead)), last});
    for (size_t i = 0; i < loop_.body.size(); ++i) {
      std::map<ExprId, ExprId> values;
      Block refills;
      for (const Load& load : loads_) {
        if (load.position != i || values.contains(load.value)) continue;
        const BufferId held = AddFragment(load, turn);
        before.push_back(Fill(held, load, Int(turn)));
        refills.push_back(Fill(held, load, next));
        std::vector<ExprId> indices;
        for (VarId var : load.variables) indices.push_back(module_.VarRef(var));
        if (indices.empty()) indices.push_back(module_.exprs.Int(0));
        values.emplace(load.value, module_.exprs.Load(held, module_[held].dtype, indices));
      }
      Block copy{loop_.body[i]};
      Replace(copy, values);
      Substitute(module_, copy, loop_.vars[0], k);
      body.push_back(std::move(copy[0]));
      std::ranges::move(refills, std::back_inserter(body));
    }
    if (turn + 1 < ahead) Rename(loop_.body);
  }

  void Replace(Block& block, const std::map<ExprId, ExprId>& values) {
    const auto rewrite = [&](ExprId& id) {
      id = module_.exprs.Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
        const auto it = values.find(leaf);
        return it == values.end() ? std::nullopt : std::optional(it->second);
      });
    };
    ir::Walk(block, [&](Stmt& stmt) { ir::ForEachExpr(stmt.op, rewrite); });
  }

  // Gives the body variables of its own, so that the next repetition can have others.
  void Rename(Block& block) {
    ir::Walk(block, [&](Stmt& stmt) {
      if (auto* let = std::get_if<ir::Let>(&stmt.op)) Rename(let->var);
      if (auto* inner = std::get_if<ir::For>(&stmt.op))
        for (VarId& var : inner->vars) Rename(var);
    });
  }

  void Rename(VarId& var) {
    const VarId old = var;
    var = module_.AddVar(ir::Var(module_[old]));
    Substitute(module_, loop_.body, old, module_.VarRef(var));
    for (Load& load : loads_) {
      load.value = module_.exprs.Substitute(load.value, old, module_.VarRef(var));
      std::ranges::replace(load.variables, old, var);
    }
  }

  BufferId AddFragment(const Load& load, int64_t turn) {
    const BufferId ahead = FreshOfShape(module_, load.source, Space::kFragment, load.shape, "_ahead" + std::to_string(turn) + "_");
    module_[ahead].layout = load.layout;
    return ahead;
  }

  // Loads the values that `iteration` uses.
  Stmt Fill(BufferId held, const Load& load, ExprId iteration) {
    ElementLoop element = MakeElementLoop(module_, load.shape, "p");
    ExprId value = module_.exprs.Substitute(load.value, loop_.vars[0], iteration);
    for (size_t v = 0; v < load.variables.size(); ++v) {
      value = module_.exprs.Substitute(value, load.variables[v], module_.exprs.Cast(module_[load.variables[v]].dtype, element.indices[v]));
    }
    element.loop.layout = load.layout;
    element.loop.body.push_back({ir::Store{held, element.indices, value}, {}});
    return {std::move(element.loop), {}};
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  ir::For& loop_;
  const std::set<BufferId>& written_;
  std::set<VarId> inside_;  // bound in the body
  std::vector<Load> loads_;
};

bool UsesRing(const ir::For& loop) {
  return std::ranges::any_of(loop.body, [](const Stmt& stmt) { return std::holds_alternative<ir::RingStep>(stmt.op); });
}

void Visit(ir::Module& module, ir::Kernel& kernel, const Context& context, Block& block, const std::set<BufferId>& written) {
  Block result;
  for (Stmt& stmt : block) {
    if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Visit(module, kernel, context, repeat->body, written);
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Visit(module, kernel, context, branch->then_body, written);
      Visit(module, kernel, context, branch->else_body, written);
    }
    if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind != ir::LoopKind::kParallel) {
      Visit(module, kernel, context, loop->body, written);
      if (UsesRing(*loop)) std::ranges::move(Loads(module, kernel, context, *loop, written).Run(), std::back_inserter(result));
    }
    result.push_back(std::move(stmt));
  }
  block = std::move(result);
}

}  // namespace

void Prefetch(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (kernel.producers == 0) return;
  std::set<BufferId> written;
  ir::Walk(kernel.body, [&](const Stmt& stmt) {
    for (const Access& access : AccessesOf(module, stmt))
      if (access.write) written.insert(access.buffer);
  });
  const size_t buffers = module.buffers.size();
  Visit(module, kernel, context, kernel.body, written);
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
