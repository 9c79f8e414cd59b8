// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/artifact.h"
#include "compiler/passes.h"
#include "compiler/rules/shared.h"
#include "compiler/rules/tensor.h"
#include "compiler/synchronize/shared_memory.h"
#include "ir/enum_text.h"
#include "ir/op.h"
#include "ir/text/print.h"

namespace kiln::compiler {
namespace {

using ir::Space;

class Reporter {
 public:
  Reporter(const ir::Module& module, std::span<const std::set<uint32_t>> users, v1::Report& report)
      : module_(module), users_(users), report_(report) {}

  void Statements(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      std::visit(ir::Overloaded{
                     [&](const ir::For& op) { Loop(stmt, op); },
                     [&](const ir::While& op) { Statements(op.body); },
                     [&](const ir::If& op) { Statements(op.then_body), Statements(op.else_body); },
                     [&](const ir::Gemm& op) { Gemm(stmt, op); },
                     [&](const ir::Reduce& op) {
                       Add("instructions", fmt::format("reduce {} → {}", Named(op.src), Named(op.dst)),
                           op.cluster   ? "registers, lanes, then the warps of the cluster's blocks, each of which has a part of the row"
                           : op.scratch ? "registers, lanes, then warps through shared memory"
                                        : "registers, then lanes",
                           "", stmt);
                     },
                     [&](const ir::Barrier&) { ++barriers_; },
                     [&](const ir::Alloc& op) {
                       const std::vector<uint32_t>& arrivals = module_[op.buffer].arrivals;
                       if (arrivals.empty()) return;
                       Add("synchronize", module_[op.buffer].name, fmt::format("the program's barriers, of {} arrivals", fmt::join(arrivals, ", ")),
                           "threads of different branches wait for each other", stmt);
                     },
                     [&](const ir::AsyncWait& op) {
                       if (op.product) {
                         return Add("synchronize", "wait",
                                    fmt::format("for {}, {} products in flight behind it", module_[*op.product].name, op.pending),
                                    "one sum is used while the next product is computed", stmt);
                       }
                       if (op.stores) Add("synchronize", "wait", "until tensor stores have read their tiles", "", stmt);
                     },
                     [&](const ir::Copy& op) { TensorCopy(stmt, op); },
                     [&](const ir::RingStep& op) { Ring(stmt, op); },
                     [&](const ir::PairSum& op) {
                       Add("split_pairs", fmt::format("sum of {}", module_[op.sum].name),
                           op.half ? "of two blocks that take half of k each and finish half of the tile each, through each other's shared memory"
                                   : "of two blocks that take half of k each, through shared memory of the first",
                           "", stmt);
                       Exchange(op.sum, op.vector, stmt);
                     },
                     [&](const ir::StreamSum& op) {
                       Add("stream_k", fmt::format("sum of {}", module_[op.sum].name),
                           "of blocks that share the steps of a tile, in the order of their numbers", "", stmt);
                       Exchange(op.sum, op.vector, stmt);
                     },
                     [&](const ir::Call& op) {
                       const ir::Function& function = module_[op.function];
                       Add("instructions", function.symbol, fmt::format("a function in {}, as it is", ir::Name(function.language)),
                           "all threads call it; what stands around it keeps its order", stmt);
                     },
                     ir::Ignored<ir::Let, ir::Store, ir::Assume, ir::Mma, ir::AnyElementwise, ir::Atomic, ir::Break, ir::Continue, ir::Arrive,
                                 ir::Await, ir::Registers, ir::AsyncCommit>{},
                 },
                 stmt.op);
    }
  }

  void Kernel(const ir::Kernel& kernel) {
    Statements(kernel.body);
    Add("synchronize", kernel.name, fmt::format("{} barriers", std::exchange(barriers_, 0)), "", {});
    if (kernel.shared_bytes > 0) Add("shared_memory", kernel.name, fmt::format("{} bytes of a block", kernel.shared_bytes), "", {});
    if (kernel.min_blocks != 0) {
      Add("threads", kernel.name, fmt::format("at least {} blocks on a multiprocessor", kernel.min_blocks),
          "the program asks for them: fewer registers a thread", {});
    }
    for (const ir::Decision& decision : kernel.decisions) {
      Add(decision.pass, decision.subject ? module_[*decision.subject].name : kernel.name, decision.text, decision.reason, {.loc = decision.loc});
    }
    if (kernel.producers == 0) return;
    Add("rings", kernel.name, fmt::format("{} threads compute, {} fill rings", kernel.threads, kernel.producers), "tensor copies need one thread",
        {});
  }

  void Buffers() {
    for (size_t id = 0; id < module_.buffers.size(); ++id) {
      const ir::Buffer& buffer = module_.buffers[id];
      if (!buffer.layout) continue;
      if (buffer.space == Space::kFragment) {
        Add("layouts", buffer.name, buffer.layout->ToString(), fmt::format("{} registers a thread", buffer.layout->Registers()), {});
      } else if ((buffer.space == Space::kShared || buffer.space == Space::kBarrier) && buffer.shared_offset) {
        Slot(buffer);
        if (id >= users_.size()) continue;
        auto& statements = *report_.mutable_shared_memory()->rbegin()->mutable_statements();
        statements.Assign(users_[id].begin(), users_[id].end());
        if (buffer.space == Space::kBarrier) statements.Add(0);  // no statement speaks of it
      }
    }
  }

 private:
  std::string_view Named(const ir::Region& region) const { return module_[region.buffer].name; }

  void Add(std::string_view pass, std::string_view subject, std::string decision, std::string reason, const ir::Stmt& stmt) {
    v1::Decision& out = *report_.add_decisions();
    out.set_pass(std::string(pass));
    out.set_subject(std::string(subject));
    out.set_decision(std::move(decision));
    out.set_reason(std::move(reason));
    out.set_line(stmt.loc.line);
  }

  void Gemm(const ir::Stmt& stmt, const ir::Gemm& gemm) {
    const std::string subject = fmt::format("gemm {}{} · {} → {}", Named(gemm.a), gemm.metadata ? " with " + std::string(Named(*gemm.metadata)) : "",
                                            Named(gemm.b), Named(gemm.c));
    std::string decision = gemm.plan->instruction;
    if (gemm.plan->warps_m * gemm.plan->warps_n > 1) decision += fmt::format(", {}×{} warps", gemm.plan->warps_m, gemm.plan->warps_n);
    if (gemm.plan->warps_k > 1) decision += fmt::format(", k in {} parts", gemm.plan->warps_k);
    if (gemm.plan->by_warps) decision += ", by mma.sync of each warp";
    if (gemm.plan->promoted) decision += ", each step's sums added in float32";
    Add("instructions", subject, decision, gemm.plan->by_warps ? "few columns" : "", stmt);
  }

  // Only tensor copies are still copies; the others have become loops.
  void TensorCopy(const ir::Stmt& stmt, const ir::Copy& copy) {
    const TensorTile tile = TileOf(module_, copy);
    Add("tensor_copies", fmt::format("copy {} → {}", Named(copy.src), Named(copy.dst)),
        fmt::format("tensor {} (TMA), {} boxes of {}{}{}", copy.plan->adds ? "addition" : "copy", tile.rows * tile.columns,
                    fmt::join(tile.map.box, "×"), tile.map.panels > 1 ? fmt::format(" in {} panels", tile.map.panels) : "",
                    copy.plan->multicast ? ", for both blocks of a cluster in turn" : ""),
        "", stmt);
  }

  void Ring(const ir::Stmt& stmt, const ir::RingStep& step) {
    if (step.action != ir::RingAction::kAcquire) return;
    const int64_t stages = module_.ShapeOf(step.ring.barriers)[0] / 2;
    Add("rings", module_[step.ring.barriers].name, fmt::format("{} stages of {} bytes", stages, step.bytes), "", stmt);
  }

  void Loop(const ir::Stmt& stmt, const ir::For& loop) {
    if (loop.kind != ir::LoopKind::kParallel) return Statements(loop.body);
    bool async = false;
    std::string target;
    for (const ir::Stmt& inner : loop.body) {
      if (const auto* store = std::get_if<ir::Store>(&inner.op)) {
        async |= store->async;
        target = module_[store->buffer].name;
      }
    }
    Add("threads", target.empty() ? "parallel loop" : fmt::format("{}[…] =", target), loop.layout ? loop.layout->ToString() : "",
        async ? "cp.async" : "", stmt);
    ir::Walk(loop.body, [&](const ir::Stmt& inner) {
      const auto* store = std::get_if<ir::Store>(&inner.op);
      if (store != nullptr && store->plan) Accesses(inner.loc.line != 0 ? inner : stmt, loop, *store);
    });
  }

  // How a store and its loads go; nothing where all is as simple as can be.
  void Accesses(const ir::Stmt& stmt, const ir::For& loop, const ir::Store& store) {
    const ir::StorePlan& plan = *store.plan;
    std::string how, why;
    const auto add = [&](const std::string& part) { how += (how.empty() ? "" : "; ") + part; };
    for (const ir::LoadPlan& load : plan.loads) {
      add(fmt::format("loads {} {}{}", module_[load.buffer].name, How(load, loop), load.once ? ", past the first cache" : ""));
      if (load.once) why = "nothing of it is read again";
    }
    if (plan.packed > 1) add(fmt::format("computes {} neighbours in one register", plan.packed));
    if (plan.form == ir::StoreForm::kVector && !store.async)
      add(fmt::format("stores {}{}", AtOnce(plan.width), plan.parted ? ", or one by one where not all are to be stored" : ""));
    if (plan.form == ir::StoreForm::kMatrix) add("stores matrices of a warp (stmatrix)");
    if (plan.form == ir::StoreForm::kTransposed) add("stores transposed matrices of a warp (stmatrix)");
    if (plan.kept) how += ", lines that the L2 keeps longer than what is read";
    if (plan.kept) why = "as much is read as written: lines are written back together";
    if (!how.empty()) Add("accesses", fmt::format("{}[…] =", module_[store.buffer].name), how, why, stmt);
  }

  void Exchange(ir::BufferId sum, int32_t vector, const ir::Stmt& stmt) {
    Add("accesses", fmt::format("exchange of {}", module_[sum].name), AtOnce(vector), "", stmt);
  }

  static std::string AtOnce(int32_t width) { return width == 1 ? "elements" : fmt::format("{} elements at once", width); }
  std::string How(const ir::LoadPlan& load, const ir::For& loop) const {
    switch (load.form) {
      case ir::LoadForm::kEach: return "one by one";
      case ir::LoadForm::kSame: return "once for all neighbours";
      case ir::LoadForm::kVector: return AtOnce(load.width);
      case ir::LoadForm::kAcross: return fmt::format("{} along {}", AtOnce(load.width), module_[loop.vars[load.across]].name);
      case ir::LoadForm::kAround: return fmt::format("{} from the two aligned vectors around them", AtOnce(load.width));
      case ir::LoadForm::kClipped: return fmt::format("{}, of which some may lie beyond the row or the mask", AtOnce(load.width));
      case ir::LoadForm::kGathered: return fmt::format("{}, which need not be neighbours", AtOnce(load.width));
    }
    return {};
  }

  void Slot(const ir::Buffer& buffer) {
    std::vector<int64_t> shape;
    for (ir::ExprId extent : buffer.shape) shape.push_back(module_.exprs.ConstInt(extent).value_or(1));
    v1::SharedSlot& slot = *report_.add_shared_memory();
    slot.set_buffer(buffer.name);
    slot.set_offset(uint32_t(*buffer.shared_offset));
    slot.set_bytes(uint32_t(SharedBytes(buffer)));
    slot.set_versions(buffer.versions);
    slot.set_layout(buffer.layout->ToString());
    slot.set_element_bits(uint32_t(ir::Bits(buffer.dtype)));
    for (const int64_t extent : shape) slot.add_shape(extent);
    slot.set_bank_conflicts(uint32_t(std::max<int64_t>(1, BankConflicts(*buffer.layout, shape, ir::Bits(buffer.dtype)))));
  }

  const ir::Module& module_;
  const std::span<const std::set<uint32_t>> users_;
  v1::Report& report_;
  int barriers_ = 0;
};

void AddResources(const ir::Module& module, const Context& context, const google::protobuf::RepeatedPtrField<v1::KernelResources>& known,
                  v1::Report& report) {
  for (size_t i = 0; i < module.kernels.size(); ++i) {
    v1::KernelResources& out = *report.add_kernels();
    for (const v1::KernelResources& kernel : known)
      if (kernel.entry() == EntryName(context, i)) out = kernel;
    out.set_entry(EntryName(context, i));
    // The assembler does not know of shared memory whose size is given at launch.
    out.set_shared_bytes(std::max(out.shared_bytes(), uint32_t(module.kernels[i].shared_bytes)));
  }
}

}  // namespace

namespace {

// Statements in a parallel loop's body count as the loop if they have no number of their own.
void CollectUsers(const ir::Module& module, const ir::Block& block, bool in_parallel, std::vector<std::set<uint32_t>>& users) {
  for (const ir::Stmt& stmt : block) {
    const uint32_t number = stmt.loc.line;
    if (number != 0 || !in_parallel) {
      for (const Access& access : AccessesOf(module, stmt)) users[ir::Index(access.buffer)].insert(number);
    }
    std::visit(ir::Overloaded{
                   [&](const ir::For& op) { CollectUsers(module, op.body, in_parallel || op.kind == ir::LoopKind::kParallel, users); },
                   [&](const ir::While& op) { CollectUsers(module, op.body, in_parallel, users); },
                   [&](const ir::If& op) {
                     CollectUsers(module, op.then_body, in_parallel, users);
                     CollectUsers(module, op.else_body, in_parallel, users);
                   },
                   [&](const ir::Reduce& op) {
                     if (op.scratch) users[ir::Index(*op.scratch)].insert(number);
                   },
                   ir::Ignored<ir::Alloc, ir::Let, ir::Store, ir::Assume, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Atomic,
                               ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait,
                               ir::RingStep, ir::PairSum, ir::StreamSum>{},
               },
               stmt.op);
  }
}

}  // namespace

std::vector<std::set<uint32_t>> UsersOfBuffers(const ir::Module& module) {
  std::vector<std::set<uint32_t>> users(module.buffers.size());
  for (const ir::Kernel& kernel : module.kernels) CollectUsers(module, kernel.body, false, users);
  return users;
}

v1::Report MakeReport(const ir::Module& module, const Context& context, const Generated& generated, std::span<const std::set<uint32_t>> users) {
  v1::Report report;
  Reporter reporter(module, users, report);
  for (const ir::Kernel& kernel : module.kernels) reporter.Kernel(kernel);
  reporter.Buffers();
  AddResources(module, context, generated.resources, report);
  // In the order of the passes; of one pass, in the order of kernels and statements.
  const auto row = [](const v1::Decision& decision) { return std::ranges::find(Passes(), decision.pass(), &Pass::name) - Passes().begin(); };
  std::ranges::stable_sort(*report.mutable_decisions(), {}, row);
  return report;
}

}  // namespace kiln::compiler
