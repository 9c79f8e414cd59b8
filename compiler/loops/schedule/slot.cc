// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/schedule/slot.h"

#include <algorithm>
#include <cassert>

namespace kiln::compiler {
namespace {

// The slot's steps as a graph. Step i starts statement i; for a statement on the matrix unit, another step waits for its end.
class Graph {
 public:
  Graph(std::span<const Work> works, const Dependences& dependences, size_t cut) : works_(works), ends_(works.size()) {
    for (size_t i = 0; i < works.size(); ++i) steps_.push_back({{i, false}, {}, 0});
    for (size_t i = 0; i < works.size(); ++i) {
      ends_[i] = i;
      if (works[i].unit == 0) continue;
      ends_[i] = steps_.size();
      steps_.push_back({{i, true}, {}, 0});
      Order(i, ends_[i]);
    }
    for (size_t a = 0; a < works.size(); ++a) {
      for (size_t b = a + 1; b < works.size(); ++b) {
        const bool same = (a < cut) == (b < cut);
        if (dependences.Binds(a, b)) {
          possible_ &= same;
          Order(ends_[a], b);
        } else if (dependences.Conflict(a, b)) {
          same ? Order(ends_[a], b) : Order(ends_[b], a);  // b's iteration comes first in the slot
        }
      }
    }
  }

  bool possible() const { return possible_; }

  Slot Schedule() {
    heights_.assign(steps_.size(), -1);
    std::vector<double> ready(steps_.size(), 0);  // when the step's last predecessor ends
    std::vector<bool> done(steps_.size(), false);
    Slot slot{{}, 0};
    double now = 0, unit = 0;
    while (slot.steps.size() < steps_.size()) {
      const size_t next = Next(ready, done, now);
      const Node& node = steps_[next];
      const Work& work = works_[node.step.stmt];
      now = std::max(now, ready[next]);
      double end = now;
      if (!node.step.wait) {
        now += work.threads;
        end = now;
        if (work.unit > 0) end = unit = std::max(unit, now) + work.unit;
      }
      done[next] = true;
      for (size_t after : node.after) {
        ready[after] = std::max(ready[after], end);
        --steps_[after].before;
      }
      slot.steps.push_back(node.step);
    }
    slot.cycles = now;
    return slot;
  }

 private:
  struct Node {
    Step step;
    std::vector<size_t> after;
    int before = 0;  // steps that must end first and have not
  };

  void Order(size_t first, size_t second) {
    steps_[first].after.push_back(second);
    ++steps_[second].before;
  }

  // The longest path from the step's start to the slot's end.
  double Height(size_t i) {
    if (heights_[i] >= 0) return heights_[i];
    const Node& node = steps_[i];
    double behind = 0;
    for (size_t after : node.after) behind = std::max(behind, Height(after));
    const Work& work = works_[node.step.stmt];
    return heights_[i] = behind + (node.step.wait ? 0 : work.threads + work.unit);
  }

  size_t Next(const std::vector<double>& ready, const std::vector<bool>& done, double now) {
    std::optional<size_t> best;
    const auto is_better = [&](size_t a, size_t b) {
      const bool a_waits = ready[a] > now, b_waits = ready[b] > now;
      if (a_waits != b_waits) return b_waits;
      if (a_waits && ready[a] != ready[b]) return ready[a] < ready[b];
      const bool a_first = works_[steps_[a].step.stmt].at_once, b_first = works_[steps_[b].step.stmt].at_once;
      if (a_first != b_first) return a_first;
      return Height(a) > Height(b);
    };
    for (size_t i = 0; i < steps_.size(); ++i)
      if (!done[i] && steps_[i].before == 0 && (!best || is_better(i, *best))) best = i;
    assert(best);  // statements of one stage are in order, and those of the iteration before come first
    return *best;
  }

  std::span<const Work> works_;
  std::vector<size_t> ends_;
  std::vector<Node> steps_;
  std::vector<double> heights_;
  bool possible_ = true;
};

}  // namespace

double InOrder(std::span<const Work> works) {
  double cycles = 0;
  for (const Work& work : works) cycles += work.threads + work.unit;
  return cycles;
}

std::optional<Slot> MakeSlot(std::span<const Work> works, const Dependences& dependences, size_t cut) {
  Graph graph(works, dependences, cut);
  if (!graph.possible()) return std::nullopt;
  return graph.Schedule();
}

}  // namespace kiln::compiler
