// SPDX-License-Identifier: Apache-2.0
#include "compiler/grid/split_pairs.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/leaves.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/stream_cost.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::Stmt;

constexpr int64_t kLeastPieces = 4;  // a choice: a result too large for shared memory is stored in at least so many

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

  // The only loop with products, which must be a statement of the kernel's body itself.
  std::optional<size_t> FindLoop() const {
    std::optional<size_t> at;
    for (size_t i = 0; i < kernel_.body.size(); ++i) {
      if (!HoldsProduct(kernel_.body[i])) continue;
      if (at || !Fits(i)) return std::nullopt;
      at = i;
    }
    return at;
  }

  static bool HoldsProduct(const Stmt& stmt) {
    bool holds = false;
    ir::WalkWithin(stmt, [&](const Stmt& inner) { holds |= std::holds_alternative<ir::Gemm>(inner.op); });
    return holds;
  }

  // The product in the loop's body; nullptr if there are several.
  static const ir::Gemm* ProductOf(const ir::For& loop) {
    const ir::Gemm* product = nullptr;
    for (const Stmt& stmt : loop.body) {
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm != nullptr && product != nullptr) return nullptr;
      if (gemm != nullptr) product = gemm;
    }
    return product;
  }

  bool Fits(size_t at) const {
    const auto* loop = std::get_if<ir::For>(&kernel_.body[at].op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kPipelined || loop->num_stages < 2) return false;
    const int64_t steps = module_.exprs.ConstInt(loop->extents[0]).value_or(0);
    if (steps % 2 != 0 || steps / 2 < context_.target->costs.least_halved) return false;
    const ir::Gemm* gemm = ProductOf(*loop);
    if (gemm == nullptr || gemm->clear_accum || !RowOf(*gemm, *context_.target).IsByGroup() ||
        CountAccesses(module_, kernel_.body[at], gemm->c.buffer) != 2)
      return false;
    for (size_t i = 0; i <= at; ++i)
      if (WritesGlobal(module_, kernel_.body[i])) return false;
    return StepsAreApart(at, gemm->c.buffer) && ZeroedBy(module_, std::span(kernel_.body).first(at), gemm->c.buffer) != nullptr &&
           ExchangeFits(at, *gemm) && !Streams(*loop, *gemm);
  }

  // Whether it is better that all multiprocessors share the steps (grid/stream_k.h), and the loop holds nothing that prevents it.
  bool Streams(const ir::For& loop, const ir::Gemm& gemm) const {
    const v1::CompileOptions& options = context_.options;
    if (options.stream_k() == v1::STREAM_K_NEVER || options.disable_tma() || options.disable_warp_specialization()) return false;
    const bool plain = std::ranges::all_of(loop.body, [&](const Stmt& stmt) {
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy != nullptr) return module_[copy->src.buffer].space == ir::Space::kGlobal && module_[copy->dst.buffer].space == ir::Space::kShared;
      return std::holds_alternative<ir::Gemm>(stmt.op) || std::holds_alternative<ir::Let>(stmt.op) || std::holds_alternative<ir::Alloc>(stmt.op);
    });
    if (!plain) return false;
    int64_t tiles = 1;
    for (ExprId extent : kernel_.grid) tiles *= module_.exprs.ConstInt(extent).value_or(0);
    const TileWork work = WorkOf(module_, gemm, *context_.target, tiles, *module_.exprs.ConstInt(loop.extents[0]));
    const compiler::Streams streams = BestStreams(work);
    if (streams.blocks == 0) return false;
    return options.stream_k() == v1::STREAM_K_ALWAYS || StreamedCycles(work, streams) < context_.target->costs.worth_streaming * PairedCycles(work);
  }

  // Whether shared memory holds the tiles of two steps, the other block's sum, and one piece of the result on its way out. With fewer
  // tiles, loads could not run ahead.
  bool ExchangeFits(size_t at, const ir::Gemm& gemm) const {
    std::map<BufferId, int64_t> versions;
    for (size_t i = 0; i < kernel_.body.size(); ++i) {
      ir::WalkWithin(kernel_.body[i], [&](const Stmt& stmt) {
        for (const Access& access : AccessesOf(module_, stmt))
          if (module_[access.buffer].space == ir::Space::kShared)
            versions[access.buffer] = std::max<int64_t>(versions[access.buffer], i == at ? 2 : 1);
      });
    }
    const GemmShape shape = ShapeOf(gemm);
    int64_t sum = shape.m * shape.n * ir::Bits(module_[gemm.c.buffer].dtype) / 8;
    if (HalvedDim(gemm, gemm.c.buffer, std::span(kernel_.body).subspan(at + 1))) sum /= 2;
    int64_t bytes = sum + sum / kLeastPieces;
    for (const auto& [tile, count] : versions) bytes += count * BytesOf(tile);
    return bytes <= int64_t(context_.target->max_shared_bytes);
  }

  int64_t BytesOf(BufferId buffer) const {
    int64_t bits = ir::Bits(module_[buffer].dtype);
    for (int64_t extent : module_.ShapeOf(buffer)) bits *= extent;
    return bits / 8;
  }

  // Whether every step always runs, and passes nothing but its part of the sum to later steps and statements.
  bool StepsAreApart(size_t at, BufferId sum) const {
    if (LeavesLoop(std::get<ir::For>(kernel_.body[at].op).body)) return false;
    std::set<BufferId> seen, found, written;  // found: what a step reads as an earlier step may have left it
    for (const Stmt& stmt : std::get<ir::For>(kernel_.body[at].op).body) {
      bool always = true;
      ir::WalkWithin(stmt, [&](const Stmt& inner) {
        const auto* loop = std::get_if<ir::For>(&inner.op);
        always &=
            !std::holds_alternative<ir::If>(inner.op) && !std::holds_alternative<ir::While>(inner.op) && (loop == nullptr || !LeavesLoop(loop->body));
      });
      ir::WalkWithin(stmt, [&](const Stmt& inner) {
        for (const Access& access : AccessesOf(module_, inner)) {
          if (seen.insert(access.buffer).second && !(access.write && always)) found.insert(access.buffer);
          if (access.write && access.buffer != sum) written.insert(access.buffer);
        }
      });
    }
    const std::span<const Stmt> behind = std::span(kernel_.body).subspan(at + 1);
    return std::ranges::none_of(written, [&](BufferId id) {
      return found.contains(id) || std::ranges::any_of(behind, [&](const Stmt& stmt) { return CountAccesses(module_, stmt, id) > 0; });
    });
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

    const ir::Gemm product = *ProductOf(loop);
    BufferId sum = product.c.buffer;
    size_t behind = at + 1;
    // The groups of warps of one block join their sums first.
    const auto* join = behind < kernel_.body.size() ? std::get_if<ir::Reduce>(&kernel_.body[behind].op) : nullptr;
    if (join != nullptr && join->src.buffer == sum) sum = join->dst.buffer, ++behind;
    Block rest(std::make_move_iterator(kernel_.body.begin() + ptrdiff_t(behind)), std::make_move_iterator(kernel_.body.end()));
    kernel_.body.resize(behind);
    if (const std::optional<int> dim = HalvedDim(product, sum, rest)) return Share(sum, *dim, part, std::move(rest), loc);
    kernel_.body.push_back({ir::PairSum{sum}, loc});
    ir::If result{module_.exprs.Make(ir::ExprOp::kEq, {part, module_.exprs.Int(0, module_.exprs.Type(part))}), {}, {}};
    for (Stmt& stmt : rest) (std::holds_alternative<ir::Alloc>(stmt.op) ? kernel_.body : result.then_body).push_back(std::move(stmt));
    kernel_.body.push_back({std::move(result), loc});
  }

  // The dimension along which the two blocks may share the sum and the statements behind it. The halves lie in different registers, no
  // statement needs more than one element of the sum at a time, and neither block reads what the other wrote.
  std::optional<int> HalvedDim(const ir::Gemm& gemm, BufferId sum, std::span<const Stmt> rest) const {
    const int rank = int(module_[sum].shape.size());
    if (gemm.c.buffer != sum || gemm.c.extents != module_.ShapeOf(sum) || !WritesApart(rest)) return std::nullopt;
    if (!std::ranges::all_of(rest, [&](const Stmt& stmt) { return TakesElements(stmt, sum); })) return std::nullopt;
    const ir::Layout layout = AccumulatorLayout(RowOf(gemm, *context_.target), ShapeOf(gemm), GridOf(gemm, kernel_.threads, *context_.target));
    for (int dim = layout.rank() - 1; dim >= 0; --dim)
      if (layout.Half(dim)) return dim + rank - layout.rank();  // the sum may have leading dimensions of one element
    return std::nullopt;
  }

  // Whether each tensor that is written has one access only, the write: a block does not wait for the other block's statements.
  bool WritesApart(std::span<const Stmt> rest) const {
    std::map<BufferId, int> accesses;
    std::set<BufferId> written;
    for (const Stmt& stmt : rest) {
      for (const Access& access : AccessesOf(module_, stmt)) {
        if (module_[access.buffer].space != ir::Space::kGlobal) continue;
        ++accesses[access.buffer];
        if (access.write) written.insert(access.buffer);
      }
    }
    return std::ranges::all_of(written, [&](BufferId id) { return accesses[id] == 1; });
  }

  bool TakesElements(const Stmt& stmt, BufferId sum) const {
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op))
      return copy->src.buffer == sum && copy->src.extents == module_.ShapeOf(sum) && module_[copy->dst.buffer].space == ir::Space::kGlobal;
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr && !ir::IsOneOf<ir::AnyElementwise>(stmt.op)) return std::holds_alternative<ir::Alloc>(stmt.op);
    if (loop == nullptr ? !WritesAll(stmt, sum) : loop->kind != ir::LoopKind::kParallel || !CoversElements(module_, *loop, sum)) return false;
    return std::ranges::all_of(AccessesOf(module_, stmt), [&](const Access& access) {
      if (access.buffer == sum)
        return access.tile ? access.extents == module_.ShapeOf(sum) : loop != nullptr && IsOwnElement(module_, *loop, access.indices);
      return !access.write && (module_[access.buffer].space == ir::Space::kGlobal || module_[access.buffer].space == ir::Space::kShared);
    });
  }

  // Whether the tile operation is over all of the sum: the tiles that it reads have as many elements along each dimension.
  bool WritesAll(const Stmt& stmt, BufferId sum) const {
    bool writes = false, as_large = true;
    ir::ForEachRegion(stmt.op, [&](const ir::Region& region, ir::Use use) {
      writes |= use != ir::Use::kRead && region.buffer == sum;
      as_large &= Wide(region.extents) == Wide(module_.ShapeOf(sum));
    });
    return writes && as_large;
  }

  // Each block runs the remaining statements for its half of the sum, which gets a fragment of its own.
  void Share(BufferId sum, int dim, ExprId part, Block rest, ir::SourceLoc loc) {
    ir::Buffer buffer{ir::Space::kFragment, module_[sum].dtype, module_[sum].shape};
    const int64_t extent = module_.ShapeOf(sum)[size_t(dim)] / 2;
    buffer.shape[size_t(dim)] = module_.exprs.Int(extent);
    const BufferId half = FreshBuffer(module_, std::move(buffer), module_[sum].name + "_half");
    kernel_.body.push_back({ir::Alloc{half}, loc});
    kernel_.body.push_back({ir::PairSum{sum, half, dim}, loc});
    for (Stmt& stmt : rest) {
      if (ir::IsOneOf<ir::Copy, ir::AnyElementwise>(stmt.op)) HalveTiles(stmt, sum, half, size_t(dim), part);
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) Halve(*loop, sum, half, size_t(dim), part);
      kernel_.body.push_back(std::move(stmt));
    }
  }

  ExprId Shifted(ExprId place, int64_t extent, ExprId part) {
    const ir::DType type = module_.exprs.Type(place);
    return module_.exprs.Add(place, module_.exprs.Mul(module_.exprs.Cast(type, part), module_.exprs.Int(extent, type)));
  }

  // The extents without those of one element, which do not count; they may stand anywhere.
  static std::vector<int64_t> Wide(std::vector<int64_t> extents) {
    std::erase(extents, 1);
    return extents;
  }

  // Which dimension of a tile belongs to a dimension of the sum.
  static size_t SameDim(const std::vector<int64_t>& sum, size_t dim, const std::vector<int64_t>& tile) {
    const auto wide = [](int64_t extent) { return extent != 1; };
    ptrdiff_t before = std::count_if(sum.begin(), sum.begin() + ptrdiff_t(dim), wide);
    size_t to = 0;
    while (!wide(tile[to]) || before-- > 0) ++to;
    return to;
  }

  // The tiles of a copy, or of what is done element by element.
  void HalveTiles(Stmt& stmt, BufferId sum, BufferId half, size_t dim, ExprId part) {
    const std::vector<int64_t> whole = module_.ShapeOf(sum);
    ir::ForEachRegion(stmt.op, [&](ir::Region& region, ir::Use) {
      const size_t at = region.buffer == sum ? dim : SameDim(whole, dim, region.extents);
      const int64_t extent = region.extents[at] /= 2;
      if (region.buffer == sum) region.buffer = half;
      else region.offsets[at] = Shifted(region.offsets[at], extent, part);
    });
  }

  void Halve(ir::For& loop, BufferId sum, BufferId half, size_t dim, ExprId part) {
    const int64_t extent = *module_.exprs.ConstInt(loop.extents[dim]) / 2;
    loop.extents[dim] = module_.exprs.Int(extent, module_.exprs.Type(loop.extents[dim]));
    Substitute(module_, loop.body, loop.vars[dim], Shifted(module_.VarRef(loop.vars[dim]), extent, part));
    std::vector<ExprId> own;
    for (ir::VarId var : loop.vars) own.push_back(module_.VarRef(var));
    ir::Walk(loop.body, [&](Stmt& inner) {
      RewriteLoads(module_, inner, sum, [&](const ir::ExprNode& node) { return module_.exprs.Load(half, node.dtype, own); });
      if (auto* store = std::get_if<ir::Store>(&inner.op); store != nullptr && store->buffer == sum) store->buffer = half, store->indices = own;
    });
  }

  // Adds an axis to the grid: which of its pair a block is.
  ExprId AddAxis() {
    const ir::DType type = module_[kernel_.block_vars[0]].dtype;
    const ir::VarId part = FreshVar(module_, ir::VarKind::kBlock, type, "half", uint8_t(kernel_.grid.size()));
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
