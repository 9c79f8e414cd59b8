// SPDX-License-Identifier: Apache-2.0
#include "compiler/passes.h"

#include <algorithm>
#include <string>

#include "compiler/accesses/accesses.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/signals.h"
#include "compiler/dump.h"
#include "compiler/front/bounds.h"
#include "compiler/front/canonicalize.h"
#include "compiler/front/conflicts.h"
#include "compiler/front/hand_over.h"
#include "compiler/front/together.h"
#include "compiler/front/unpack.h"
#include "compiler/grid/multicast.h"
#include "compiler/grid/persist.h"
#include "compiler/grid/split_pairs.h"
#include "compiler/grid/stream_k.h"
#include "compiler/loops/clear_sums.h"
#include "compiler/loops/gathers.h"
#include "compiler/loops/overlap.h"
#include "compiler/loops/pipeline.h"
#include "compiler/loops/prefetch.h"
#include "compiler/loops/release.h"
#include "compiler/loops/rings.h"
#include "compiler/loops/scale_sums.h"
#include "compiler/loops/schedule/schedule.h"
#include "compiler/loops/split_k.h"
#include "compiler/loops/split_operands.h"
#include "compiler/loops/split_ranges.h"
#include "compiler/loops/tile_reads.h"
#include "compiler/mapping/decouple.h"
#include "compiler/mapping/depths.h"
#include "compiler/mapping/instructions.h"
#include "compiler/mapping/layouts/layouts.h"
#include "compiler/mapping/residents.h"
#include "compiler/mapping/skip_steps.h"
#include "compiler/mapping/split_stores.h"
#include "compiler/mapping/tensor_copies.h"
#include "compiler/mapping/threads.h"
#include "compiler/regions/regions.h"
#include "compiler/rows/align_stores.h"
#include "compiler/rows/split_rows.h"
#include "compiler/stage_timer.h"
#include "compiler/synchronize/chain.h"
#include "compiler/synchronize/shared_memory.h"
#include "compiler/synchronize/synchronize.h"
#include "ir/verify/verify.h"

namespace kiln::compiler {
namespace {

ir::Result Verify(ir::Module& module, const Context&, ir::Diagnostics& diagnostics) { return ir::Verify(module, diagnostics); }

// A row for what looks at one kernel at a time and refuses nothing.
template <void (*kTransform)(ir::Module&, ir::Kernel&, const Context&)>
ir::Result Each(ir::Module& module, const Context& context, ir::Diagnostics&) {
  for (ir::Kernel& kernel : module.kernels) kTransform(module, kernel, context);
  return {};
}

// The same for what gives statements other places, threads or blocks: a kernel with barriers of its own, or of
// several blocks, keeps those of the program.
template <void (*kTransform)(ir::Module&, ir::Kernel&, const Context&)>
ir::Result Inferred(ir::Module& module, const Context& context, ir::Diagnostics&) {
  for (ir::Kernel& kernel : module.kernels)
    if (!HasSignals(kernel) && !OrdersBlocks(kernel)) kTransform(module, kernel, context);
  return {};
}

constexpr Pass kPasses[] = {
    {"verify", Verify},
    {"canonicalize", Canonicalize},
    {"unpack", Unpack},                       // needs: folded indices; from here on elements are whole bytes
    {"together", Together},                   // which threads reach what; needs: folded conditions
    {"bounds", Bounds},                       // needs: folded expressions, lets in their places
    {"conflicts", Conflicts},                 // needs: the same, and indices that are inside
    {"hand_over", HandOver},                  // needs: which threads reach what, and fragments of their last shapes
    {"regions", Each<Regions>},               // needs: folded offsets; before anything is chosen: pointers and masks become copies
    {"split_rows", Inferred<SplitRows>},      // before anything is chosen: tiles become parts
    {"align_stores", Inferred<AlignStores>},  // needs: which rows a block keeps; before layouts follow from how memory is accessed
    {"decouple", Inferred<Decouple>},         // before instructions are chosen: statements get threads of their own
    {"instructions", Instructions},
    {"split_k", Inferred<SplitK>},                // needs: each gemm's instruction
    {"split_pairs", Inferred<SplitPairs>},        // needs: what split_k left undivided
    {"split_operands", Inferred<SplitOperands>},  // needs: how many groups of warps share a step
    {"scale_sums", Inferred<ScaleSums>},          // needs: the pieces of operands
    {"tile_reads", Inferred<TileReads>},          // before other copies become tensor copies: these are part of a loop
    {"tensor_copies", Each<TensorCopies>},
    {"depths", Depths},                       // needs: each gemm's instruction, and the pieces of operands
    {"layouts", Layouts},                     // needs: each gemm's instruction, and which tiles tensor copies move
    {"rings", Inferred<Rings>},               // needs: sizes of shared buffers, that is layouts
    {"prefetch", Inferred<Prefetch>},         // needs: rings
    {"overlap", Inferred<Overlap>},           // needs: bodies that prefetch repeated
    {"skip_steps", Inferred<SkipSteps>},      // needs: rings, and layouts; before loops are taken apart
    {"schedule", Inferred<Schedule>},         // needs: rings, and what overlap left in order
    {"release", Inferred<Release>},           // needs: loops that schedule has taken apart
    {"stream_k", Inferred<StreamK>},          // needs: rings; before blocks are paired, for it deals steps to single ones
    {"multicast", Inferred<Multicast>},       // needs: rings
    {"split_stores", Inferred<SplitStores>},  // needs: rings, for warp roles
    {"persist", Inferred<Persist>},           // needs: which blocks are paired
    {"gathers", Each<Gathers>},               // needs: layouts, and the threads that fill no ring
    {"pipeline", Pipeline},                   // takes the loops that have no ring
    {"split_ranges", Inferred<SplitRanges>},  // needs: layouts, and all loops in their last order
    {"clear_sums", Each<ClearSums>},          // needs: masks removed where they hold
    {"chain", Each<Chain>},                   // needs: which products start from zero
    {"shared_memory", SharedMemory},          // needs: versions
    {"synchronize", Synchronize},             // needs: which buffers share bytes
    {"threads", Threads},
    {"residents", Inferred<Residents>},  // needs: the bytes of shared memory
    {"accesses", Each<Accesses>},        // needs: the layout of every loop, and where shared buffers lie
};

bool Wanted(const v1::Explain& explain, std::string_view pass) {
  return std::ranges::any_of(explain.after(), [&](const std::string& name) { return name == "all" || name == pass; });
}

// A module that a pass broke is the compiler's fault, not the program's.
ir::Result CheckAfter(const Pass& pass, const ir::Module& module, ir::Diagnostics& diagnostics) {
  ir::Diagnostics found;
  if (ir::Verify(module, found, /*elements=*/false)) return {};
  const std::string message = found.all().empty() ? "unknown" : found.all().front().message;
  diagnostics.Internal("pass '" + std::string(pass.name) + "' left an invalid module: " + message);
  return std::unexpected(ir::Failed{});
}

}  // namespace

std::span<const Pass> Passes() { return kPasses; }

ir::Result RunPasses(ir::Module& module, const Context& context, const v1::Explain& explain, const Hooks& hooks, ir::Diagnostics& diagnostics,
                     v1::WorkerResult& result, std::span<const ir::SourceLoc> numbers) {
  for (const Pass& pass : kPasses) {
    if (hooks.cancelled()) {
      diagnostics.Internal("cancelled");
      return std::unexpected(ir::Failed{});
    }
    {
      const StageTimer timer(pass.name, hooks, result);
      if (ir::Result ran = pass.run(module, context, diagnostics); !ran) return ran;
    }
    if (&pass != kPasses) {
      if (ir::Result valid = CheckAfter(pass, module, diagnostics); !valid) return valid;
    }
    if (Wanted(explain, pass.name)) {
      v1::PassDump& dump = *result.add_dumps();
      dump.set_pass(std::string(pass.name));
      dump.set_text(DumpText(module, numbers));
    }
  }
  return {};
}

}  // namespace kiln::compiler
