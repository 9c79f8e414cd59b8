// SPDX-License-Identifier: Apache-2.0
#include "compiler/infer/split_pairs.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/infer/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/stream_cost.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::Stmt;

constexpr int64_t kLeastSteps = 16;  // of each half: what the two barriers and the exchange take must be little beside them
constexpr int64_t kLeastPieces = 4;  // in which a result too large for shared memory leaves

class Splitter {
 public:
  Splitter(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    if (!context_.target->Has(target::Feature::kCluster) || !kernel_.cluster.empty() || kernel_.raster_panel > 0 || !HalfIdles()) return;
    const std::optional<size_t> at = FindLoop();
    if (at) Split(*at);
  }

 private:
  bool HalfIdles() const {
    int64_t blocks = 2;
    for (ExprId extent : kernel_.grid) blocks *= module_.exprs.ConstInt(extent).value_or(context_.target->multiprocessors);
    return kernel_.grid.size() < 3 && blocks <= int64_t(context_.target->multiprocessors);
  }

  // The one loop that holds products, a statement of the kernel itself.
  std::optional<size_t> FindLoop() const {
    std::optional<size_t> at;
    for (size_t i = 0; i < kernel_.body.size(); ++i) {
      if (Gemms(kernel_.body[i]).empty()) continue;
      if (at || !Fits(i)) return std::nullopt;
      at = i;
    }
    return at;
  }

  static std::vector<const ir::Gemm*> Gemms(const Stmt& stmt) {
    std::vector<const ir::Gemm*> gemms;
    Each(stmt, [&](const Stmt& inner) {
      if (const auto* gemm = std::get_if<ir::Gemm>(&inner.op)) gemms.push_back(gemm);
    });
    return gemms;
  }

  // The statement and all within it.
  template <typename Fn>
  static void Each(const Stmt& stmt, Fn&& fn) {
    const Block one{stmt};
    ir::Walk(one, fn);
  }

  bool Fits(size_t at) const {
    const auto* loop = std::get_if<ir::For>(&kernel_.body[at].op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kPipelined || loop->num_stages < 2) return false;
    const int64_t steps = module_.exprs.ConstInt(loop->extents[0]).value_or(0);
    if (steps % 2 != 0 || steps / 2 < kLeastSteps) return false;
    const ir::Gemm* gemm = nullptr;
    for (const Stmt& stmt : loop->body) {
      if (!std::holds_alternative<ir::Gemm>(stmt.op)) continue;
      if (gemm != nullptr) return false;
      gemm = &std::get<ir::Gemm>(stmt.op);
    }
    const target::MmaInstruction* mma = gemm == nullptr ? nullptr : target::FindMma(*context_.target, gemm->plan->instruction);
    if (mma == nullptr || mma->warps == 1 || gemm->clear_accum || CountAccesses(module_, kernel_.body[at], gemm->c.buffer) != 2) return false;
    for (size_t i = 0; i <= at; ++i)
      if (WritesGlobal(module_, kernel_.body[i])) return false;
    return StepsAreApart(at, gemm->c.buffer) && StartsFromZero(at, gemm->c.buffer) && ExchangeFits(at, *gemm) && !Streams(*loop, *gemm, *mma);
  }

  // Whether all multiprocessors had better share the steps (infer/stream_k.h), where nothing but the product is in the way of it.
  bool Streams(const ir::For& loop, const ir::Gemm& gemm, const target::MmaInstruction& mma) const {
    const v1::CompileOptions& options = context_.options;
    if (options.stream_k() == v1::STREAM_K_NEVER || options.disable_tma() || options.disable_warp_specialization()) return false;
    const bool plain = std::ranges::all_of(loop.body, [&](const Stmt& stmt) {
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      const bool loads = copy != nullptr && module_[copy->src.buffer].space == ir::Space::kGlobal && module_[copy->dst.buffer].space == ir::Space::kShared;
      return loads || std::holds_alternative<ir::Gemm>(stmt.op) || std::holds_alternative<ir::Let>(stmt.op) || std::holds_alternative<ir::Alloc>(stmt.op);
    });
    if (!plain) return false;
    int64_t tiles = 1;
    for (ExprId extent : kernel_.grid) tiles *= module_.exprs.ConstInt(extent).value_or(0);
    const TileWork work = WorkOf(module_, gemm, mma, tiles, *module_.exprs.ConstInt(loop.extents[0]));
    const int64_t multiprocessors = int64_t(context_.target->multiprocessors);
    const compiler::Streams streams = BestStreams(work, multiprocessors);
    if (streams.blocks == 0) return false;
    return options.stream_k() == v1::STREAM_K_ALWAYS || StreamedCycles(work, streams, multiprocessors) < kWorthStreaming * PairedCycles(work);
  }

  // Whether shared memory has room for the other's sum, and for a piece of the result on its way out, beside the tiles of two steps: with
  // less, loads would not run ahead.
  bool ExchangeFits(size_t at, const ir::Gemm& gemm) const {
    std::map<BufferId, int64_t> versions;
    for (size_t i = 0; i < kernel_.body.size(); ++i) {
      Each(kernel_.body[i], [&](const Stmt& stmt) {
        for (const Access& access : AccessesOf(module_, stmt))
          if (module_[access.buffer].space == ir::Space::kShared) versions[access.buffer] = std::max<int64_t>(versions[access.buffer], i == at ? 2 : 1);
      });
    }
    const GemmShape shape = ShapeOf(gemm);
    const int64_t sum = shape.m * shape.n * ir::Bits(module_[gemm.c.buffer].dtype) / 8;
    int64_t bytes = sum + sum / kLeastPieces;
    for (const auto& [tile, count] : versions) bytes += count * BytesOf(tile);
    return bytes <= int64_t(context_.target->max_shared_bytes);
  }

  int64_t BytesOf(BufferId buffer) const {
    int64_t bits = ir::Bits(module_[buffer].dtype);
    for (int64_t extent : module_.ShapeOf(buffer)) bits *= extent;
    return bits / 8;
  }

  // Whether every step runs, and leaves nothing but its part of the sum to the next ones and to what is behind the loop.
  bool StepsAreApart(size_t at, BufferId sum) const {
    std::set<BufferId> seen, found, written;  // found: as an earlier step may have left them
    for (const Stmt& stmt : std::get<ir::For>(kernel_.body[at].op).body) {
      bool always = true, leaves = false;
      Each(stmt, [&](const Stmt& inner) {
        always &= !std::holds_alternative<ir::If>(inner.op) && !std::holds_alternative<ir::While>(inner.op);
        leaves |= std::holds_alternative<ir::Break>(inner.op) || std::holds_alternative<ir::Continue>(inner.op);
      });
      if (leaves) return false;
      Each(stmt, [&](const Stmt& inner) {
        for (const Access& access : AccessesOf(module_, inner)) {
          if (seen.insert(access.buffer).second && !(access.write && always)) found.insert(access.buffer);
          if (access.write && access.buffer != sum) written.insert(access.buffer);
        }
      });
    }
    return std::ranges::none_of(written, [&](BufferId id) {
      return found.contains(id) || std::any_of(kernel_.body.begin() + ptrdiff_t(at) + 1, kernel_.body.end(), [&](const Stmt& stmt) { return CountAccesses(module_, stmt, id) > 0; });
    });
  }

  bool StartsFromZero(size_t end, BufferId buffer) const {
    for (size_t i = end; i-- > 0;) {
      if (CountAccesses(module_, kernel_.body[i], buffer) == 0) continue;
      const auto* fill = std::get_if<ir::Fill>(&kernel_.body[i].op);
      if (fill == nullptr || fill->dst.extents != module_.ShapeOf(buffer)) return false;
      const ir::ExprNode& value = module_.exprs[fill->value];
      return module_.exprs.IsConst(fill->value, 0) || (value.op == ir::ExprOp::kConstFloat && value.FloatValue() == 0);
    }
    return false;
  }

  void Split(size_t at) {
    auto& loop = std::get<ir::For>(kernel_.body[at].op);
    const ir::SourceLoc loc = kernel_.body[at].loc;
    const int64_t half = *module_.exprs.ConstInt(loop.extents[0]) / 2;
    const ExprId part = AddAxis();
    const ExprId step = module_.VarRef(loop.vars[0]);
    const ir::DType type = module_.exprs.Type(step);
    const ExprId first = module_.exprs.Mul(module_.exprs.Cast(type, part), module_.exprs.Int(half, type));
    Substitute(module_, loop.body, loop.vars[0], module_.exprs.Add(step, first));
    loop.extents[0] = module_.exprs.Int(half, module_.exprs.Type(loop.extents[0]));

    BufferId sum = Gemms(kernel_.body[at])[0]->c.buffer;
    size_t behind = at + 1;
    // Groups of warps join theirs first.
    const auto* join = behind < kernel_.body.size() ? std::get_if<ir::Reduce>(&kernel_.body[behind].op) : nullptr;
    if (join != nullptr && join->src.buffer == sum) sum = join->dst.buffer, ++behind;
    Block rest(std::make_move_iterator(kernel_.body.begin() + ptrdiff_t(behind)), std::make_move_iterator(kernel_.body.end()));
    kernel_.body.resize(behind);
    kernel_.body.push_back({ir::PairSum{sum}, loc});
    ir::If result{module_.exprs.Make(ir::ExprOp::kEq, {part, module_.exprs.Int(0, module_.exprs.Type(part))}), {}, {}};
    for (Stmt& stmt : rest) (std::holds_alternative<ir::Alloc>(stmt.op) ? kernel_.body : result.then_body).push_back(std::move(stmt));
    kernel_.body.push_back({std::move(result), loc});
  }

  // Of the grid: which of a pair a block is.
  ExprId AddAxis() {
    const ir::DType type = module_[kernel_.block_vars[0]].dtype;
    const ir::VarId part = module_.AddVar({ir::VarKind::kBlock, type, uint8_t(kernel_.grid.size()), "half" + std::to_string(module_.vars.size())});
    kernel_.cluster.assign(kernel_.grid.size(), 1);
    kernel_.cluster.push_back(2);
    kernel_.grid.push_back(module_.exprs.Int(2, module_.exprs.Type(kernel_.grid[0])));
    kernel_.block_vars.push_back(part);
    return module_.VarRef(part);
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
};

}  // namespace

void SplitPairs(ir::Module& module, ir::Kernel& kernel, const Context& context) { Splitter(module, kernel, context).Run(); }

}  // namespace kiln::compiler
