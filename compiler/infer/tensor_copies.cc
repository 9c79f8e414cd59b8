// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/tensor_copies.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/infer/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/shared.h"
#include "compiler/rules/tensor.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Space;

// Of shared memory: a tile that waits to be stored may take as much beside the stages of a loop.
constexpr int64_t kMaxStaged = 64 << 10;

class Chooser {
 public:
  Chooser(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    Count(kernel_.body);
    if (!has_wgmma_) return;
    Facts facts(module_);
    facts.EnterKernel(kernel_);
    const size_t buffers = module_.buffers.size();
    Visit(kernel_.body, facts, /*pipelined=*/false);
    Declare(module_, kernel_, buffers);
  }

 private:
  struct Uses {
    int reads = 0, writes = 0;
  };

  void Count(const ir::Block& body) {
    ir::Walk(body, [&](const ir::Stmt& stmt) {
      for (const Access& access : AccessesOf(module_, stmt)) ++(access.write ? uses_[access.buffer].writes : uses_[access.buffer].reads);
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      const auto* mma = gemm == nullptr ? nullptr : target::FindMma(*context_.target, gemm->plan->instruction);
      if (gemm == nullptr) return;
      if (mma != nullptr && mma->warps > 1) {
        has_wgmma_ = true;
      } else {
        by_warps_.insert({gemm->a.buffer, gemm->b.buffer});
      }
    });
  }

  void Visit(ir::Block& block, Facts facts, bool pipelined) {
    ir::Block result;
    for (ir::Stmt& stmt : block) {
      std::visit(ir::Overloaded{
                     [&](ir::For& op) {
                       if (op.kind == ir::LoopKind::kParallel) return;
                       Facts inner = facts;
                       inner.EnterLoop(op);
                       Visit(op.body, inner, pipelined || (op.kind == ir::LoopKind::kPipelined && op.num_stages >= 2));
                     },
                     [&](ir::If& op) {
                       Facts inner = facts;
                       inner.Assume(op.cond);
                       Visit(op.then_body, inner, pipelined);
                       Visit(op.else_body, facts, pipelined);
                     },
                     [&](ir::While& op) { Visit(op.body, facts, pipelined); },
                     [&](ir::Let& op) { facts.Bind(op); },
                     [&](ir::Assume& op) { facts.Assume(op.cond); },
                     [](auto&) {},
                 },
                 stmt.op);
      auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy != nullptr && pipelined && IsLoad(*copy, facts)) copy->plan->instruction = ir::CopyInstruction::kTensor;
      if (copy != nullptr && IsStore(*copy, facts)) {
        if (module_[copy->src.buffer].space == Space::kFragment) result.push_back({Stage(*copy), stmt.loc});
        copy->plan = ir::CopyPlan{ir::CopyInstruction::kTensor, copy->plan->vector, {}, {}, 0, 0};
      }
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

  bool IsLoad(const ir::Copy& copy, const Facts& facts) const {
    const ir::Buffer &src = module_[copy.src.buffer], &dst = module_[copy.dst.buffer];
    return src.space == Space::kGlobal && dst.space == Space::kShared && src.dtype == dst.dtype && !by_warps_.contains(copy.dst.buffer) &&
           copy.dst.extents == module_.ShapeOf(copy.dst.buffer) &&
           TensorFits(module_, facts, copy.src, copy.dst.extents, context_.pointer_alignment());
  }

  // The stored tensor is not touched otherwise: when its elements arrive, nobody waits for.
  bool IsStore(const ir::Copy& copy, const Facts& facts) const {
    const ir::Buffer &src = module_[copy.src.buffer], &dst = module_[copy.dst.buffer];
    const auto uses = uses_.find(copy.dst.buffer);
    if (dst.space != Space::kGlobal || uses->second.reads != 0 || uses->second.writes != 1) return false;
    const std::vector<int64_t> tile = module_.ShapeOf(copy.src.buffer);
    if (copy.src.extents != tile || !TensorFits(module_, facts, copy.dst, tile, context_.pointer_alignment())) return false;
    if (src.space == Space::kShared) return src.dtype == dst.dtype;
    int64_t bytes = ir::Bits(dst.dtype) / 8;
    for (int64_t extent : tile) bytes *= extent;
    return src.space == Space::kFragment && bytes <= kMaxStaged;
  }

  // The copy's source becomes a shared tile, filled by what is returned.
  ir::Copy Stage(ir::Copy& copy) {
    ir::Buffer buffer{Space::kShared, module_[copy.dst.buffer].dtype, module_[copy.src.buffer].shape};
    buffer.name = module_[copy.src.buffer].name + "_out" + std::to_string(module_.buffers.size());
    ir::Region staged{module_.AddBuffer(std::move(buffer)), copy.src.offsets, copy.src.extents};
    ir::Copy fill{copy.src, staged, copy.coalesced_width, ir::CopyPlan{}};
    copy.src = std::move(staged);
    return fill;
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  std::map<BufferId, Uses> uses_;
  std::set<BufferId> by_warps_;  // operands of other products, which want layouts of their own
  bool has_wgmma_ = false;
};

// Offsets that registers or shared memory hold are read element by element.
bool OffsetsAreShared(const ir::Module& module, const ir::Copy& copy) {
  std::vector<Access> loads;
  for (const ir::Region* region : {&copy.src, &copy.dst})
    for (ir::ExprId offset : region->offsets) CollectLoads(module.exprs, offset, loads);
  return std::ranges::all_of(loads, [&](const Access& load) { return module[load.buffer].space == Space::kGlobal; });
}

}  // namespace

void TensorCopies(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (UsesTensorCopies(context)) Chooser(module, kernel, context).Run();
}

ir::CopyInstruction PlainInstruction(const ir::Module& module, const ir::Copy& copy, int64_t vector, const Context& context) {
  const ir::Buffer &src = module[copy.src.buffer], &dst = module[copy.dst.buffer];
  const int64_t bytes = vector * ir::Bits(src.dtype) / 8;
  const bool whole = src.dtype == dst.dtype && (bytes == 4 || bytes == 8 || bytes == 16);
  const bool zero_fill = !src.pad_value || *src.pad_value == 0;
  const bool load = src.space == Space::kGlobal && dst.space == Space::kShared && OffsetsAreShared(module, copy);
  const bool allowed = context.target->Has(target::Feature::kCpAsync) && !context.options.disable_async_copy();
  return load && whole && zero_fill && allowed ? ir::CopyInstruction::kAsync : ir::CopyInstruction::kDirect;
}

void LayOutTiles(ir::Module& module, const ir::Kernel& kernel, const Context& context) {
  const auto lay_out = [&](BufferId id) {
    ir::Buffer& buffer = module[id];
    if (buffer.space == Space::kShared) buffer.layout = WgmmaSharedLayout(module.ShapeOf(id), ir::Bits(buffer.dtype));
  };
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op); copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor) {
      lay_out(copy->src.buffer), lay_out(copy->dst.buffer);
    }
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    const auto* mma = gemm == nullptr ? nullptr : target::FindMma(*context.target, gemm->plan->instruction);
    if (mma == nullptr || mma->warps == 1) return;
    lay_out(gemm->a.buffer), lay_out(gemm->b.buffer);
  });
}

}  // namespace kiln::compiler
