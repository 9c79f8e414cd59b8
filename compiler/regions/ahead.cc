// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/ahead.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <ranges>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/leaves.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/target/instructions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::LoopKind;
using ir::Space;
using ir::VarId;

// Bytes of one cp.async.
constexpr int64_t kLeastCopied = 4, kMostCopied = 16;
// Versions of what a loop without products loads: the latency of memory is that of about so many short iterations.
constexpr uint32_t kStages = 4;
// What such a loop may take of shared memory, so that several blocks stay on a multiprocessor.
constexpr int64_t kMostBytesOfWaits = 32768;

bool Holds(const ir::Stmt& stmt, const std::function<bool(const ir::Stmt&)>& what) {
  bool holds = what(stmt);
  ir::ForEachBody(stmt.op, [&](const ir::Block& body) { ir::Walk(body, [&](const ir::Stmt& inner) { holds |= what(inner); }); });
  return holds;
}

bool Multiplies(const ir::Stmt& stmt) {
  return Holds(stmt, [](const ir::Stmt& inner) { return std::holds_alternative<ir::Gemm>(inner.op); });
}

bool Repeats(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  return std::holds_alternative<ir::While>(stmt.op) || (loop != nullptr && loop->kind != LoopKind::kParallel);
}

bool CopiesBoxes(const ir::Stmt& stmt) {
  return Holds(stmt, [](const ir::Stmt& inner) { return std::holds_alternative<ir::Copy>(inner.op); });
}

// Whether groups of warps may compute a product of the kernel: tensor copies then fill rings with its operands, and a ring takes no other copies.
bool MayHaveRings(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  bool may = false;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm == nullptr) return;
    may |= std::ranges::any_of(target::MmaInstructions(target),
                               [&](const target::MmaInstruction& row) { return row.IsByGroup() && Suits(row, module, *gemm); });
  });
  return may;
}

int64_t BytesOf(const ir::Module& module, BufferId tile) {
  const std::vector<int64_t> shape = module.ShapeOf(tile);
  return std::accumulate(shape.begin(), shape.end(), int64_t{ir::Bytes(module[tile].dtype)}, std::multiplies<>());
}

class Loader {
 public:
  Loader(ir::Module& module, ir::Kernel& kernel, const Context& context)
      : module_(module),
        kernel_(kernel),
        context_(context),
        uses_(CountAllAccesses(module, kernel.body)),
        has_rings_(MayHaveRings(module, kernel, *context.target)),
        room_(int64_t(context.target->max_shared_bytes) - BytesOfTiles(module, kernel)) {}

  void Run() {
    if (HasSignals(kernel_) || OrdersBlocks(kernel_)) return;
    Facts facts(module_);
    facts.EnterKernel(kernel_);
    Visit(kernel_.body, facts);
  }

 private:
  void Visit(ir::Block& block, Facts facts) {
    for (ir::Stmt& stmt : block) {
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (loop->kind == LoopKind::kParallel) continue;
        Facts inner = facts;
        inner.EnterLoop(*loop);
        Visit(loop->body, inner);
        const bool products = RunsAhead(kernel_, *loop) && !(has_rings_ && std::ranges::any_of(loop->body, CopiesBoxes));
        if (products || WaitsForLoads(*loop)) VisitLoop(*loop, inner, products);
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
  }

  // A serial loop of as many iterations as the device says, without products, boxes and loops.
  bool WaitsForLoads(const ir::For& loop) const {
    return loop.kind == LoopKind::kSerial && !LeavesLoop(loop.body) && std::ranges::none_of(loop.body, Repeats) &&
           std::ranges::none_of(loop.body, Multiplies) && std::ranges::none_of(loop.body, CopiesBoxes) &&
           std::ranges::all_of(loop.extents, [&](ExprId extent) { return OnlyDeviceKnows(extent); });
  }
  // Nor may the loop change it, as it might what is read in memory.
  bool OnlyDeviceKnows(ExprId extent) const {
    std::vector<Access> reads;
    CollectLoads(module_.exprs, extent, reads);
    return reads.empty() && !module_.exprs.ConstInt(extent);
  }

  // A parallel loop that loads an element in each iteration.
  struct Load {
    size_t place;        // in the loop's body
    ExprId value, load;  // what is copied, with its mask; the load in it
    std::optional<ExprId> mask;
    std::vector<int64_t> extents;  // of the tile
    bool turned = false;           // its neighbours in memory lie along the first variable
  };

  void VisitLoop(ir::For& loop, const Facts& outside, bool products) {
    std::vector<Load> loads;
    Facts facts = outside;
    const std::set<BufferId> lists = products ? FoundIn(loop) : std::set<BufferId>{};
    for (size_t i = 0; i < loop.body.size(); ++i) {
      std::optional<Load> load = LoadOf(loop, i, facts);
      if (load && (products ? !lists.contains(StoredBy(loop, i)) : IsSmall(loop, *load))) loads.push_back(*std::move(load));
      if (const auto* let = std::get_if<ir::Let>(&loop.body[i].op)) facts.Bind(*let);
    }
    const int64_t stages = products ? loop.num_stages : kStages;
    int64_t room = products ? room_ : std::min(room_, kMostBytesOfWaits);
    const int64_t before = room;
    std::vector<std::pair<size_t, ir::Block>> added;
    for (const Load& load : loads)
      if (ir::Block copy = Copied(loop.body[load.place], load, stages, room); !copy.empty()) added.emplace_back(load.place, std::move(copy));
    room_ -= before - room;
    if (added.empty()) return;
    for (auto& [place, copy] : std::views::reverse(added))
      loop.body.insert(loop.body.begin() + long(place), std::make_move_iterator(copy.begin()), std::make_move_iterator(copy.end()));
    for (const Held& held : std::exchange(held_, {})) ReadTile(loop.body, held);
    if (!products) loop.kind = LoopKind::kPipelined, loop.num_stages = uint32_t(stages);
  }

  // What the parallel loop of one store, in the loop's body, stores to.
  static BufferId StoredBy(const ir::For& loop, size_t place) {
    return std::get<ir::Store>(std::get<ir::For>(loop.body[place].op).body[0].op).buffer;
  }

  // Buffers in which the loop's loads find their places. Lists of rows stay in registers, so that pipeline loads them ahead of the rows.
  std::set<BufferId> FoundIn(const ir::For& loop) const {
    std::set<BufferId> lists;
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt)) {
        std::vector<Access> places;
        for (ExprId index : access.indices) CollectLoads(module_.exprs, index, places);
        for (const Access& place : places) lists.insert(place.buffer);
      }
    });
    return lists;
  }

  // What a fragment has of a tile.
  struct Held {
    BufferId fragment, tile;
    bool turned;
  };

  // Lets loops read the tile itself where a thread does not want its own elements of the fragment: they would come from shared memory anyway. A
  // fragment that nobody reads any more goes.
  void ReadTile(ir::Block& body, const Held& held) {
    if (uses_.at(held.fragment).writes != 1) return;
    const auto of_tile = [&](ExprId id) -> std::optional<ExprId> {
      const ir::ExprNode node = module_.exprs[id];
      if (node.op != ExprOp::kLoad || BufferId(node.ref) != held.fragment) return std::nullopt;
      std::vector<ExprId> indices(node.Args().begin(), node.Args().end());
      if (held.turned) std::swap(indices[0], indices[1]);
      const ExprId element = module_.exprs.Load(held.tile, module_[held.tile].dtype, indices);
      return node.dtype == module_[held.tile].dtype ? element : module_.exprs.Cast(node.dtype, element);
    };
    size_t reads = 0, replaced = 0;
    const auto is_written = [&](const ir::Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      const auto* store = loop != nullptr && !loop->body.empty() ? std::get_if<ir::Store>(&loop->body[0].op) : nullptr;
      return store != nullptr && store->buffer == held.fragment;
    };
    const auto written = std::ranges::find_if(body, is_written);
    for (auto stmt = written; stmt != body.end(); ++stmt) {
      auto* loop = std::get_if<ir::For>(&stmt->op);
      if (loop == nullptr || loop->kind != LoopKind::kParallel) continue;
      const std::vector<Access> accesses = AccessesOf(module_, *stmt);
      const auto is_read = [&](const Access& access) { return access.buffer == held.fragment && !access.write; };
      reads += size_t(std::ranges::count_if(accesses, is_read));
      const bool own = std::ranges::all_of(accesses, [&](const Access& a) { return !is_read(a) || IsOwnElement(module_, *loop, a.indices); });
      if (own) continue;
      replaced += size_t(std::ranges::count_if(accesses, is_read));
      ir::Walk(loop->body, [&](ir::Stmt& inner) { ir::ForEachExpr(inner.op, [&](ExprId& id) { id = module_.exprs.Rewrite(id, of_tile); }); });
    }
    if (written == body.end() || reads != replaced || replaced != size_t(uses_.at(held.fragment).reads)) return;
    body.erase(written);
    std::erase_if(body, [&](const ir::Stmt& stmt) {
      const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
      return alloc != nullptr && alloc->buffer == held.fragment;
    });
  }

  // Whether other iterations can tell what is loaded: it depends on nothing that the loop changes.
  bool IsKnownAhead(const ir::For& loop, ExprId value, ExprId load) const {
    std::map<VarId, ExprId> lets;
    const auto inlined = [&](ExprId id) {
      return module_.exprs.Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
        const ir::ExprNode& node = module_.exprs[leaf];
        const auto let = node.op == ExprOp::kVar ? lets.find(VarId(node.ref)) : lets.end();
        return let == lets.end() ? std::nullopt : std::optional(let->second);
      });
    };
    for (const ir::Stmt& stmt : loop.body)
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) lets.emplace(let->var, inlined(let->value));
    std::vector<Access> reads;
    CollectLoads(module_.exprs, inlined(value), reads);
    const AccessCounts inside = CountAllAccesses(module_, loop.body);
    return module_.exprs[load].Args().size() == 1 && std::ranges::all_of(reads, [&](const Access& read) {
             const auto found = inside.find(read.buffer);
             return found == inside.end() || found->second.writes == 0;
           });
  }

  std::optional<Load> LoadOf(const ir::For& around, size_t place, const Facts& outside) const {
    Load found{.place = place, .value = {}, .load = {}, .mask = {}, .extents = {}};
    const auto* loop = std::get_if<ir::For>(&around.body[place].op);
    if (loop == nullptr || loop->kind != LoopKind::kParallel || loop->body.size() != 1) return std::nullopt;
    const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
    if (store == nullptr || module_[store->buffer].space != Space::kFragment || !IsOwnElement(module_, *loop, store->indices)) return std::nullopt;
    for (ExprId extent : loop->extents) {
      const std::optional<int64_t> value = module_.exprs.ConstInt(extent);
      if (!value) return std::nullopt;
      found.extents.push_back(*value);
    }
    if (found.extents.size() > 2) return std::nullopt;
    found.value = store->value;
    if (const ir::ExprNode node = module_.exprs[found.value]; node.op == ExprOp::kCast) found.value = node.args[0];
    found.load = found.value;
    if (const ir::ExprNode node = module_.exprs[found.value]; node.op == ExprOp::kMasked) {
      if (!module_.exprs.IsZero(node.args[2])) return std::nullopt;
      found.mask = node.args[0], found.load = node.args[1];
    }
    const ir::ExprNode node = module_.exprs[found.load];
    if (node.op != ExprOp::kLoad) return std::nullopt;
    const BufferId root{node.ref};
    const auto uses = uses_.find(root);
    if (!IsFlat(module_[root]) || uses == uses_.end() || uses->second.writes != 0) return std::nullopt;
    if (!IsKnownAhead(around, found.value, found.load)) return std::nullopt;
    Facts facts = outside;
    facts.EnterLoop(*loop);
    const Access access{root, false, false, {node.Args().begin(), node.Args().end()}, false, {}, found.load, found.mask};
    const auto is_copied = [&](size_t variable) {
      const int64_t element = ir::Bytes(module_[root].dtype), most = std::gcd(kMostCopied / element, found.extents[variable]);
      return element * std::max<int64_t>(1, AccessWidth(module_, facts, *loop, variable, access, most, context_.pointer_alignment())) >= kLeastCopied;
    };
    found.turned = !is_copied(found.extents.size() - 1);
    if (found.turned && (found.extents.size() == 1 || !is_copied(0))) return std::nullopt;
    return found;
  }

  // Whether it pays in a loop without products: several threads want the same elements; or a thread loads one at most, and waits for it in each
  // iteration, as what iterations leave for the next ones is all that there is to do.
  bool IsSmall(const ir::For& loop, const Load& load) const {
    const int64_t elements = std::accumulate(load.extents.begin(), load.extents.end(), int64_t{1}, std::multiplies<>());
    if (elements <= int64_t{kernel_.threads} && Carries(loop)) return true;
    const BufferId tile = StoredBy(loop, load.place);
    return std::ranges::any_of(loop.body, [&](const ir::Stmt& stmt) {
      const auto* user = std::get_if<ir::For>(&stmt.op);
      if (user == nullptr || user->kind != LoopKind::kParallel) return false;
      int64_t iterations = 1;
      for (ExprId extent : user->extents) iterations *= module_.exprs.ConstInt(extent).value_or(1);
      return iterations > elements && CountAllAccesses(module_, user->body).contains(tile);
    });
  }

  // Whether an iteration reads and writes what is there before the loop.
  bool Carries(const ir::For& loop) const {
    std::set<BufferId> own;
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      if (const auto* alloc = std::get_if<ir::Alloc>(&stmt.op)) own.insert(alloc->buffer);
    });
    return std::ranges::any_of(CountAllAccesses(module_, loop.body), [&](const auto& access) {
      const auto& [buffer, count] = access;
      return module_[buffer].space != Space::kGlobal && count.reads > 0 && count.writes > 0 && !own.contains(buffer);
    });
  }

  // What stands before a parallel loop, which then reads the copy; empty where there is no room for it.
  ir::Block Copied(ir::Stmt& stmt, const Load& load, int64_t stages, int64_t& room) {
    auto& loop = std::get<ir::For>(stmt.op);
    const BufferId root{module_.exprs[load.load].ref};
    std::vector<int64_t> shape = load.extents;
    std::vector<VarId> vars = loop.vars;
    if (load.turned) std::swap(shape[0], shape[1]), std::swap(vars[0], vars[1]);
    const BufferId tile = FreshOfShape(module_, root, Space::kShared, shape, "_ahead");
    const int64_t bytes = (BytesOf(module_, tile) + kVersionAlignment - 1) / kVersionAlignment * kVersionAlignment * stages;
    if (bytes > room) return {};
    room -= bytes;
    ir::For copies{.kind = LoopKind::kParallel};
    ir::Store own{tile, {}, load.value};
    std::vector<ExprId> place;
    for (size_t d = 0; d < shape.size(); ++d) {
      const ir::DType type = module_[vars[d]].dtype;
      const VarId fresh = FreshVar(module_, ir::VarKind::kLoop, type, "e");
      place.push_back(module_.VarRef(vars[d]));
      own.value = module_.exprs.Substitute(own.value, vars[d], module_.VarRef(fresh));
      copies.vars.push_back(fresh);
      copies.extents.push_back(module_.exprs.Int(shape[d], type));
      own.indices.push_back(module_.VarRef(fresh));
    }
    copies.body.push_back({std::move(own), stmt.loc});
    const ExprId read = module_.exprs.Load(tile, module_[tile].dtype, place);
    ExprId& value = std::get<ir::Store>(loop.body[0].op).value;
    value = value == load.value ? read : module_.exprs.Cast(module_.exprs.Type(value), read);
    held_.push_back({std::get<ir::Store>(loop.body[0].op).buffer, tile, load.turned});
    kernel_.decisions.push_back({"regions", root, "a tile of it is loaded ahead", "each row has its own place", stmt.loc});
    ir::Block before;
    before.push_back({ir::Alloc{tile}, stmt.loc});
    before.push_back({std::move(copies), stmt.loc});
    return before;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const AccessCounts uses_;
  const bool has_rings_;
  std::vector<Held> held_;  // of the loop that is visited
  int64_t room_;            // bytes of shared memory that are left
};

}  // namespace

bool IsFlat(const ir::Buffer& buffer) {
  return buffer.space == Space::kGlobal && buffer.shape.size() == 1 && buffer.strides.empty() && !buffer.workspace && !buffer.may_alias &&
         (!buffer.pad_value || *buffer.pad_value == 0) && !buffer.view;
}

bool RunsAhead(const ir::Kernel& kernel, const ir::For& loop) {
  if (loop.kind != LoopKind::kPipelined || loop.num_stages < 2 || HasSignals(kernel) || OrdersBlocks(kernel) || LeavesLoop(loop.body)) return false;
  return std::ranges::any_of(loop.body, Multiplies) &&
         std::ranges::none_of(loop.body, [](const ir::Stmt& stmt) { return Repeats(stmt) && Multiplies(stmt); });
}

std::map<BufferId, int64_t> VersionsOf(const ir::Module& module, const ir::Kernel& kernel) {
  std::map<BufferId, int64_t> versions;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != LoopKind::kPipelined) return;
    for (const auto& [buffer, count] : CountAllAccesses(module, loop->body)) {
      if (count.writes == 0) continue;
      int64_t& known = versions.try_emplace(buffer, 1).first->second;
      known = std::max<int64_t>(known, loop->num_stages);
    }
  });
  return versions;
}

int64_t BytesOfTiles(const ir::Module& module, const ir::Kernel& kernel) {
  const std::map<BufferId, int64_t> versions = VersionsOf(module, kernel);
  std::set<BufferId> tiles;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    if (const auto* alloc = std::get_if<ir::Alloc>(&stmt.op); alloc != nullptr && module[alloc->buffer].space == Space::kShared)
      tiles.insert(alloc->buffer);
  });
  return std::accumulate(tiles.begin(), tiles.end(), int64_t{0}, [&](int64_t bytes, BufferId tile) {
    return bytes + BytesOf(module, tile) * (versions.contains(tile) ? versions.at(tile) : 1);
  });
}

void LoadAhead(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (context.target->Has(target::Feature::kCpAsync) && !context.options.disable_async_copy()) Loader(module, kernel, context).Run();
}

}  // namespace kiln::compiler
