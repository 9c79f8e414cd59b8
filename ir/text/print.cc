// SPDX-License-Identifier: Apache-2.0
#include "ir/text/print.h"

#include <fmt/format.h>

#include <map>
#include <set>

#include "ir/enum_text.h"
#include "ir/text/lexer.h"
#include "ir/text/print_expr.h"
#include "ir/text/print_stmt.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

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

class ModulePrinter {
 public:
  explicit ModulePrinter(const Module& module) : module_(module), names_(module), exprs_(module, names_), stmts_(exprs_, module) {}

  std::string Run() {
    out_ = "kiln 1\n";
    PrintHeader();
    for (uint32_t i = 0; i < module_.functions.size(); ++i) PrintFunction(FunctionId(i));
    for (uint32_t i = 0; i < module_.buffers.size(); ++i) {
      if (module_.buffers[i].workspace) Line(1, fmt::format("workspace {}: {}", exprs_(BufferId(i)), stmts_.Type(module_.buffers[i])));
    }
    for (uint32_t i = 0; i < module_.buffers.size(); ++i) {
      if (module_.buffers[i].view) Line(1, fmt::format("view {}: {}", exprs_(BufferId(i)), stmts_.Type(module_.buffers[i])));
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

  void PrintFunction(FunctionId id) {
    const Function& function = module_[id];
    Line(1, fmt::format("function {} {} \"{}\" {{", StmtPrinter::Callee(id), Name(function.language), Escaped(function.symbol)));
    for (size_t start = 0, end = 0; end != std::string::npos; start = end + 1) {
      end = function.text.find('\n', start);
      Line(2, fmt::format("\"{}\"", Escaped(std::string_view(function.text).substr(start, end == std::string::npos ? end : end - start))));
    }
    Line(1, "}");
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
    if (kernel.tried_blocks != 0) text += fmt::format(" tried_blocks {}", kernel.tried_blocks);
    std::string vars;
    for (VarId var : kernel.block_vars) vars += (vars.empty() ? "" : ", ") + stmts_.Declared(var);
    Line(1, text + fmt::format(" blocks({}) {{", vars));
    PrintBlock(kernel.body, 2);
    Line(1, "}");
  }

  void PrintBlock(const Block& block, int indent) {
    for (const Stmt& stmt : block) {
      Line(indent, stmts_(stmt.op));
      if (auto* branch = std::get_if<If>(&stmt.op)) PrintBranches(*branch, indent);
      else ForEachBody(stmt.op, [&](const Block& body) { PrintBody(body, indent); });
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
  std::string text = StmtPrinter(exprs, module)(stmt.op);
  return text.ends_with(" {") ? text + " ... }" : text;
}

std::string PrintExpr(const Module& module, ExprId id) {
  Names names(module);
  return ExprPrinter(module, names)(id);
}

}  // namespace kiln::ir
