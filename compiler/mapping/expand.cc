// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/expand.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "compiler/rewrite/elementwise.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rules/shared.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::Space;

ir::Region Whole(ir::Module& module, BufferId buffer) {
  ir::Region region{buffer, {}, module.ShapeOf(buffer)};
  region.offsets.assign(region.extents.size(), module.exprs.Int(0));
  return region;
}

// Replaces each copy and each op of the family elementwise by a loop, and makes both sides of each reduction fragments.
class Expander {
 public:
  Expander(ir::Module& module, const target::Target& target) : module_(module), target_(target) {}

  void Visit(ir::Block& block) {
    ir::Block result;
    for (ir::Stmt& stmt : block) {
      std::optional<ir::For> loop;
      std::visit(
          ir::Overloaded{
              [&](ir::For& op) { Visit(op.body); },
              [&](ir::While& op) { Visit(op.body); },
              [&](ir::If& op) { Visit(op.then_body), Visit(op.else_body); },
              [&](const ir::Copy& op) {
                if (!IsLoad(op) && !IsTensor(op)) loop = CopyLoop(module_, op);
              },
              [&](const ir::Elementwise auto& op) { loop = LoopOf(op); },
              [&](const ir::Call& op) { LayOutTiles(op); },
              ir::Ignored<ir::Alloc, ir::Let, ir::Store, ir::Assume, ir::Gemm, ir::Mma, ir::Reduce, ir::Atomic, ir::Barrier, ir::Break, ir::Continue,
                          ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait, ir::RingStep, ir::PairSum, ir::StreamSum>{},
          },
          stmt.op);
      if (loop) {
        if (NamesPrivate(module_, stmt.op)) MakePrivate(module_, *loop, stmt.op, target_.registers_per_thread);
        stmt.op = std::move(*loop);
      } else if (auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) {
        ThroughFragments(*reduce, stmt, result);
        continue;
      }
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

 private:
  // Global to shared: the pipeline pass wants to see these whole.
  bool IsLoad(const ir::Copy& copy) const {
    return module_[copy.src.buffer].space == Space::kGlobal && module_[copy.dst.buffer].space == Space::kShared;
  }
  static bool IsTensor(const ir::Copy& copy) { return copy.plan && copy.plan->instruction == ir::CopyInstruction::kTensor; }
  ir::For LoopOf(const ir::Elementwise auto& op) {
    return ElementwiseLoop(module_, ir::Destination(op), [&](const ir::ElementOf& element) { return ir::Becomes(module_, op, element); });
  }

  void LayOutTiles(const ir::Call& call) {
    ir::ForEachBuffer(call, [&](BufferId id) {
      if (module_[id].space == Space::kShared) module_[id].layout = RowMajorLayout(module_.ShapeOf(id));
    });
  }

  void ThroughFragments(ir::Reduce reduce, const ir::Stmt& stmt, ir::Block& result) {
    const auto is_whole_fragment = [&](const ir::Region& region) {
      return module_[region.buffer].space == Space::kFragment && region.extents == module_.ShapeOf(region.buffer);
    };
    const auto fragment_like = [&](const ir::Region& region) {
      return Whole(module_, FreshOfShape(module_, region.buffer, Space::kFragment, region.extents, "_reduce"));
    };
    const ir::Region dst = reduce.dst;
    if (!is_whole_fragment(reduce.src)) {
      const ir::Region whole = fragment_like(reduce.src);
      result.push_back({CopyLoop(module_, ir::Copy{reduce.src, whole}), stmt.loc});
      reduce.src = whole;
    }
    const bool through = !is_whole_fragment(dst);
    if (through) {
      reduce.dst = fragment_like(dst);
      if (!reduce.clear) result.push_back({CopyLoop(module_, ir::Copy{dst, reduce.dst}), stmt.loc});
    }
    const ir::Region reduced = reduce.dst;
    result.push_back({std::move(reduce), stmt.loc});
    if (through) result.push_back({CopyLoop(module_, ir::Copy{reduced, dst}), stmt.loc});
  }

  ir::Module& module_;
  const target::Target& target_;
};

}  // namespace

void Expand(ir::Module& module, const target::Target& target, ir::Block& block) { Expander(module, target).Visit(block); }

}  // namespace kiln::compiler
