// SPDX-License-Identifier: Apache-2.0
//
// The loops that copy, as a timeline. What takes how long is not known to the compiler, so time is the order of the computing threads: each
// statement of the loop's body has one slot in each iteration. A statement that waits for nothing fills its slot. A copy or a product that
// runs beside others goes from where it may start to the wait that it must have ended by:
//
//   cp.async    from its slot to the first AsyncWait that leaves no more groups behind it than were closed since
//   ring        from the release of its stage (of the first steps: the loop's start) to the wait for it
//   in flight   from its slot to the AsyncWait for its sum, or the next product that adds to it
#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "clients/cli/page/facts.h"
#include "clients/cli/page/statements.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::cli {
namespace {

using Named = std::set<std::pair<std::string, uint32_t>>;

constexpr int64_t kMoreSteps = 3;  // beyond those until each stage has been used once
constexpr int64_t kMostSteps = 12;

struct Bar {
  int64_t from = 0, to = 0;  // slots; 0: the loop's first, negative: before the loop
  int64_t step = 0;
  size_t statement = 0;
  std::optional<int64_t> stage;
  bool beside = false;  // runs beside other statements
};

struct Row {
  std::string text, kind, role;
  uint32_t line = 0;
  bool guarded = false;  // in a branch: some iterations, or some threads, leave it out
};

// Buffers that cp.async fills, and for which lines. The dump's text does not say which copies do; the report does.
Named AsyncCopies(const v1::Report& report) {
  Named found;
  for (const v1::Decision& decision : report.decisions()) {
    const std::string& subject = decision.subject();
    if (decision.reason() == "cp.async") found.emplace(subject.substr(0, subject.find('[')), decision.line());
  }
  return found;
}

class Timeline {
 public:
  Timeline(Decided& decided, const v1::Report& report, const ir::Kernel& kernel, const ir::Stmt& loop)
      : decided_(decided),
        report_(report),
        module_(decided.module),
        asynchronous_(AsyncCopies(report)),
        kernel_(kernel),
        stmt_(loop),
        loop_(std::get<ir::For>(loop.op)) {}

  Json Run(const ir::Block& before) {
    computing_ = fmt::format("threads 0 to {}", kernel_.threads - 1);
    filling_ = kernel_.producers == 0 ? "" : fmt::format("threads {} to {}", kernel_.threads, kernel_.threads + kernel_.producers - 1);
    Flatten(loop_.body, computing_, false);
    width_ = std::ranges::count_if(order_, [](const ir::Stmt* stmt) { return TakesSlot(*stmt); });
    const std::optional<int64_t> trips = module_.exprs.ConstInt(loop_.extents[0]);
    steps_ = std::min({trips.value_or(kMostSteps), Stages() + kMoreSteps, kMostSteps});
    Before(before);
    for (step_ = 0; step_ < steps_; ++step_) {
      slot_ = step_ * width_;
      for (size_t i = 0; i < order_.size(); ++i) {
        Do(*order_[i], i);
        slot_ += TakesSlot(*order_[i]);
      }
    }
    for (const auto& group : open_groups_) Close(group, steps_ * width_);
    for (const auto& [sum, bar] : products_) bars_[bar].to = steps_ * width_;
    return ToJson(trips);
  }

 private:
  // What other threads do does not: where it stands among these is not known.
  static bool TakesSlot(const ir::Stmt& stmt) {
    const auto* step = std::get_if<ir::RingStep>(&stmt.op);
    if (step != nullptr && step->action == ir::RingAction::kAcquire) return false;
    return RingOf(stmt) == nullptr && !std::holds_alternative<ir::AsyncCommit>(stmt.op);
  }

  // Statements that the block does one after the other, branches and inner loops opened.
  void Flatten(const ir::Block& block, const std::string& role, bool guarded) {
    for (const ir::Stmt& stmt : block) {
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        Flatten(branch->then_body, Of(branch->then_threads, role), guarded || !branch->then_threads);
        Flatten(branch->else_body, Of(branch->else_threads, role), guarded || !branch->else_threads);
        continue;
      }
      const auto* inner = std::get_if<ir::For>(&stmt.op);
      if (inner != nullptr && !IsParallel(stmt)) {
        Flatten(inner->body, role, guarded);
        continue;
      }
      if (KindOf(module_, stmt) == "control") continue;
      const auto* ring = std::get_if<ir::RingStep>(&stmt.op);
      if (ring != nullptr && ring->action == ir::RingAction::kAdvance) continue;
      order_.push_back(&stmt);
      const bool fills = ring != nullptr ? ring->action == ir::RingAction::kAcquire : RingOf(stmt) != nullptr;
      rows_.push_back({.text = Line(module_, stmt),
                       .kind = std::string(KindOf(module_, stmt)),
                       .role = fills && !filling_.empty() ? filling_ : role,
                       .line = decided_.LineOf(stmt),
                       .guarded = guarded});
    }
  }

  static std::string Of(const std::optional<ir::ThreadRange>& range, const std::string& role) {
    return range ? fmt::format("threads {} to {}", range->begin, range->end - 1) : role;
  }

  static const ir::Ring* RingOf(const ir::Stmt& stmt) {
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    return copy != nullptr && copy->plan && copy->plan->ring ? &*copy->plan->ring : nullptr;
  }

  int64_t StagesOf(const ir::Ring& ring) const { return std::max<int64_t>(1, module_.ShapeOf(ring.barriers)[0] / 2); }

  int64_t Stages() const {
    int64_t most = 1;
    for (const ir::Stmt* stmt : order_) {
      if (const ir::Ring* ring = RingOf(*stmt)) most = std::max(most, StagesOf(*ring));
      if (const ir::Store* store = OnlyStore(*stmt)) most = std::max(most, Versions(store->buffer));
    }
    return most;
  }

  int64_t Versions(ir::BufferId buffer) const {
    const v1::SharedSlot* slot = SlotOf(decided_, report_, buffer);
    return slot == nullptr ? 1 : std::max<int64_t>(1, slot->versions());
  }

  bool IsAsync(const ir::Stmt& stmt) const {
    const ir::Store* store = OnlyStore(stmt);
    return store != nullptr && std::ranges::any_of(asynchronous_, [&](const auto& copy) {
             return copy.second == decided_.LineOf(stmt) && MayBeNamed(module_[store->buffer], copy.first);
           });
  }

  // The version that a copy fills, where it counts the iterations.
  std::optional<int64_t> StageOf(const ir::Store& store) {
    if (Versions(store.buffer) <= 1) return std::nullopt;
    return module_.exprs.ConstInt(module_.exprs.Substitute(store.indices[0], loop_.vars[0], module_.exprs.Int(step_)));
  }

  void Close(const std::vector<size_t>& bars, int64_t at) {
    for (const size_t bar : bars) bars_[bar].to = at;
  }

  // Groups of cp.async that were closed ahead of the loop.
  void Before(const ir::Block& block) {
    std::vector<const ir::Stmt*> ahead;
    for (const ir::Stmt& stmt : block) {
      if (&stmt == &stmt_) break;
      if (IsAsync(stmt) || std::holds_alternative<ir::AsyncCommit>(stmt.op)) ahead.push_back(&stmt);
      if (std::holds_alternative<ir::AsyncWait>(stmt.op)) ahead.clear();
    }
    int64_t slots = std::ranges::count_if(ahead, [&](const ir::Stmt* stmt) { return IsAsync(*stmt); });
    for (const ir::Stmt* stmt : ahead) {
      if (!IsAsync(*stmt)) {
        Commit();
        continue;
      }
      slot_ = -slots--;
      rows_.push_back({.text = Line(module_, *stmt), .kind = "copy", .role = computing_, .line = decided_.LineOf(*stmt)});
      Begin(rows_.size() - 1, StageOf(*OnlyStore(*stmt)));
    }
  }

  void Commit() { open_groups_.push_back(std::exchange(pending_, {})); }

  size_t Add(size_t row, int64_t from, int64_t to) {
    bars_.push_back({.from = from, .to = to, .step = step_, .statement = row});
    return bars_.size() - 1;
  }

  void Begin(size_t row, std::optional<int64_t> stage) {
    const size_t bar = Add(row, slot_, slot_ + 1);
    bars_[bar].beside = true;
    bars_[bar].stage = stage;
    pending_.push_back(bar);
  }

  void Do(const ir::Stmt& stmt, size_t row) {
    if (const auto* wait = std::get_if<ir::AsyncWait>(&stmt.op)) return Wait(*wait, row);
    if (std::holds_alternative<ir::AsyncCommit>(stmt.op)) return Commit();
    if (const ir::Ring* ring = RingOf(stmt)) return Fill(*ring, row);
    if (const auto* step = std::get_if<ir::RingStep>(&stmt.op)) return Step(*step, row);
    if (IsAsync(stmt)) return Begin(row, StageOf(*OnlyStore(stmt)));
    const size_t bar = Add(row, slot_, slot_ + 1);
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) Product(*gemm, bar);
  }

  void Wait(const ir::AsyncWait& wait, size_t row) {
    Add(row, slot_, slot_ + 1);
    if (wait.product) {
      if (const auto found = products_.find(ir::Index(*wait.product)); found != products_.end()) {
        bars_[found->second].to = slot_ + 1;
        products_.erase(found);
      }
    } else if (!wait.stores) {
      while (int64_t(open_groups_.size()) > wait.pending) {
        Close(open_groups_.front(), slot_ + 1);
        open_groups_.pop_front();
      }
    }
  }

  void Product(const ir::Gemm& gemm, size_t bar) {
    const uint32_t sum = ir::Index(gemm.c.buffer);
    if (const auto found = products_.find(sum); found != products_.end()) {
      bars_[found->second].to = slot_ + 1;
      products_.erase(found);
    }
    if (!gemm.plan || !gemm.plan->in_flight) return;
    bars_[bar].beside = true;
    products_[sum] = bar;
  }

  // The other threads fill a stage as soon as it is free, which is known only then: the bar is put right by the release.
  void Fill(const ir::Ring& ring, size_t row) {
    const int64_t stages = StagesOf(ring);
    const auto& released = released_[ir::Index(ring.barriers)];
    const auto free = released.find(step_ - stages);
    const size_t bar = Add(row, free == released.end() ? 0 : free->second, slot_ + 1);
    bars_[bar].beside = true;
    bars_[bar].stage = step_ % stages;
    filling_bars_[ir::Index(ring.barriers)].push_back(bar);
  }

  void Step(const ir::RingStep& step, size_t row) {
    const uint32_t ring = ir::Index(step.ring.barriers);
    switch (step.action) {
      case ir::RingAction::kWait:
        Add(row, slot_, slot_ + 1);
        Close(std::exchange(filling_bars_[ring], {}), slot_ + 1);
        break;
      case ir::RingAction::kRelease:
        Add(row, slot_, slot_ + 1);
        released_[ring][step_ - step.behind] = slot_ + 1;
        break;
      case ir::RingAction::kAcquire:
      case ir::RingAction::kAdvance: break;
    }
  }

  Json ToJson(std::optional<int64_t> trips) const {
    const auto bar = [](const Bar& b) {
      return Json::Object({{"from", b.from},
                           {"to", std::max(b.to, b.from + 1)},
                           {"step", b.step},
                           {"statement", uint64_t{b.statement}},
                           {"stage", b.stage ? Json(*b.stage) : Json::Null()},
                           {"beside", b.beside}});
    };
    const auto row = [](const Row& r) {
      return Json::Object({{"text", r.text}, {"kind", r.kind}, {"role", r.role}, {"line", r.line}, {"guarded", r.guarded}});
    };
    return Json::Object({{"kernel", kernel_.name},
                         {"loop", Line(module_, stmt_)},
                         {"line", decided_.LineOf(stmt_)},
                         {"trips", trips ? Json(*trips) : Json::Null()},
                         {"steps", steps_},
                         {"width", width_},
                         {"statements", Json::Map(rows_, row)},
                         {"bars", Json::Map(bars_, bar)}});
  }

  Decided& decided_;
  const v1::Report& report_;
  ir::Module& module_;
  const Named asynchronous_;
  const ir::Kernel& kernel_;
  const ir::Stmt& stmt_;
  const ir::For& loop_;
  std::string computing_, filling_;

  std::vector<const ir::Stmt*> order_;
  std::vector<Row> rows_;  // of order_, then of what runs ahead of the loop
  std::vector<Bar> bars_;
  int64_t width_ = 0, steps_ = 0, step_ = 0, slot_ = 0;

  std::vector<size_t> pending_;  // bars of the group that is not closed
  std::deque<std::vector<size_t>> open_groups_;
  std::map<uint32_t, size_t> products_;                      // in flight, by their sum
  std::map<uint32_t, std::vector<size_t>> filling_bars_;     // by ring
  std::map<uint32_t, std::map<int64_t, int64_t>> released_;  // by ring and step: the slot behind its release
};

// Whether the loop's own iterations copy or multiply; an inner loop's are the inner one's.
bool IsOfInterest(const ir::Module& module, const ir::Block& body) {
  return std::ranges::any_of(body, [&](const ir::Stmt& stmt) {
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
      return IsOfInterest(module, branch->then_body) || IsOfInterest(module, branch->else_body);
    }
    return ir::IsOneOf<ir::RingStep, ir::AsyncWait, ir::Gemm>(stmt.op) || KindOf(module, stmt) == "copy";
  });
}

bool HasLoopOfInterest(const ir::Module& module, const ir::Block& body) {
  bool found = false;
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    found |= loop != nullptr && loop->kind != ir::LoopKind::kParallel && IsOfInterest(module, loop->body);
  });
  return found;
}

void Find(Decided& decided, const v1::Report& report, const ir::Kernel& kernel, const ir::Block& block, std::vector<Json>& out) {
  for (const ir::Stmt& stmt : block) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) continue;
    if (loop != nullptr && IsOfInterest(decided.module, loop->body) && !HasLoopOfInterest(decided.module, loop->body)) {
      out.push_back(Timeline(decided, report, kernel, stmt).Run(block));
      continue;
    }
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Find(decided, report, kernel, body, out); });
  }
}

}  // namespace

Json ScheduleFacts(const Decided& decided, const v1::Report& report) {
  Decided scratch = decided;  // expressions are folded in it
  std::vector<Json> loops;
  for (const ir::Kernel& kernel : scratch.module.kernels) Find(scratch, report, kernel, kernel.body, loops);
  return Json::Array(loops);
}

}  // namespace kiln::cli
