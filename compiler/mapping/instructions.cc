// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/instructions.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "compiler/analysis/access.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/thread_range.h"
#include "compiler/analysis/threads/walk_together.h"
#include "compiler/mapping/register_budget.h"
#include "compiler/mapping/tensor_copies.h"
#include "compiler/rewrite/dense.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Space;

struct Partition {
  int64_t warps_m, warps_n;
};

// Takes as many warps as divide the shape evenly; the policy chooses among equal counts. `reads`: how often a thread reads operands with a
// partition, which decides between equals.
Partition PartitionWarps(int64_t atoms_m, int64_t atoms_n, int64_t warps, ir::WarpPolicy policy, const target::MmaInstruction& mma,
                         const auto& reads) {
  Partition best{1, 1};
  auto best_rank = std::tuple(int64_t{0}, int64_t{0}, 0.0, int64_t{0});
  bool first = true;
  for (int64_t m = 1; m <= warps; ++m) {
    if (atoms_m % m != 0) continue;
    for (int64_t n = 1; n * m <= warps; ++n) {
      if (atoms_n % n != 0 || warps % (m * n) != 0) continue;
      // Elements of both operands that one warp reads: less is better.
      const int64_t perimeter = atoms_m / m * mma.m + atoms_n / n * mma.n;
      const int64_t preference = policy == ir::WarpPolicy::kFullRow ? m : policy == ir::WarpPolicy::kFullCol ? n : -perimeter;
      const double wide = -reads(Partition{m, n});
      const auto rank = policy == ir::WarpPolicy::kSquare ? std::tuple(m * n, preference, wide, m) : std::tuple(preference, m * n, wide, m);
      if (first || rank > best_rank) {
        first = false;
        best_rank = rank;
        best = {m, n};
      }
    }
  }
  return best;
}

// Registers of a thread that hold no fragments, but addresses and what is computed from them. A choice: ptxas does not tell how many it needs.
constexpr int64_t kOtherRegisters = 31;

class Chooser {
 public:
  Chooser(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) : module_(module), context_(context), diagnostics_(diagnostics) {}

  void Run() {
    for (ir::Kernel& kernel : module_.kernels) {
      threads_ = kernel.threads;
      if (threads_ > context_.target->max_threads) {
        diagnostics_.Error(std::to_string(threads_) + " threads; " + std::string(context_.target->name) + " has at most " +
                               std::to_string(context_.target->max_threads) + " in a block",
                           "use fewer threads");
        continue;
      }
      if (!LocalsFit(kernel)) continue;
      FindChosen(kernel);
      FindChains(kernel);
      FindPlain(kernel);
      kernel_ = &kernel;
      filling_ = HasSignals(kernel) || OrdersBlocks(kernel) ? 0 : kProducers;
      fragment_words_.clear();
      ChooseAll(kernel);
      const size_t buffers = module_.buffers.size();
      MakeDenseIn(kernel.body);
      if (module_.buffers.size() == buffers) continue;
      Declare(module_, kernel, buffers);
      ChooseAll(kernel);
    }
  }

 private:
  void ChooseAll(ir::Kernel& kernel) {
    Choose(kernel);
    // A shared tile has one layout, so it must suit every product that reads the tile.
    while (FindMixed(kernel.body)) Choose(kernel);
  }

  // Each sparse operand that no instruction takes becomes a dense one before its product. A product that is refused has no plan.
  void MakeDenseIn(ir::Block& block) {
    for (size_t i = 0; i < block.size(); ++i) {
      ir::ForEachBody(block[i].op, [&](ir::Block& body) { MakeDenseIn(body); });
      auto* gemm = std::get_if<ir::Gemm>(&block[i].op);
      if (gemm == nullptr || !gemm->metadata || !gemm->plan || RowOf(*gemm, *context_.target).IsSparse()) continue;
      const ir::SourceLoc loc = block[i].loc;
      kernel_->decisions.push_back({"instructions", gemm->a.buffer, "becomes dense in shared memory",
                                    fmt::format("no instruction of {} multiplies such a sparse tile", context_.target->name), loc});
      ir::For loop = MakeDense(module_, *gemm);
      block.insert(block.begin() + ptrdiff_t(i++), {std::move(loop), loc});
    }
  }

  // The instructions that the program has chosen itself.
  void FindChosen(ir::Kernel& kernel) {
    WalkTogether(module_, kernel, [&](ir::Stmt& stmt, const Facts&, const ir::ThreadRange& threads) {
      const auto* mma = std::get_if<ir::Mma>(&stmt.op);
      if (mma == nullptr) return;
      const auto type = [&](const ir::Region& region) { return ir::Name(module_[region.buffer].dtype); };
      const target::MmaInstruction* row = RowOf(*mma, module_, *context_.target);
      const uint32_t lanes = context_.target->warp_size;
      if (row == nullptr) {
        diagnostics_.Unsupported(
            fmt::format("{} has no instruction of a warp that multiplies {} × {} × {} of {} and {} into {}, {}, {} and {} of them "
                        "in each thread",
                        context_.target->name, mma->m, mma->n, mma->k, type(mma->a), type(mma->b), type(mma->c), mma->a.extents[0], mma->b.extents[0],
                        mma->c.extents[0]),
            "use T.gemm, for which the compiler chooses among those that it has", stmt.loc);
      } else if (threads.begin % lanes != 0 || threads.end % lanes != 0) {
        diagnostics_.Error(fmt::format("an instruction of whole warps that threads {} to {} come to", threads.begin, threads.end - 1),
                           fmt::format("let whole warps of {} come", lanes), stmt.loc);
      } else {
        kernel.decisions.push_back({"instructions", mma->c.buffer, std::string(row->name), "the program names it", stmt.loc});
      }
    });
  }

  // Functions of other languages find shared memory by rows, as no instruction reads it that reads shared memory itself.
  void FindPlain(const ir::Kernel& kernel) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      if (IsCall(stmt)) ir::ForEachBuffer(stmt.op, [&](BufferId buffer) { mixed_.insert(buffer); });
    });
  }

  // Fragments that loops compute element by element from each other are best held alike. Where sums so become another product's A, as weights do in
  // attention, warps have whole rows of both products' sums: a warp then holds the rows of A that it multiplies.
  void FindChains(const ir::Kernel& kernel) {
    alike_.clear(), in_rows_.clear();
    std::vector<const ir::Gemm*> gemms;
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) gemms.push_back(gemm);
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop == nullptr || loop->kind != ir::LoopKind::kParallel) return;
      std::optional<BufferId> first;
      for (const Access& access : AccessesOf(module_, stmt)) {
        if (module_[access.buffer].space != Space::kFragment || !IsOwnElement(module_, *loop, access.indices)) continue;
        if (first) alike_[AlikeTo(access.buffer)] = AlikeTo(*first);
        first = access.buffer;
      }
    });
    const auto is_held = [&](const ir::Gemm& gemm) { return !gemm.transpose_a && module_[gemm.a.buffer].space == Space::kFragment; };
    std::set<BufferId> sums;
    for (const ir::Gemm* gemm : gemms) sums.insert(AlikeTo(gemm->c.buffer));
    for (const ir::Gemm* gemm : gemms)
      if (is_held(*gemm) && sums.contains(AlikeTo(gemm->a.buffer))) in_rows_.insert(AlikeTo(gemm->a.buffer));
    for (size_t known = 0; known != in_rows_.size();) {
      known = in_rows_.size();
      for (const ir::Gemm* gemm : gemms)
        if (is_held(*gemm) && in_rows_.contains(AlikeTo(gemm->a.buffer))) in_rows_.insert(AlikeTo(gemm->c.buffer));
    }
  }

  // One of the fragments that are best held as this one is.
  BufferId AlikeTo(BufferId buffer) const {
    for (auto other = alike_.find(buffer); other != alike_.end() && other->second != buffer; other = alike_.find(buffer)) buffer = other->second;
    return buffer;
  }

  ir::WarpPolicy PolicyOf(const ir::Gemm& gemm) const {
    const bool in_rows = in_rows_.contains(AlikeTo(gemm.c.buffer));
    return in_rows && gemm.policy == ir::WarpPolicy::kSquare ? ir::WarpPolicy::kFullRow : gemm.policy;
  }

  bool LocalsFit(const ir::Kernel& kernel) {
    int64_t bytes = 0;
    ir::SourceLoc largest;
    int64_t most = 0;
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
      if (alloc == nullptr || module_[alloc->buffer].space != Space::kLocal) return;
      int64_t bits = ir::Bits(module_[alloc->buffer].dtype);
      for (int64_t extent : module_.ShapeOf(alloc->buffer)) bits *= extent;
      bytes += (bits + 7) / 8;
      if (bits > most) most = bits, largest = stmt.loc;
    });
    if (bytes <= int64_t(context_.target->MaxLocalBytes())) return true;
    diagnostics_.Error(fmt::format("the arrays of each thread take {} bytes; {} has {} for a thread", bytes, context_.target->name,
                                   context_.target->MaxLocalBytes()),
                       "make them smaller, or share one among the block's threads with T.alloc_shared or T.alloc_fragment", largest);
    return false;
  }

  // Adds the operands that one gemm's instruction reads from shared memory itself and another's does not; true if there are new ones.
  bool FindMixed(const ir::Block& body) {
    std::set<BufferId> grouped, single;
    ir::Walk(body, [&](const ir::Stmt& stmt) {
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr || !gemm->plan) return;
      std::set<BufferId>& readers = RowOf(*gemm, *context_.target).reads_shared ? grouped : single;
      readers.insert({gemm->a.buffer, gemm->b.buffer});
    });
    const size_t before = mixed_.size();
    std::ranges::set_intersection(grouped, single, std::inserter(mixed_, mixed_.end()));
    return mixed_.size() != before;
  }

  void Choose(ir::Kernel& kernel) {
    WalkTogether(module_, kernel, [this](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange& threads) {
      loc_ = stmt.loc, range_ = threads;
      if (auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) ChooseGemm(*gemm);
      if (auto* copy = std::get_if<ir::Copy>(&stmt.op)) ChooseCopy(*copy, facts);
    });
  }

  // Of a block without whole warps a warning, too: its author may not know what it costs.
  void SayOneByOne(const ir::Gemm& gemm) {
    kernel_->decisions.push_back({"instructions", gemm.c.buffer,
                                  fmt::format("products one by one, by threads {} to {}", range_.begin, range_.end - 1),
                                  "matrix instructions take whole warps", loc_});
    const unsigned warp = context_.target->warp_size;
    if (threads_ % warp == 0) return;
    diagnostics_.Warning(fmt::format("{} threads are not a whole number of warps of {}: no matrix instruction computes this product", threads_, warp),
                         fmt::format("use a multiple of {} threads", warp), loc_);
  }

  void ChooseGemm(ir::Gemm& gemm) {
    if (gemm.c.extents != module_.ShapeOf(gemm.c.buffer)) {
      diagnostics_.Unsupported("a gemm accumulates into a part of '" + module_[gemm.c.buffer].name + "'",
                               "give it a fragment of its own and copy that", loc_);
      return;
    }
    const GemmShape shape = ShapeOf(gemm);
    const ir::DType a = module_[gemm.a.buffer].dtype, b = module_[gemm.b.buffer].dtype, c = module_[gemm.c.buffer].dtype;
    ir::GemmPlan plan = PlanWith(ScalarInstruction(gemm, shape, a, b, c));
    if (!IsOfWholeWarps(range_, context_.target->warp_size)) {
      if (!gemm.plan) SayOneByOne(gemm);
      gemm.plan = std::move(plan);
      return;
    }
    const int64_t warps = range_.Count() / context_.target->warp_size;
    const bool in_rows = in_rows_.contains(AlikeTo(gemm.c.buffer));
    auto best = std::tuple(1e300, true, 1e300, 1e300);
    for (const target::MmaInstruction& mma : target::MmaInstructions(*context_.target)) {
      if (!Suits(mma, module_, gemm) || (mma.IsByGroup() && !WgmmaFits(gemm, mma, warps))) continue;
      // With several groups along m, each would hold all of b's columns in registers.
      const auto of_partition = [&](const Partition& p) { return Reads(gemm, mma, p, 64); };
      const Partition p = PartitionWarps(mma.swapped ? 1 : shape.m / mma.m, shape.n / mma.n, warps / mma.Warps(), PolicyOf(gemm), mma, of_partition);
      if (mma.IsByGroup() && !mma.swapped && !ReadsB(gemm, mma, shape.n / p.warps_n)) continue;
      const double issued = double(shape.m / mma.m / p.warps_m) * double(shape.n / mma.n / p.warps_n) * double(shape.k / mma.k);
      // Operand elements an instruction takes for each product: the tie-break between equal rates.
      const double feed = double(mma.m + mma.n) / (double(mma.m) * mma.n) + 1.0 / mma.k;
      // A swapped product has columns of sums in its warps, which a product that takes them as rows gets through shared memory.
      if (const auto cost = std::tuple(issued * mma.cycles, in_rows && mma.swapped, Reads(gemm, mma, p, 32), feed); cost < best) {
        best = cost;
        plan = PlanWith(mma, p.warps_m, p.warps_n);
        plan.promoted = IsPromoted(gemm, mma);
        plan.by_warps = IsFasterByWarps(module_, gemm, mma, *context_.target);
      }
    }
    gemm.plan = std::move(plan);
  }

  // How often a thread reads operands from shared memory, where no instruction reads whole matrices: with few instructions along a dimension
  // that is contiguous in memory, each time brings few elements. `most`: bits that count as one time. Two reads of 32 bits are mostly one
  // instruction, so that between instructions, on which the layouts of all fragments depend, only narrower reads make a difference.
  double Reads(const ir::Gemm& gemm, const target::MmaInstruction& mma, const Partition& p, int64_t most) const {
    if (context_.target->Has(target::Feature::kLdMatrix)) return 0;
    const GemmShape shape = ShapeOf(gemm);
    const auto reads = [&](const ir::Region& region, bool k_is_last, const ir::Layout& atom, int64_t atoms) {
      const ir::Buffer& buffer = module_[region.buffer];
      if (buffer.space != Space::kShared) return 0.0;
      const int64_t wide = std::max<int64_t>(1, most / ir::Bits(buffer.dtype));
      const int64_t at_once = std::gcd(k_is_last ? atom.Registers() : Neighbours(*context_.target, buffer.dtype, atoms), wide);
      return double(atoms * atom.Registers()) / double(at_once) * double(shape.k / mma.k);
    };
    return reads(gemm.a, !gemm.transpose_a, mma.a_layout, shape.m / mma.m / p.warps_m) +
           reads(gemm.b, gemm.transpose_b, mma.b_layout, shape.n / mma.n / p.warps_n);
  }

  // Registers that fragments take at a time if they are spread evenly.
  int64_t FragmentWords() {
    const auto [known, is_new] = fragment_words_.try_emplace(std::pair(range_.begin, range_.end));
    if (is_new) known->second = MostEvenWords(module_, *kernel_, range_);
    return known->second;
  }

  bool IsPromoted(const ir::Gemm& gemm, const target::MmaInstruction& mma) const {
    return mma.short_sums && !gemm.clear_accum && !context_.options.fast_accumulation();
  }

  bool HasRegisters(const target::MmaInstruction& mma) const {
    const int64_t start = int64_t(context_.target->registers_per_multiprocessor) / (threads_ + filling_) / 8 * 8;
    return RegistersAtStartFor(mma) <= start;
  }

  // Shared operands must lie in memory as the instruction reads them. Only the instruction's A may be a fragment.
  bool WgmmaFits(const ir::Gemm& gemm, const target::MmaInstruction& mma, int64_t warps) {
    if (context_.options.disable_wgmma()) return false;
    if (range_.begin % kGroupThreads != 0 || warps % mma.Warps() != 0) return false;
    const int64_t own = IsPromoted(gemm, mma) ? mma.c_layout.Registers() : 0;
    // ptxas serialises wgmma where registers run short, which costs more than the spills of mma.sync.
    if (FragmentWords() + own + kOtherRegisters > int64_t(context_.target->registers_per_thread)) return false;
    if (mixed_.contains(gemm.a.buffer) || mixed_.contains(gemm.b.buffer)) return false;
    if (!HasRegisters(mma)) return false;
    if (mma.swapped) {
      const bool b_in_registers = gemm.transpose_b && IsOperandFragment(gemm.b);
      return (b_in_registers || ReadsB(gemm, mma, mma.n)) && ReadsA(gemm, mma);
    }
    const bool a_in_registers = !gemm.transpose_a && IsOperandFragment(gemm.a);
    return (a_in_registers || ReadsA(gemm, mma)) && ReadsB(gemm, mma, mma.n);
  }

  bool ReadsA(const ir::Gemm& gemm, const target::MmaInstruction& mma) const {
    return WgmmaReads(module_, gemm.a, !gemm.transpose_a, gemm.transpose_a ? mma.m : mma.KeptK());
  }
  bool ReadsB(const ir::Gemm& gemm, const target::MmaInstruction& mma, int64_t columns) const {
    return WgmmaReads(module_, gemm.b, gemm.transpose_b, gemm.transpose_b ? mma.k : columns);
  }

  bool IsOperandFragment(const ir::Region& region) const {
    const ir::Buffer& buffer = module_[region.buffer];
    return buffer.space == Space::kFragment && region.extents == module_.ShapeOf(region.buffer) && WgmmaTile(region.extents, ir::Bits(buffer.dtype));
  }

  const target::MmaInstruction& ScalarInstruction(const ir::Gemm& gemm, const GemmShape& shape, ir::DType a, ir::DType b, ir::DType c) const {
    const bool bytes = ir::IsInteger(a) && ir::IsInteger(b) && ir::Bits(a) == 8 && ir::Bits(b) == 8 && c == ir::DType::kI32;
    // Four neighbours along k lie in one aligned word.
    const auto aligned = [&](const ir::Region& region) {
      return module_.ShapeOf(region.buffer).back() % 4 == 0 && module_.exprs.ConstInt(region.offsets.back()).value_or(1) % 4 == 0;
    };
    const bool contiguous = !gemm.transpose_a && gemm.transpose_b && shape.k % 4 == 0 && aligned(gemm.a) && aligned(gemm.b);
    return bytes && contiguous && context_.target->Has(target::Feature::kDp4a) ? target::Dp4a() : target::Fma();
  }

  void ChooseCopy(ir::Copy& copy, const Facts& facts) {
    const ir::Buffer& src = module_[copy.src.buffer];
    const ir::Buffer& dst = module_[copy.dst.buffer];
    ir::CopyPlan plan;
    const int bits = std::max(ir::Bits(src.dtype), ir::Bits(dst.dtype));
    int64_t vector = std::max<int64_t>(1, 128 / bits);
    if (copy.coalesced_width > 0) vector = std::min<int64_t>(vector, copy.coalesced_width);
    vector = std::gcd(vector, InnerExtent(copy));
    const int64_t to = Width(copy.dst, facts, vector, /*clipped=*/false), clipped = std::min(Width(copy.src, facts, vector, /*clipped=*/true), to);
    vector = std::min(Width(copy.src, facts, vector, /*clipped=*/false), to);
    // cp.async stops at the end of a row.
    if (clipped > vector && PlainInstruction(module_, copy, clipped, context_) == ir::CopyInstruction::kAsync) vector = clipped;
    plan.vector = int32_t(vector);
    plan.instruction = PlainInstruction(module_, copy, vector, context_);
    copy.plan = std::move(plan);
  }

  static int64_t InnerExtent(const ir::Copy& copy) {
    for (size_t i = copy.src.extents.size(); i-- > 0;)
      if (copy.src.extents[i] != 1) return i + 1 == copy.src.extents.size() ? copy.src.extents[i] : 1;
    return 1;
  }

  // The largest power of two ≤ `vector` of neighbouring elements that every access of the region may take at once: aligned, and
  // inside or outside of the buffer as a whole, unless `clipped` by the end of a row.
  int64_t Width(const ir::Region& region, const Facts& facts, int64_t vector, bool clipped) const {
    const ir::Buffer& buffer = module_[region.buffer];
    if (region.extents.empty() || region.extents.back() == 1) return 1;
    if (buffer.space != Space::kGlobal) return std::gcd(vector, facts.DivisorOf(region.offsets.back()));
    vector = std::min<int64_t>(vector, std::max<int64_t>(1, context_.pointer_alignment() * 8 / ir::Bits(buffer.dtype)));
    const size_t last = region.offsets.size() - 1;
    int64_t divisor = facts.DivisorOf(region.offsets[last]);
    if (!buffer.strides.empty() && !module_.exprs.IsConst(buffer.strides[last], 1)) return 1;
    for (size_t d = 0; d < last; ++d) {
      if (region.extents[d] == 1 && module_.exprs.IsConst(region.offsets[d], 0)) continue;
      divisor = std::gcd(divisor, RowStrideDivisor(buffer, d, facts));
    }
    if (!clipped && !facts.Inside(region.offsets[last], region.extents[last], buffer.shape[last])) {
      divisor = std::gcd(divisor, facts.DivisorOf(buffer.shape[last]));
    }
    return std::gcd(vector, divisor);
  }

  static int64_t RowStrideDivisor(const ir::Buffer& buffer, size_t d, const Facts& facts) {
    if (!buffer.strides.empty()) return facts.DivisorOf(buffer.strides[d]);
    int64_t stride = 1;
    for (size_t inner = d + 1; inner < buffer.shape.size(); ++inner) stride *= std::max<int64_t>(1, facts.DivisorOf(buffer.shape[inner]));
    return stride;
  }

  ir::Module& module_;
  const Context& context_;
  ir::Diagnostics& diagnostics_;
  int64_t threads_ = 0;      // of the block
  ir::ThreadRange range_{};  // of these, the threads that come to the statement
  ir::Kernel* kernel_ = nullptr;
  int64_t filling_ = 0;                                            // threads that may fill rings
  std::map<std::pair<int64_t, int64_t>, int64_t> fragment_words_;  // by the first thread and the one behind the last
  ir::SourceLoc loc_;
  std::map<BufferId, BufferId> alike_;  // fragments, by another that is best held as they are
  std::set<BufferId> in_rows_;          // by the last of these: warps have whole rows
  std::set<BufferId> mixed_;            // operands that must stay readable by single warps
};

// What the program pins and the target has no instruction for.
void RefusePinned(const ir::Module& module, const target::Target& target, ir::Diagnostics& diagnostics) {
  const bool has_mbarriers = target.Has(target::Feature::kTma), has_clusters = target.Has(target::Feature::kCluster);
  for (const ir::Kernel& kernel : module.kernels) {
    bool told = false;
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      const bool lacks_cluster = !has_clusters && (IsClusterBarrier(stmt) || GoesToOtherBlocks(stmt));
      if (told || !(lacks_cluster || (!has_mbarriers && IsSignal(stmt)))) return;
      told = true;
      lacks_cluster
          ? diagnostics.Unsupported(fmt::format("'{}' of a cluster's blocks: {} has no clusters", ir::Name(stmt.op), target.name),
                                    "compile for cuda:sm_90a, or let the blocks meet in global memory", stmt.loc, ir::PrintStmt(module, stmt))
          : diagnostics.Unsupported(
                fmt::format("'{}' with barriers of the program: {} has no mbarriers that threads wait for", ir::Name(stmt.op), target.name),
                "leave the barriers out, so that each statement sees the effects of those before, or compile for cuda:sm_90a", stmt.loc,
                ir::PrintStmt(module, stmt));
    });
  }
}

}  // namespace

ir::Result Instructions(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  RefusePinned(module, *context.target, diagnostics);
  if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
  Chooser(module, context, diagnostics).Run();
  if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
