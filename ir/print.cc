// SPDX-License-Identifier: Apache-2.0
#include "ir/print.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "ir/print_expr.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

constexpr std::string_view kLoopKinds[] = {"", "serial", "unroll", "parallel", "vectorized", "pipelined", "persistent"};
constexpr std::string_view kPolicies[] = {"square", "full_row", "full_col"};
constexpr std::string_view kReduceKinds[] = {"", "sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor"};
constexpr std::string_view kAtomicKinds[] = {"", "add", "max", "min"};
constexpr std::string_view kCopyInstructions[] = {"direct", "async", "tensor"};
constexpr std::string_view kLoadForms[] = {"each", "same", "vector", "across", "gathered"};
constexpr std::string_view kStoreForms[] = {"registers", "vector", "matrix", "transposed"};
constexpr std::string_view kRingActions[] = {"acquire", "wait", "release", "advance"};

std::string Clean(std::string_view name) {
  std::string clean;
  for (char c : name) clean += std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return clean;
}

// Makes names unique: a name that is taken gets the next free number.
class Uniquifier {
 public:
  std::string operator()(const std::string& name) {
    std::string candidate = name;
    for (int& number = numbers_[name]; !taken_.insert(candidate).second;) candidate = fmt::format("{}_{}", name, ++number);
    return candidate;
  }

 private:
  std::set<std::string> taken_;
  std::map<std::string, int> numbers_;  // the last one tried: many equal names must not try all of them again
};

template <typename T>
std::string Joined(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ", "));
}

// Statements without their bodies.
class StmtPrinter {
 public:
  StmtPrinter(const ExprPrinter& exprs, const Module& module) : exprs_(exprs), module_(module) {}

  std::string operator()(const Alloc& op) const { return fmt::format("{} = alloc {}", exprs_(op.buffer), Type(module_[op.buffer])); }
  std::string operator()(const For& op) const {
    std::string vars;
    for (VarId var : op.vars) vars += (vars.empty() ? "" : ", ") + Declared(var);
    std::string text = fmt::format("for {} {} in {}", Name(op.kind), vars, exprs_(op.extents));
    if (op.num_stages != 0) text += fmt::format(" stages {}", op.num_stages);
    if (op.coalesced_width != 0) text += fmt::format(" coalesced {}", op.coalesced_width);
    if (op.layout) text += LayoutClause(*op.layout);
    return text + " {";
  }
  std::string operator()(const If& op) const { return fmt::format("if {}{} {{", exprs_(op.cond), Clause(op.then_threads)); }
  std::string operator()(const While& op) const { return fmt::format("while {} {{", exprs_(op.cond)); }
  std::string operator()(const Let& op) const { return fmt::format("let {} = {}", exprs_(op.var), exprs_(op.value)); }
  std::string operator()(const Store& op) const {
    return fmt::format("store {}[{}] = {}{}{}", exprs_(op.buffer), exprs_(op.indices), exprs_(op.value), op.async ? " async" : "",
                       op.plan ? Text(*op.plan) : "");
  }
  std::string operator()(const Assume& op) const { return fmt::format("assume {}", exprs_(op.cond)); }
  std::string operator()(const Copy& op) const {
    std::string text = fmt::format("copy {} -> {}", Text(op.src), Text(op.dst));
    if (op.coalesced_width != 0) text += fmt::format(" coalesced {}", op.coalesced_width);
    if (op.plan) {
      text += fmt::format(" plan {{ {} vector {}", Name(op.plan->instruction), op.plan->vector);
      if (op.plan->ring) text += " ring " + Text(*op.plan->ring);
      if (op.plan->multicast) text += " multicast";
      if (op.plan->panels) text += " panels";
      if (op.plan->groups_m != 0) text += fmt::format(" groups {} x {}", op.plan->groups_m, op.plan->groups_n);
      if (op.plan->layout) text += LayoutClause(*op.plan->layout);
      text += " }";
    }
    return text;
  }
  std::string operator()(const Gemm& op) const {
    std::string text = fmt::format("gemm {}, {} -> {}", Text(op.a), Text(op.b), Text(op.c));
    if (op.transpose_a) text += " transpose_a";
    if (op.transpose_b) text += " transpose_b";
    if (op.policy != WarpPolicy::kSquare) text += fmt::format(" policy {}", Name(op.policy));
    if (op.clear_accum) text += " clear";
    if (op.plan) {
      text += fmt::format(" plan {{ {} warps {} x {}", op.plan->instruction, op.plan->warps_m, op.plan->warps_n);
      if (op.plan->warps_k > 1) text += fmt::format(" x {}", op.plan->warps_k);
      text += fmt::format("{}{}{} }}", op.plan->by_warps ? " by_warps" : "", op.plan->in_flight ? " in_flight" : "",
                          op.plan->promoted ? " promoted" : "");
    }
    return text;
  }
  std::string operator()(const Fill& op) const { return fmt::format("fill {} = {}", Text(op.dst), exprs_(op.value)); }
  std::string operator()(const Reduce& op) const {
    return fmt::format("reduce {} {} -> {} dim {}{}{}{}", Name(op.kind), Text(op.src), Text(op.dst), op.dim, op.clear ? "" : " accumulate",
                       op.scratch ? " scratch " + exprs_(*op.scratch) : "", op.cluster ? " cluster" : "");
  }
  std::string operator()(const Atomic& op) const {
    return fmt::format("atomic {} {}[{}] = {}", Name(op.kind), exprs_(op.buffer), exprs_(op.indices), exprs_(op.value));
  }
  std::string operator()(const Barrier& op) const { return op.by_group ? "barrier groups" : "barrier"; }
  std::string operator()(const Break&) const { return "break"; }
  std::string operator()(const Continue&) const { return "continue"; }
  std::string operator()(const AsyncCommit&) const { return "async_commit"; }
  std::string operator()(const AsyncWait& op) const {
    return fmt::format("async_wait {}{}{}", op.pending, op.stores ? " stores" : "", op.product ? " product " + exprs_(*op.product) : "");
  }
  std::string operator()(const RingStep& op) const {
    std::string text = fmt::format("ring {} {}", Name(op.action), Text(op.ring));
    if (op.bytes != 0) text += fmt::format(" bytes {}", op.bytes);
    if (op.behind != 0) text += fmt::format(" behind {}", op.behind);
    return text;
  }
  std::string operator()(const PairSum& op) const {
    const std::string half = op.half ? fmt::format(" -> {} dim {}", exprs_(*op.half), op.dim) : "";
    return fmt::format("pair_sum {}{}{}", exprs_(op.sum), half, op.scratch ? " scratch " + exprs_(*op.scratch) : "");
  }
  std::string operator()(const StreamSum& op) const {
    return fmt::format("stream_sum {} partials {} flags {} block {} owns {} parts {}", exprs_(op.sum), exprs_(op.partials), exprs_(op.flags),
                       exprs_(op.block), exprs_(op.owns), exprs_(op.parts));
  }

  // "shared f16[128, 32] pad(1.0) layout(...)"
  std::string Type(const Buffer& buffer) const {
    std::string text = fmt::format("{} {}[{}]", Name(buffer.space), Name(buffer.dtype), exprs_(buffer.shape));
    if (!buffer.strides.empty()) text += fmt::format(" strides({})", exprs_(buffer.strides));
    if (buffer.pad_value) text += fmt::format(" pad({})", FloatText(DType::kF64, *buffer.pad_value));
    if (buffer.may_alias) text += " may_alias";
    if (buffer.layout) text += LayoutClause(*buffer.layout);
    if (buffer.shared_offset) text += fmt::format(" offset({})", *buffer.shared_offset);
    return text;
  }
  // " threads 0 to 64 barrier 15"
  static std::string Clause(const std::optional<ThreadRange>& threads) {
    if (!threads) return "";
    const std::string barrier = threads->barrier != 0 ? fmt::format(" barrier {}", threads->barrier) : "";
    return fmt::format(" threads {} to {}{}", threads->begin, threads->end, barrier);
  }
  // "%k", with its type where that is not i32.
  std::string Declared(VarId var) const {
    DType type = module_[var].dtype;
    return type == DType::kI32 ? exprs_(var) : fmt::format("{}: {}", exprs_(var), Name(type));
  }

 private:
  static std::string LayoutClause(const Layout& layout) { return fmt::format(" layout({})", layout.ToString()); }
  // " plan { vector 8 kept packed 2 loads %A vector 8 once, %S across 0 by 4 }"
  std::string Text(const StorePlan& plan) const {
    std::string text = fmt::format(" plan {{ {}", Name(plan.form));
    if (plan.form == StoreForm::kVector) text += fmt::format(" {}", plan.width);
    if (plan.kept) text += " kept";
    if (plan.packed > 1) text += fmt::format(" packed {}", plan.packed);
    for (const LoadPlan& load : plan.loads) {
      text += fmt::format("{}{} {}", &load == &plan.loads.front() ? " loads " : ", ", exprs_(load.buffer), Name(load.form));
      if (load.form == LoadForm::kAcross) text += fmt::format(" {} by", load.across);
      if (load.form >= LoadForm::kVector) text += fmt::format(" {}", load.width);
      if (load.once) text += " once";
    }
    return text + " }";
  }
  std::string Text(const Ring& ring) const { return fmt::format("{} at {}", exprs_(ring.barriers), exprs_(ring.position)); }
  std::string Text(const Region& region) const {
    return fmt::format("{}[{}; {}]", exprs_(region.buffer), exprs_(region.offsets), Joined(region.extents));
  }

  const ExprPrinter& exprs_;
  const Module& module_;
};

class ModulePrinter {
 public:
  explicit ModulePrinter(const Module& module) : module_(module), names_(module), exprs_(module, names_), stmts_(exprs_, module) {}

  std::string Run() {
    out_ = "kiln 1\n";
    PrintHeader();
    for (uint32_t i = 0; i < module_.buffers.size(); ++i) {
      if (module_.buffers[i].workspace) Line(1, fmt::format("workspace {}: {}", exprs_(BufferId(i)), stmts_.Type(module_.buffers[i])));
    }
    PrintScratch();
    Uniquifier unique;
    for (size_t i = 0; i < module_.kernels.size(); ++i) {
      const Kernel& kernel = module_.kernels[i];
      PrintKernel(kernel, unique(kernel.name.empty() ? fmt::format("kernel{}", i) : Clean(kernel.name)));
    }
    return std::move(out_) + "}\n";
  }

 private:
  void Line(int indent, std::string_view text) { fmt::format_to(std::back_inserter(out_), "{:{}}{}\n", "", indent * 2, text); }

  void PrintHeader() {
    std::string params;
    for (const Param& param : module_.params) {
      if (!params.empty()) params += ", ";
      if (auto* tensor = std::get_if<BufferId>(&param)) params += fmt::format("{}: {}", exprs_(*tensor), stmts_.Type(module_[*tensor]));
      if (auto* scalar = std::get_if<VarId>(&param)) params += fmt::format("{}: {}", exprs_(*scalar), Name(module_[*scalar].dtype));
    }
    std::string text = fmt::format("func @{}", module_.name.empty() ? "main" : Clean(module_.name));
    if (std::string symbols = VarsOf(VarKind::kSymbol); !symbols.empty()) text += fmt::format("[{}]", symbols);
    text += fmt::format("({})", params);
    if (!module_.outputs.empty()) text += fmt::format(" outputs({})", Joined(module_.outputs));
    if (std::string vars = VarsOf(VarKind::kThread); !vars.empty()) text += fmt::format(" thread({})", vars);
    Line(0, text + " {");
  }

  // Scratch that no statement allocates; several reductions may share one.
  void PrintScratch() {
    std::set<BufferId> scratch, allocated;
    for (const Kernel& kernel : module_.kernels) {
      Walk(kernel.body, [&](const Stmt& stmt) {
        if (auto* reduce = std::get_if<Reduce>(&stmt.op); reduce && reduce->scratch) scratch.insert(*reduce->scratch);
        if (auto* sum = std::get_if<PairSum>(&stmt.op); sum && sum->scratch) scratch.insert(*sum->scratch);
        if (auto* alloc = std::get_if<Alloc>(&stmt.op)) allocated.insert(alloc->buffer);
      });
    }
    for (BufferId id : allocated) scratch.erase(id);
    for (BufferId id : scratch) Line(1, fmt::format("scratch {}: {}", exprs_(id), stmts_.Type(module_[id])));
  }

  std::string VarsOf(VarKind kind) const {
    std::string vars;
    for (uint32_t i = 0; i < module_.vars.size(); ++i) {
      if (module_.vars[i].kind == kind) vars += (vars.empty() ? "" : ", ") + stmts_.Declared(VarId(i));
    }
    return vars;
  }

  void PrintKernel(const Kernel& kernel, const std::string& name) {
    std::string text = fmt::format("kernel @{} grid({}) threads {}", name, exprs_(kernel.grid), kernel.threads);
    if (!kernel.cluster.empty()) text += fmt::format(" cluster({})", Joined(kernel.cluster));
    if (kernel.raster_panel != 0) text += fmt::format(" raster {}", kernel.raster_panel);
    if (kernel.min_blocks != 0) text += fmt::format(" min_blocks {}", kernel.min_blocks);
    if (kernel.shared_bytes != 0) text += fmt::format(" shared_bytes {}", kernel.shared_bytes);
    if (kernel.producers != 0) text += fmt::format(" producers {}", kernel.producers);
    std::string vars;
    for (VarId var : kernel.block_vars) vars += (vars.empty() ? "" : ", ") + stmts_.Declared(var);
    Line(1, text + fmt::format(" blocks({}) {{", vars));
    PrintBlock(kernel.body, 2);
    Line(1, "}");
  }

  void PrintBlock(const Block& block, int indent) {
    for (const Stmt& stmt : block) {
      Line(indent, std::visit(stmts_, stmt.op));
      if (auto* loop = std::get_if<For>(&stmt.op)) PrintBody(loop->body, indent);
      if (auto* loop = std::get_if<While>(&stmt.op)) PrintBody(loop->body, indent);
      if (auto* branch = std::get_if<If>(&stmt.op)) PrintBranches(*branch, indent);
    }
  }
  void PrintBody(const Block& body, int indent) {
    PrintBlock(body, indent + 1);
    Line(indent, "}");
  }
  void PrintBranches(const If& branch, int indent) {
    PrintBlock(branch.then_body, indent + 1);
    if (!branch.else_body.empty()) {
      Line(indent, fmt::format("}} else{} {{", StmtPrinter::Clause(branch.else_threads)));
      PrintBlock(branch.else_body, indent + 1);
    }
    Line(indent, "}");
  }

  const Module& module_;
  Names names_;
  ExprPrinter exprs_;
  StmtPrinter stmts_;
  std::string out_;
};

}  // namespace

std::string_view Name(LoopKind kind) { return kLoopKinds[size_t(kind)]; }
std::string_view Name(WarpPolicy policy) { return kPolicies[size_t(policy)]; }
std::string_view Name(ReduceKind kind) { return kReduceKinds[size_t(kind)]; }
std::string_view Name(AtomicKind kind) { return kAtomicKinds[size_t(kind)]; }
std::string_view Name(CopyInstruction instruction) { return kCopyInstructions[size_t(instruction)]; }
std::string_view Name(LoadForm form) { return kLoadForms[size_t(form)]; }
std::string_view Name(StoreForm form) { return kStoreForms[size_t(form)]; }
std::string_view Name(RingAction action) { return kRingActions[size_t(action)]; }

Names::Names(const Module& module) {
  Uniquifier unique;
  // Given names go first, so that a made-up one yields to them.
  vars_.resize(module.vars.size());
  buffers_.resize(module.buffers.size());
  for (size_t i = 0; i < vars_.size(); ++i) {
    if (!module.vars[i].name.empty()) vars_[i] = unique(Clean(module.vars[i].name));
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!module.buffers[i].name.empty()) buffers_[i] = unique(Clean(module.buffers[i].name));
  }
  for (size_t i = 0; i < vars_.size(); ++i) {
    if (vars_[i].empty()) vars_[i] = unique(fmt::format("v{}", i));
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].empty()) buffers_[i] = unique(fmt::format("b{}", i));
  }
}

std::string Print(const Module& module) { return ModulePrinter(module).Run(); }

std::string PrintStmt(const Module& module, const Stmt& stmt) { return PrintStmt(module, Names(module), stmt); }

std::string PrintStmt(const Module& module, const Names& names, const Stmt& stmt) {
  ExprPrinter exprs(module, names);
  std::string text = std::visit(StmtPrinter(exprs, module), stmt.op);
  return text.ends_with(" {") ? text + " ... }" : text;
}

std::string PrintExpr(const Module& module, ExprId id) {
  Names names(module);
  return ExprPrinter(module, names)(id);
}

}  // namespace kiln::ir
