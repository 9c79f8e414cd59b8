// SPDX-License-Identifier: Apache-2.0
#include "compiler/rewrite/live_fragments.h"

#include <algorithm>
#include <map>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

class Liveness {
 public:
  Liveness(const ir::Module& module, const std::optional<ir::ThreadRange>& threads, const std::function<int64_t(BufferId)>& words_of,
           const std::function<void(int64_t, const LiveFragments&)>& visit)
      : module_(module), threads_(threads), words_of_(words_of), visit_(visit) {}

  void Run(const ir::Block& body) {
    std::map<size_t, LiveFragments> begin;  // what no statement before touches
    LiveFragments known;
    for (size_t i = 0; i < body.size(); ++i) {
      ir::WalkWithin(body[i], [&](const ir::Stmt& inner) {
        for (const Access& access : AccessesOf(module_, inner))
          if (IsFragment(access.buffer) && known.insert(access.buffer).second) begin[i].insert(access.buffer);
      });
    }
    Live live;
    for (size_t i = body.size(); i-- > 0;) {
      Visit(body[i], live);
      for (const BufferId id : begin[i]) Erase(live, id);
    }
  }

 private:
  struct Live {
    LiveFragments fragments;
    int64_t words = 0;
  };
  // Where statements leave an iteration or a loop to.
  struct Loop {
    Live next, behind;
  };

  int64_t WordsOf(BufferId id) {
    const auto [at, is_new] = words_.try_emplace(id);
    if (is_new) at->second = words_of_(id);
    return at->second;
  }
  void Insert(Live& live, BufferId id) {
    if (live.fragments.insert(id).second) live.words += WordsOf(id);
  }
  void Erase(Live& live, BufferId id) {
    if (live.fragments.erase(id) > 0) live.words -= WordsOf(id);
  }
  void Add(Live& live, const LiveFragments& more) {
    for (const BufferId id : more) Insert(live, id);
  }

  bool IsFragment(BufferId id) const { return module_[id].space == ir::Space::kFragment; }

  // `live`: behind the statements; then before them.
  void Visit(const ir::Block& block, Live& live) {
    for (size_t i = block.size(); i-- > 0;) Visit(block[i], live);
  }

  void Visit(const ir::Stmt& stmt, Live& live) {
    if (std::holds_alternative<ir::Break>(stmt.op) && !loops_.empty()) live = loops_.back().behind;
    if (std::holds_alternative<ir::Continue>(stmt.op) && !loops_.empty()) live = loops_.back().next;
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && !IsOneStatement(*loop)) VisitLoop(loop->body, live);
    if (const auto* repeat = std::get_if<ir::While>(&stmt.op)) VisitLoop(repeat->body, live);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
      Live otherwise = live;
      if (Come(branch->then_threads)) Visit(branch->then_body, live);
      if (Come(branch->else_threads)) Visit(branch->else_body, otherwise);
      Add(live, otherwise.fragments);
    }
    Step(stmt, loop != nullptr && IsOneStatement(*loop) ? loop : nullptr, live);
  }

  bool Come(const std::optional<ir::ThreadRange>& branch) const {
    return !threads_ || !branch || (branch->begin < threads_->end && threads_->begin < branch->end);
  }

  // What an iteration needs of those before it is live behind each iteration, and before the loop.
  void VisitLoop(const ir::Block& body, Live& live) {
    const Live behind = live;
    Add(live, NeededBy(body));
    if (quiet_) return;
    loops_.push_back({live, behind});
    Live before = live;
    Visit(body, before);
    loops_.pop_back();
  }

  // What a loop's body reads before it sets it, whatever is live behind.
  const LiveFragments& NeededBy(const ir::Block& body) {
    if (const auto known = needed_.find(&body); known != needed_.end()) return known->second;
    const bool quiet = std::exchange(quiet_, true);
    loops_.push_back({});
    Live needed;
    Visit(body, needed);
    loops_.pop_back();
    quiet_ = quiet;
    return needed_[&body] = std::move(needed.fragments);
  }

  // The statement's own accesses; `elements`: a loop over elements.
  void Step(const ir::Stmt& stmt, const ir::For* elements, Live& live) {
    LiveFragments read, written, whole;
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (!IsFragment(access.buffer)) continue;
      (access.write ? written : read).insert(access.buffer);
      if (access.write && SetsWhole(access, elements)) whole.insert(access.buffer);
    }
    Add(live, written);
    if (elements == nullptr) Add(live, read);
    if (!quiet_) visit_(live.words, live.fragments);
    for (const BufferId id : whole) Erase(live, id);
    Add(live, read);
    if (!quiet_ && elements != nullptr) visit_(live.words, live.fragments);
  }

  // Whether the access gives every element a value whenever the statement runs.
  bool SetsWhole(const Access& access, const ir::For* elements) const {
    if (elements == nullptr) return access.tile && access.extents == module_.ShapeOf(access.buffer);
    return CoversElements(module_, *elements, access.buffer) && std::ranges::any_of(elements->body, [&](const ir::Stmt& inner) {
             const auto* store = std::get_if<ir::Store>(&inner.op);
             return store != nullptr && store->buffer == access.buffer && IsOwnElement(module_, *elements, store->indices);
           });
  }

  const ir::Module& module_;
  const std::optional<ir::ThreadRange>& threads_;
  const std::function<int64_t(BufferId)>& words_of_;
  const std::function<void(int64_t, const LiveFragments&)>& visit_;
  std::map<BufferId, int64_t> words_;
  std::map<const ir::Block*, LiveFragments> needed_;  // by a loop's body
  std::vector<Loop> loops_;
  bool quiet_ = false;  // nobody is told: what a body needs is looked for
};

}  // namespace

void ForEachMoment(const ir::Module& module, const ir::Kernel& kernel, const std::optional<ir::ThreadRange>& threads,
                   const std::function<int64_t(BufferId)>& words_of, const std::function<void(int64_t, const LiveFragments&)>& visit) {
  Liveness(module, threads, words_of, visit).Run(kernel.body);
}

}  // namespace kiln::compiler
