// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/parts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/repeat.h"
#include "compiler/rewrite/versions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Space;
using ir::Stmt;

bool Uses(const ir::Module& module, const Stmt& stmt, BufferId id) { return CountAccesses(module, stmt, id) > 0; }

bool Writes(const ir::Module& module, const Stmt& stmt, BufferId id) {
  bool writes = false;
  ir::WalkWithin(stmt, [&](const Stmt& inner) {
    for (const Access& access : AccessesOf(module, inner)) writes |= access.write && access.buffer == id;
  });
  return writes;
}

class Writer {
 public:
  Writer(ir::Module& module, ir::Kernel& kernel, const Parts& parts) : module_(module), kernel_(kernel), parts_(parts) {}

  void Run(size_t at) {
    ir::For loop = std::move(std::get<ir::For>(kernel_.body[at].op));
    loc_ = kernel_.body[at].loc;
    loop.kind = ir::LoopKind::kSerial, loop.num_stages = 0;
    Block behind(std::make_move_iterator(kernel_.body.begin() + ptrdiff_t(at) + 1), std::make_move_iterator(kernel_.body.end()));
    kernel_.body.resize(at);
    std::array<Block, 3> starts = TakeStarts(loop.body);
    iteration_ = module_.VarRef(loop.vars[0]);
    if (!ir::LoadsOf(module_.exprs, loop.extents[0]).empty()) {
      const ir::VarId count = FreshVar(module_, ir::VarKind::kLet, module_.exprs.Type(loop.extents[0]), "count");
      kernel_.body.push_back({ir::Let{count, loop.extents[0]}, loc_});
      loop.extents[0] = module_.VarRef(count);
    }
    AddBarriers(loop.body);
    std::array<Block, 3> ends = Ends(std::move(behind));
    kernel_.threads = parts_.threads[kFilling].end;
    // Those with the fewest registers come last: across their code no values live that others need.
    for (const Part part : {kFirst, kLast, kFilling}) {
      ir::For own = loop;
      own.body = BodyOf(part, loop.body);
      Block block = std::move(starts[part]);
      block.push_back({std::move(own), loc_});
      std::ranges::move(ends[part], std::back_inserter(block));
      Add(part, Repeated(module_, block));
    }
    AddDimensions();
  }

 private:
  // Barriers, of which iteration after iteration uses the next.
  struct Barriers {
    BufferId buffer{};
    int64_t count = 1;
  };
  // The threads that fill or compute something arrive at `ready`, those that need it at `done`.
  struct Pair {
    Barriers ready, done;
  };

  Barriers Made(int64_t count, uint32_t arrivals, std::string_view name) {
    ir::Buffer buffer{Space::kBarrier, ir::DType::kI64, {module_.exprs.Int(count)}};
    buffer.arrivals.assign(size_t(count), arrivals);
    return {FreshBuffer(module_, std::move(buffer), name), count};
  }

  void AddBarriers(const Block& body) {
    for (const BufferId tile : parts_.tiles) {
      uint32_t users = 0;
      for (const Part part : {kFirst, kLast})
        if (std::ranges::any_of(parts_.statements[part], [&](size_t i) { return Uses(module_, body[i], tile); }))
          users += parts_.threads[part].Count();
      const std::string name = module_[tile].name;
      tiles_[tile] = {Made(parts_.stages, parts_.threads[kFilling].Count(), name + "_full"), Made(parts_.stages, users, name + "_free")};
    }
    for (const BufferId id : parts_.crossing) {
      const std::string name = module_[id].name;
      crossing_[id] = {Made(parts_.versions, parts_.threads[kFirst].Count(), name + "_ready"),
                       Made(parts_.versions, parts_.threads[kLast].Count(), name + "_taken")};
      if (module_[id].space == Space::kFragment) passed_[id] = FreshLike(module_, id, Space::kShared, "_passed");
    }
  }

  // Takes the statements out of the kernel that touch fragments of the loop's, in order.
  std::array<Block, 3> TakeStarts(const Block& body) {
    std::array<Block, 3> starts;
    Block rest;
    for (Stmt& stmt : kernel_.body) {
      std::optional<Part> owner;
      ir::WalkWithin(stmt, [&](const Stmt& inner) {
        for (const Access& access : AccessesOf(module_, inner))
          if (const auto part = OwnerOf(module_, body, parts_, access.buffer)) owner = part;
      });
      (owner ? starts[*owner] : rest).push_back(std::move(stmt));
    }
    kernel_.body = std::move(rest);
    return starts;
  }

  // What each part does behind its loop: the first one leaves its fragments in shared memory, where the last one uses them, and says when.
  std::array<Block, 3> Ends(Block behind) {
    std::array<Block, 3> ends;
    if (!parts_.left.empty() || parts_.awaited) {
      const Barriers left = Made(1, parts_.threads[kFirst].Count(), "left");
      for (const BufferId id : parts_.left) {
        const BufferId copy = FreshLike(module_, id, Space::kShared, "_left");
        ends[kFirst].push_back(CopyOf(id, copy));
        ReplaceBuffer(module_, behind, id, copy);
      }
      ends[kFirst].push_back({ir::Arrive{left.buffer, {module_.exprs.Int(0)}}, loc_});
      ends[kLast].push_back({ir::Await{left.buffer, {module_.exprs.Int(0)}, module_.exprs.Int(0)}, loc_});
    }
    std::ranges::move(behind, std::back_inserter(ends[kLast]));
    return ends;
  }

  Stmt CopyOf(BufferId from, BufferId to) {
    const auto whole = [&](BufferId id) {
      ir::Region region{id, {}, module_.ShapeOf(id)};
      region.offsets.assign(region.extents.size(), module_.exprs.Int(0));
      return region;
    };
    return {ir::Copy{whole(from), whole(to)}, loc_};
  }

  // --- the body of a part's loop ---

  Block BodyOf(Part part, const Block& body) {
    Block own;
    for (const size_t i : parts_.statements[part]) own.push_back(body[i]);
    std::vector<Block> before(own.size()), after(own.size());
    if (part == kFilling) SignalCopies(own);
    for (const auto& [tile, pair] : tiles_) {
      const auto [first, last] = SpanOf(own, [&](const Stmt& stmt) { return Uses(module_, stmt, tile); });
      if (first == own.size()) continue;
      part == kFilling ? Fill(pair, before[first], after[last]) : Use(pair, before[first], after[last]);
    }
    if (part == kLast) PlaceUse(own, before, after);
    if (part == kFirst) PlacePassing(own, before, after);
    Block result;
    for (size_t i = 0; i < own.size(); ++i) {
      std::ranges::move(before[i], std::back_inserter(result));
      result.push_back(std::move(own[i]));
      std::ranges::move(after[i], std::back_inserter(result));
    }
    if (part == kLast)
      for (const auto& [fragment, copy] : passed_) ReplaceBuffer(module_, result, fragment, copy);
    for (const auto& [tile, pair] : tiles_) UseVersion(module_, result, tile, PlaceIn(pair.ready));
    if (parts_.versions > 1)
      for (const auto& [id, pair] : crossing_) UseVersion(module_, result, InShared(id), PlaceIn(pair.ready));
    return result;
  }

  // A tensor copy says itself when its elements are there.
  void SignalCopies(Block& block) {
    for (Stmt& stmt : block) {
      auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy == nullptr) continue;
      const Barriers& ready = tiles_.at(copy->dst.buffer).ready;
      copy->signals = ir::Element{ready.buffer, {PlaceIn(ready)}};
    }
  }

  // Those that wait until the place is free, and say that it is full.
  void Fill(const Pair& pair, Block& before, Block& after) {
    before.push_back(Await(pair.done, /*turn_before=*/true));
    after.push_back(Arrive(pair.ready));
  }
  void Use(const Pair& pair, Block& before, Block& after) {
    before.push_back(Await(pair.ready, /*turn_before=*/false));
    after.push_back(Arrive(pair.done));
  }

  void PlaceUse(const Block& own, std::vector<Block>& before, std::vector<Block>& after) {
    for (const auto& [id, pair] : crossing_) {
      const auto [first, last] = SpanOf(own, [&](const Stmt& stmt) { return Uses(module_, stmt, id); });
      Use(pair, before[first], after[last]);
    }
  }

  // What crosses is handed over as soon as it has its last value; a fragment is copied for that.
  void PlacePassing(const Block& own, std::vector<Block>& before, std::vector<Block>& after) {
    for (const auto& [id, pair] : crossing_) {
      const auto [first, last] = SpanOf(own, [&](const Stmt& stmt) { return Writes(module_, stmt, id); });
      const auto copy = passed_.find(id);
      Block passing;
      Fill(pair, copy == passed_.end() ? before[first] : passing, after[last]);
      if (copy == passed_.end()) continue;
      passing.push_back(CopyOf(id, copy->second));
      after[last].insert(after[last].begin(), passing.begin(), passing.end());
    }
  }

  // The first and the last statement of a kind; the number of all if there is none.
  static std::pair<size_t, size_t> SpanOf(const Block& block, const auto& is) {
    size_t first = block.size(), last = block.size();
    for (size_t i = 0; i < block.size(); ++i)
      if (is(block[i])) first = std::min(first, i), last = i;
    return {first, last};
  }

  // The program's tile that crosses, or the copy of a fragment.
  BufferId InShared(BufferId crossing) const {
    const auto copy = passed_.find(crossing);
    return copy == passed_.end() ? crossing : copy->second;
  }

  // --- signals ---

  ExprId By(ExprOp op, ExprId value, int64_t by) { return module_.exprs.Make(op, {value, module_.exprs.Int(by, module_.exprs.Type(value))}); }
  ExprId PlaceIn(const Barriers& barriers) {
    if (barriers.count == 1) return module_.exprs.Int(0);
    return module_.exprs.Cast(ir::DType::kI32, By(ExprOp::kFloorMod, iteration_, barriers.count));
  }
  Stmt Arrive(const Barriers& barriers) { return {ir::Arrive{barriers.buffer, {PlaceIn(barriers)}}, loc_}; }
  // For the turn of this iteration, or for the one before at this place.
  Stmt Await(const Barriers& barriers, bool turn_before) {
    ExprId turn = By(ExprOp::kFloorDiv, iteration_, barriers.count);
    if (turn_before) turn = module_.exprs.Add(turn, module_.exprs.Int(1, module_.exprs.Type(turn)));
    return {ir::Await{barriers.buffer, {PlaceIn(barriers)}, module_.exprs.Cast(ir::DType::kI32, By(ExprOp::kFloorMod, turn, 2))}, loc_};
  }

  // --- the kernel ---

  // The part's statements, for its threads alone.
  void Add(Part part, Block block) {
    const ir::ThreadRange& threads = parts_.threads[part];
    block.insert(block.begin(), {ir::Registers{uint32_t(parts_.registers[part]), parts_.registers[part] > parts_.at_start}, loc_});
    const ExprId number = module_.VarRef(Thread());
    const ExprId from = module_.exprs.Make(ExprOp::kGe, {number, module_.exprs.Int(threads.begin, module_.exprs.Type(number))});
    const ExprId until = module_.exprs.Make(ExprOp::kLt, {number, module_.exprs.Int(threads.end, module_.exprs.Type(number))});
    kernel_.body.push_back({ir::If{module_.exprs.Make(ExprOp::kAnd, {from, until}), std::move(block), {}, threads}, loc_});
  }

  ir::VarId Thread() {
    if (!thread_) thread_ = FreshVar(module_, ir::VarKind::kThread, ir::DType::kI32, "thread");
    return *thread_;
  }

  // Last, for until then the shapes are those that statements of one iteration see.
  void AddDimensions() {
    const auto add = [&](BufferId id, int64_t count) { module_[id].shape.insert(module_[id].shape.begin(), module_.exprs.Int(count)); };
    for (const BufferId tile : parts_.tiles) add(tile, parts_.stages);
    if (parts_.versions > 1)
      for (const BufferId id : parts_.crossing) add(InShared(id), parts_.versions);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Parts& parts_;
  ir::SourceLoc loc_;
  ExprId iteration_{};
  std::map<BufferId, Pair> tiles_;
  std::map<BufferId, Pair> crossing_;
  std::map<BufferId, BufferId> passed_;  // copies of fragments that cross
  std::optional<ir::VarId> thread_;
};

}  // namespace

std::optional<Part> OwnerOf(const ir::Module& module, const Block& body, const Parts& parts, BufferId id) {
  if (module[id].space != Space::kFragment) return std::nullopt;
  for (const Part part : {kFirst, kLast})
    if (std::ranges::any_of(parts.statements[part], [&](size_t i) { return Uses(module, body[i], id); })) return part;
  return std::nullopt;
}

void RunApart(ir::Module& module, ir::Kernel& kernel, const Parts& parts, size_t at) {
  const size_t buffers = module.buffers.size();
  Writer(module, kernel, parts).Run(at);
  Declare(module, kernel, buffers);
}

}  // namespace kiln::compiler
