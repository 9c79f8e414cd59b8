// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/rings.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/producer_slice.h"
#include "compiler/mapping/tensor_copies.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/packing.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/roles.h"
#include "compiler/rules/shared.h"
#include "ir/verify/verify.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Space;
using ir::Stmt;

constexpr uint32_t kMostConsumers = 512;  // a choice: of a larger block, each would have at most 88 registers

ir::Copy* TensorLoad(const ir::Module& module, Stmt& stmt) {
  auto* copy = std::get_if<ir::Copy>(&stmt.op);
  if (copy == nullptr || !copy->plan || copy->plan->instruction != ir::CopyInstruction::kTensor) return nullptr;
  return module[copy->dst.buffer].space == Space::kShared ? copy : nullptr;
}

// Every buffer that a statement and what is in it touch.
std::set<BufferId> Touched(const ir::Module& module, const Stmt& stmt) {
  std::set<BufferId> touched;
  const auto add = [&](const Stmt& inner) {
    for (const Access& access : AccessesOf(module, inner)) touched.insert(access.buffer);
  };
  add(stmt);
  if (const auto* loop = std::get_if<ir::For>(&stmt.op)) ir::Walk(loop->body, add);
  if (const auto* loop = std::get_if<ir::While>(&stmt.op)) ir::Walk(loop->body, add);
  if (const auto* branch = std::get_if<ir::If>(&stmt.op)) ir::Walk(branch->then_body, add), ir::Walk(branch->else_body, add);
  return touched;
}

// The tiles of one ring; members are positions in the block. `shares`: the plan and the group whose ring it takes, whose loop is over before.
struct Group {
  std::vector<size_t> copies;
  size_t first_use, last_use;
  std::optional<std::pair<size_t, size_t>> shares = {};
};
struct BlockPlan {
  Block* block;
  ir::For* loop;  // the loop around; nullptr: the block is the kernel's body
  std::vector<Group> groups;
  int64_t stages;
};

class Builder {
 public:
  Builder(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    CountUses();
    const bool all = Find(kernel_.body) && !plans_.empty() && MayHaveRoles() && IsSound();
    if (all) AddBody(), ShareRings();
    if (all && FitStages()) {
      const size_t buffers = module_.buffers.size();
      for (size_t i = 0; i < plans_.size(); ++i) Apply(i);
      Block lifted;
      DeclareTiles(kernel_.body, lifted);
      kernel_.body.insert(kernel_.body.begin(), std::make_move_iterator(lifted.begin()), std::make_move_iterator(lifted.end()));
      kernel_.producers = kProducers;
      Declare(module_, kernel_, buffers);
    } else {
      MakePlain();
    }
  }

 private:
  void CountUses() {
    uses_ = CountAllAccesses(module_, kernel_.body);
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op); reduce != nullptr && reduce->scratch) ++uses_[*reduce->scratch].reads;
      if (const auto* sum = std::get_if<ir::PairSum>(&stmt.op); sum != nullptr && sum->scratch) {
        scratch_ += module_.ShapeOf(*sum->scratch)[0] * ir::Bytes(module_[*sum->scratch].dtype);
      }
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor &&
          module_[copy->src.buffer].space == Space::kShared) {
        stored_.insert(copy->src.buffer);
      }
    });
  }

  bool MayHaveRoles() const {
    if (context_.options.disable_warp_specialization()) return false;
    if (kernel_.threads % kGroupThreads != 0 || kernel_.threads > kMostConsumers) return false;
    // As many blocks as the program asks for must still fit on a multiprocessor.
    return uint64_t(kernel_.min_blocks) * (kernel_.threads + kProducers) <= ir::kMaxResidentThreads;
  }

  // Whether threads that run nothing else can fill the rings.
  bool IsSound() const {
    const std::function<bool(const Stmt&)> loads = [&](const Stmt& stmt) { return loads_.contains(&stmt); };
    return ProducerSlice(module_, kernel_, loads).sound();
  }

  // --- what there is ---

  // Finds pipelined loops. False if some tensor load cannot be part of a ring.
  bool Find(Block& block) {
    bool all = true;
    for (Stmt& stmt : block) {
      if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && loop->kind != ir::LoopKind::kParallel) {
        if (std::ranges::any_of(loop->body, [&](Stmt& inner) { return TensorLoad(module_, inner) != nullptr; })) {
          all &= AddLoop(*loop);
        } else {
          all &= Find(loop->body);
        }
      }
      if (auto* loop = std::get_if<ir::While>(&stmt.op)) all &= Find(loop->body);
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) all = Find(branch->then_body) && Find(branch->else_body) && all;
      all &= &block == &kernel_.body || TensorLoad(module_, stmt) == nullptr;
    }
    return all;
  }

  // A tile that the kernel loads once gets a ring of one stage. The ring is filled again as soon as the persistent block's previous tile
  // has no more readers. Where no ring is possible, the load is a plain copy.
  void AddBody() {
    BlockPlan plan{&kernel_.body, nullptr, {}, 1};
    const std::vector<std::set<BufferId>> touched = TouchedIn(kernel_.body);
    for (size_t i = 0; i < kernel_.body.size(); ++i) {
      ir::Copy* copy = TensorLoad(module_, kernel_.body[i]);
      if (copy == nullptr) continue;
      loads_.insert(&kernel_.body[i]);
      if (IsSound() && AddCopy(*copy, i, touched, plan)) continue;
      loads_.erase(&kernel_.body[i]);
      MakePlain(*copy);
    }
    if (!plan.groups.empty()) plans_.push_back(std::move(plan));  // must come last: the push moves plans, and others point into them
  }

  bool AddLoop(ir::For& loop) {
    BlockPlan plan{&loop.body, &loop, {}, loop.num_stages};
    if (loop.kind != ir::LoopKind::kPipelined) return false;
    // A load under a condition or in an inner loop does not run exactly once in each iteration, as a ring needs.
    size_t direct = 0, all = 0;
    for (Stmt& stmt : loop.body) direct += TensorLoad(module_, stmt) != nullptr;
    ir::Walk(loop.body, [&](Stmt& stmt) { all += TensorLoad(module_, stmt) != nullptr; });
    if (direct != all || !AddCopies(plan)) return false;
    plans_.push_back(std::move(plan));
    return true;
  }

  bool AddCopies(BlockPlan& plan) {
    Block& block = *plan.block;
    const std::vector<std::set<BufferId>> touched = TouchedIn(block);
    for (size_t i = 0; i < block.size(); ++i) {
      const ir::Copy* copy = TensorLoad(module_, block[i]);
      if (copy == nullptr) {
        const auto* other = std::get_if<ir::Copy>(&block[i].op);
        const bool loads =
            other != nullptr && module_[other->src.buffer].space == Space::kGlobal && module_[other->dst.buffer].space == Space::kShared;
        if (loads) return false;  // another kind of load needs a pipeline of its own
        continue;
      }
      if (!AddCopy(*copy, i, touched, plan)) return false;
      loads_.insert(&block[i]);
    }
    return true;
  }

  std::vector<std::set<BufferId>> TouchedIn(const Block& block) const {
    std::vector<std::set<BufferId>> touched;
    for (const Stmt& stmt : block) touched.push_back(Touched(module_, stmt));
    return touched;
  }

  // Only this block touches the tile, only this copy fills it, and it does so before any use; nothing in the kernel writes the source.
  bool AddCopy(const ir::Copy& copy, size_t position, const std::vector<std::set<BufferId>>& touched, BlockPlan& plan) {
    const BufferId tile = copy.dst.buffer;
    if (uses_[tile].writes != 1 || uses_[copy.src.buffer].writes > 0 || stored_.contains(tile)) return false;
    size_t first = 0, last = 0;
    if (CountAllAccesses(module_, *plan.block)[tile].all() != uses_[tile].all()) return false;
    for (size_t i = 0; i < touched.size(); ++i) {
      if (i == position || !touched[i].contains(tile)) continue;
      if (i < position) return false;
      if (first == 0) first = i;
      last = i;
    }
    if (first == 0) return false;
    for (Group& group : plan.groups) {
      if (group.first_use != first) continue;
      group.copies.push_back(position);
      group.last_use = std::max(group.last_use, last);
      return true;
    }
    plan.groups.push_back({{position}, first, last});
    return true;
  }

  // Loops that follow each other and fill tiles of the same shapes take one ring: its place goes on from loop to loop, so that the next loop's first
  // tiles are filled while the last ones of this loop are still read.
  void ShareRings() {
    for (size_t i = 1; i < plans_.size(); ++i) {
      for (Group& group : plans_[i].groups) {
        if (plans_[i].loop == nullptr) continue;
        group.shares = OwnerFor(i, group);
        if (!group.shares) continue;
        BlockPlan& owner = plans_[group.shares->first];
        owner.stages = std::max(owner.stages, plans_[i].stages);
      }
    }
  }

  std::optional<std::pair<size_t, size_t>> OwnerFor(size_t plan, const Group& group) const {
    const auto taken = [&](std::pair<size_t, size_t> owner) {
      return std::ranges::any_of(plans_[plan].groups, [&](const Group& other) { return other.shares == owner; });
    };
    for (size_t i = 0; i < plan; ++i) {
      for (size_t j = 0; plans_[i].loop != nullptr && j < plans_[i].groups.size(); ++j) {
        const Group& other = plans_[i].groups[j];
        if (!other.shares && !taken({i, j}) && SameTiles(plans_[plan], group, plans_[i], other)) return std::pair(i, j);
      }
    }
    return {};
  }

  bool SameTiles(const BlockPlan& plan, const Group& group, const BlockPlan& other_plan, const Group& other) const {
    return std::ranges::equal(group.copies, other.copies, [&](size_t copy, size_t other_copy) {
      const ir::Buffer &tile = module_[TileOf(plan, copy)], &other_tile = module_[TileOf(other_plan, other_copy)];
      return tile.dtype == other_tile.dtype && tile.shape == other_tile.shape && tile.layout == other_tile.layout;
    });
  }

  static BufferId TileOf(const BlockPlan& plan, size_t copy) { return std::get<ir::Copy>((*plan.block)[copy].op).dst.buffer; }

  bool OwnsRings(const BlockPlan& plan) const {
    return std::ranges::any_of(plan.groups, [](const Group& group) { return !group.shares; });
  }

  // Fewer stages where shared memory would not hold them all.
  bool FitStages() {
    int64_t fixed = scratch_;
    for (const BlockPlan& plan : plans_)
      fixed += std::ranges::count_if(plan.groups, [](const Group& group) { return !group.shares; }) * kRingBarrierRoom;
    const Lifetimes lives = LifetimesOf(module_, kernel_, {.repeats = true});
    const auto total = [&] {
      std::map<BufferId, Held> held;  // a tensor store reads its tile until a time that is not known
      for (const BufferId tile : stored_) held[tile] = {1, lives.throughout};
      for (const BlockPlan& plan : plans_)
        for (const Group& group : plan.groups)
          for (size_t i : group.copies) held[TileOf(plan, i)] = {group.shares ? 0 : plan.stages, lives.throughout};
      return fixed + SharedBytesOf(module_, lives, held);
    };
    while (total() > int64_t(context_.target->max_shared_bytes)) {
      BlockPlan& deepest = *std::ranges::max_element(plans_, {}, [&](const BlockPlan& plan) { return OwnsRings(plan) ? plan.stages : 0; });
      if (--deepest.stages < 2) return false;
    }
    return true;
  }

  // --- the new program ---

  ir::Ring MakeRing(const BlockPlan& plan, std::string name) {
    const auto add = [&](Space space, ir::DType dtype, int64_t extent, std::string_view suffix) {
      ir::Buffer buffer{space, dtype, {module_.exprs.Int(extent)}};
      if (space == Space::kBarrier) buffer.layout = ir::Layout::Strided(std::array{extent}, std::array<int64_t, 1>{1});
      return FreshBuffer(module_, std::move(buffer), name + std::string(suffix));
    };
    return {add(Space::kBarrier, ir::DType::kI64, 2 * plan.stages, "_ring"), add(Space::kLocal, ir::DType::kI32, 2, "_at")};
  }

  void Apply(size_t number) {
    BlockPlan& plan = plans_[number];
    Block& block = *plan.block;
    const size_t count = block.size();
    std::vector<Block> before(count), after(count);
    std::set<size_t> moved;
    for (size_t g = 0; g < plan.groups.size(); ++g) {
      const Group& group = plan.groups[g];
      if (group.shares) TakeTiles(block, group);
      const BufferId lead = TileOf(plan, group.copies.front());
      const ir::Ring ring = group.shares ? rings_.at(*group.shares) : MakeRing(plan, module_[lead].name);
      rings_.emplace(std::pair(number, g), ring);
      const ir::ExprId stage = module_.exprs.Load(ring.position, ir::DType::kI32, std::vector{module_.exprs.Int(0)});
      const ir::SourceLoc loc = block[group.copies.back()].loc;
      Block fill;
      int64_t bytes = 0;
      for (size_t i : group.copies) {
        auto& copy = std::get<ir::Copy>(block[i].op);
        const BufferId tile = copy.dst.buffer;
        copy.plan->ring = ring;
        int64_t size = ir::Bytes(module_[tile].dtype);
        for (int64_t extent : copy.dst.extents) size *= extent;
        bytes += size;
        UseVersion(module_, block, tile, stage);
        if (!group.shares) AddVersions(module_, tile, plan.stages), tiles_[{number, g}].push_back(tile);
        fill.push_back(block[i]);
        moved.insert(i);
      }
      Block& start = before[group.copies.back()];  // behind every let that one of them needs
      start.push_back({ir::RingStep{ir::RingAction::kAcquire, ring, bytes}, loc});
      std::ranges::move(fill, std::back_inserter(start));
      before[group.first_use].push_back({ir::RingStep{ir::RingAction::kWait, ring}, block[group.first_use].loc});
      after[group.last_use].push_back({ir::RingStep{ir::RingAction::kRelease, ring}, block[group.last_use].loc});
      after[group.last_use].push_back({ir::RingStep{ir::RingAction::kAdvance, ring}, block[group.last_use].loc});
    }
    Block body;
    for (size_t i = 0; i < count; ++i) {
      std::ranges::move(before[i], std::back_inserter(body));
      if (!moved.contains(i)) body.push_back(std::move(block[i]));
      std::ranges::move(after[i], std::back_inserter(body));
    }
    block = std::move(body);
    if (plan.loop == nullptr) return;
    plan.loop->kind = ir::LoopKind::kSerial;
    plan.loop->num_stages = 0;
  }

  // The tiles of the ring that the group shares instead of its own.
  void TakeTiles(Block& block, const Group& group) {
    const std::vector<BufferId>& tiles = tiles_.at(*group.shares);
    for (size_t i = 0; i < tiles.size(); ++i) {
      const BufferId own = std::get<ir::Copy>(block[group.copies[i]].op).dst.buffer;
      ReplaceBuffer(module_, block, own, tiles[i]);
      replaced_.insert(own), shared_.insert(tiles[i]);
    }
  }

  // A tile whose place another takes is declared no more. One that a loop declares, and later loops use, goes to `lifted`.
  void DeclareTiles(Block& block, Block& lifted) {
    std::erase_if(block, [&](Stmt& stmt) {
      const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
      if (alloc == nullptr) return false;
      const bool leaves = shared_.contains(alloc->buffer) && &block != &kernel_.body;
      if (leaves) lifted.push_back(stmt);
      return leaves || replaced_.contains(alloc->buffer);
    });
    for (Stmt& stmt : block) ir::ForEachBody(stmt.op, [&](Block& body) { DeclareTiles(body, lifted); });
  }

  void MakePlain() {
    ir::Walk(kernel_.body, [&](Stmt& stmt) {
      if (ir::Copy* copy = TensorLoad(module_, stmt)) MakePlain(*copy);
    });
  }
  void MakePlain(ir::Copy& copy) { copy.plan->instruction = PlainInstruction(module_, copy, copy.plan->vector, context_); }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  AccessCounts uses_;
  int64_t scratch_ = 0;        // bytes through which pairs of blocks exchange sums
  std::set<BufferId> stored_;  // tiles that tensor stores read, for an unknown time
  std::vector<BlockPlan> plans_;
  std::map<std::pair<size_t, size_t>, ir::Ring> rings_;               // by plan and group
  std::map<std::pair<size_t, size_t>, std::vector<BufferId>> tiles_;  // of rings, by the plan and the group that own them
  std::set<BufferId> replaced_;                                       // tiles whose place those of a shared ring have taken
  std::set<BufferId> shared_;                                         // those
  std::set<const Stmt*> loads_;
};

}  // namespace

void Rings(ir::Module& module, ir::Kernel& kernel, const Context& context) { Builder(module, kernel, context).Run(); }

}  // namespace kiln::compiler
