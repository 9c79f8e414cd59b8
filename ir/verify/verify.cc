// SPDX-License-Identifier: Apache-2.0
#include "ir/verify/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ir/expr/numeric.h"
#include "ir/limits.h"
#include "ir/op.h"
#include "ir/verify/verifier.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

constexpr uint32_t kMaxGrid[] = {0x7fffffff, 65535, 65535};
constexpr size_t kMaxStatementText = 400;
constexpr size_t kMaxSymbol = 512;  // names that C++ makes of long templates
constexpr const char* kOnce = "name each parameter once";

// What an extent says of the symbols that are not found yet: nothing, of one what the launcher can solve, or too much.
struct Form {
  enum { kKnown, kLinear, kOther } kind = kKnown;
  uint32_t symbol = 0;
};

// To a small depth, so that expressions that share their parts cost no more.
Form FormOf(const Module& module, ExprId id, const std::vector<bool>& found, int depth = 8) {
  const ExprNode& node = module.exprs[id];
  if (node.op == ExprOp::kConstInt) return {};
  if (node.op == ExprOp::kVar) {
    if (module.vars[node.ref].kind != VarKind::kSymbol || found[node.ref]) return {};
    return {Form::kLinear, node.ref};
  }
  if (depth == 0 || (node.op != ExprOp::kAdd && node.op != ExprOp::kSub && node.op != ExprOp::kMul)) return {Form::kOther};
  const Form a = FormOf(module, node.args[0], found, depth - 1), b = FormOf(module, node.args[1], found, depth - 1);
  if (a.kind == Form::kKnown) return b;
  return b.kind == Form::kKnown ? a : Form{Form::kOther};
}

}  // namespace

Verifier::Verifier(const Module& module, Diagnostics& diagnostics)
    : module_(module),
      diagnostics_(diagnostics),
      names_(module),
      var_scope_(module.vars.size()),
      buffer_scope_(module.buffers.size()),
      checked_buffer_(module.buffers.size()),
      allocated_(module.buffers.size()),
      is_param_(module.buffers.size()),
      checked_(module.exprs.size()),
      sound_(module.exprs.size()) {}

void Verifier::Report(FaultKind kind, std::string message, std::string hint) {
  Diagnostic d{.kind = kind, .message = std::move(message), .hint = std::move(hint)};
  if (stmt_ != nullptr) d.loc = stmt_->loc;
  else if (!place_.empty()) d.message = place_ + ": " + d.message;
  if (stmt_ != nullptr && diagnostics_.all().size() < Diagnostics::kMax) {
    d.statement = PrintStmt(module_, names_, *stmt_);
    if (d.statement.size() > kMaxStatementText) d.statement.replace(kMaxStatementText, std::string::npos, " …");
  }
  diagnostics_.Add(std::move(d));
}

void Verifier::Run() {
  place_ = "parameters";
  CheckParams();
  CheckOutputs();
  CheckVars();
  CheckBuffers([this](uint32_t i) { return module_.buffers[i].space == Space::kGlobal || module_.buffers[i].workspace; });
  if (branches == 0) CheckSymbols();  // in the shapes that the program declares: a pass may halve those
  CheckFunctions();
  place_.clear();
  if (module_.kernels.empty()) Error("the function launches no kernel", "give it a kernel with a grid, threads and a body");
  for (const Kernel& kernel : module_.kernels) CheckKernel(kernel);
  // Buffers that an alloc names have been checked there.
  CheckBuffers([this](uint32_t i) { return !checked_buffer_[i]; });
}

void Verifier::CheckParams() {
  std::vector<bool> seen(module_.vars.size());
  for (const Param& param : module_.params) {
    if (auto* tensor = std::get_if<BufferId>(&param)) {
      const Buffer& buffer = module_[*tensor];
      if (is_param_[Index(*tensor)]) Error(fmt::format("{} is a parameter twice", Name(*tensor)), kOnce);
      if (buffer.space != Space::kGlobal)
        Error(fmt::format("{} is a parameter in {} memory", Name(*tensor), ir::Name(buffer.space)), "tensor parameters are global");
      if (buffer.workspace) Error(fmt::format("{} is a parameter and a workspace", Name(*tensor)), "make it one of both");
      is_param_[Index(*tensor)] = true;
    } else {
      VarId var = std::get<VarId>(param);
      if (module_[var].kind != VarKind::kScalar)
        Error(fmt::format("{} is a parameter but no scalar", Name(var)), "parameters are tensors and scalars");
      if (seen[Index(var)]) Error(fmt::format("{} is a parameter twice", Name(var)), kOnce);
      seen[Index(var)] = true;
      var_scope_[Index(var)] = true;
    }
  }
}

void Verifier::CheckFunctions() {
  const auto fits = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '.'; };
  for (size_t i = 0; i < module_.functions.size(); ++i) {
    const Function& function = module_.functions[i];
    place_ = fmt::format("function @f{}", i);
    if (function.symbol.empty() || function.symbol.size() > kMaxSymbol || !std::ranges::all_of(function.symbol, fits)) {
      Error(fmt::format("its symbol has {} bytes, or another character than letters, digits, '_', '$' and '.'", function.symbol.size()),
            fmt::format("name what the text defines, in 1 to {} of these", kMaxSymbol));
    }
    if (function.text.size() > kMaxFunctionBytes) {
      Error(fmt::format("its text has {} bytes; a function may have {}", function.text.size(), kMaxFunctionBytes), "leave out what it does not call");
    }
  }
}

void Verifier::CheckOutputs() {
  std::vector<uint32_t> sorted = module_.outputs;
  std::sort(sorted.begin(), sorted.end());
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) Error("a parameter is an output twice", "name each output once");
  for (uint32_t output : module_.outputs) {
    if (output >= module_.params.size())
      Error(fmt::format("output {} of {} parameters", output, module_.params.size()), "outputs are numbers of parameters, from 0 on");
    else if (!std::holds_alternative<BufferId>(module_.params[output])) Error(fmt::format("output {} is a scalar", output), "outputs are tensors");
  }
}

void Verifier::CheckVars() {
  for (uint32_t i = 0; i < module_.vars.size(); ++i) {
    const Var& var = module_.vars[i];
    bool is_index = var.kind != VarKind::kScalar && var.kind != VarKind::kLet;
    if (is_index && var.dtype != DType::kI32 && var.dtype != DType::kI64) {
      Error(fmt::format("{} counts and is {}", Name(VarId(i)), ir::Name(var.dtype)), "use i32 or i64");
    }
    if (var.kind == VarKind::kThread) CheckPosition(VarId(i), "the thread's number");
    if (var.kind == VarKind::kSymbol || var.kind == VarKind::kThread) var_scope_[i] = true;
  }
}

// What the hardware counts with.
void Verifier::CheckPosition(VarId id, std::string_view what) {
  if (module_[id].dtype != DType::kI64) return;
  Error(fmt::format("{}, {}, is {}", what, Name(id), ir::Name(module_[id].dtype)),
        fmt::format("declare it i32 and widen it where it is used, as i64({})", Name(id)));
}

// The launcher learns a symbol from a dimension or stride of a tensor it is given, where that is the symbol times a number, plus another;
// numbers are what it knows by then.
void Verifier::CheckSymbols() {
  std::vector<ExprId> extents;
  for (size_t i = 0; i < module_.params.size(); ++i) {
    auto* tensor = std::get_if<BufferId>(&module_.params[i]);
    if (tensor == nullptr || std::ranges::count(module_.outputs, i) > 0) continue;
    for (const auto* list : {&module_[*tensor].shape, &module_[*tensor].strides}) extents.insert(extents.end(), list->begin(), list->end());
  }
  std::vector<bool> solved(module_.vars.size());
  for (bool progress = true; progress;) {
    progress = false;
    for (ExprId id : extents) {
      const Form form = FormOf(module_, id, solved);
      if (form.kind != Form::kLinear) continue;
      solved[form.symbol] = progress = true;
    }
  }
  for (uint32_t i = 0; i < module_.vars.size(); ++i) {
    if (module_.vars[i].kind != VarKind::kSymbol || solved[i]) continue;
    place_ = "symbols";
    Error(fmt::format("{} cannot be found at launch: no dimension or stride of an input tensor is {} or a multiple of it plus a number",
                      Name(VarId(i)), Name(VarId(i))),
          "pass it as a scalar, or give an input tensor that dimension");
  }
}

// Shapes, strides and grids: what the launcher computes.
void Verifier::CheckHostExpr(ExprId id, bool scalars, std::string_view what) {
  ++round_;
  if (!CheckNode(id)) return;
  if (!IsInteger(exprs().Type(id))) Error(fmt::format("{} is {}, not an integer", what, ir::Name(exprs().Type(id))), "convert it, as i32(x)");
  std::vector<ExprId> todo = {id};
  std::unordered_set<uint32_t> seen;
  while (!todo.empty()) {
    ExprId next = todo.back();
    todo.pop_back();
    if (!seen.insert(Index(next)).second) continue;
    const ExprNode& node = exprs()[next];
    bool known =
        node.op != ExprOp::kVar || module_.vars[node.ref].kind == VarKind::kSymbol || (scalars && module_.vars[node.ref].kind == VarKind::kScalar);
    if (node.op == ExprOp::kLoad || !known) {
      Error(fmt::format("{} depends on {}, which the launcher does not know", what, PrintExpr(module_, next)),
            scalars ? "use constants, symbols and scalars" : "use constants and symbols");
      return;
    }
    todo.insert(todo.end(), node.Args().begin(), node.Args().end());
  }
}

template <typename Which>
void Verifier::CheckBuffers(Which&& which) {
  for (uint32_t i = 0; i < module_.buffers.size(); ++i) {
    place_ = fmt::format("buffer {}", Name(BufferId(i)));
    if (which(i)) CheckBuffer(BufferId(i));
  }
}

void Verifier::CheckBuffer(BufferId id) {
  const Buffer& buffer = module_[id];
  checked_buffer_[Index(id)] = true;
  bool is_global = buffer.space == Space::kGlobal;
  if (buffer.workspace && !is_global) Error(fmt::format("a workspace in {} memory", ir::Name(buffer.space)), "workspaces are global");
  if (is_global && !buffer.workspace && !buffer.view && !is_param_[Index(id)]) {
    Error("a global buffer that is neither a parameter nor a workspace", "make it a parameter, or a workspace");
  }
  if (buffer.view) CheckView(id);
  if (buffer.may_alias && !is_param_[Index(id)])
    Error("may_alias on a buffer that is not a tensor parameter", "only tensor parameters can share memory");
  if (buffer.pad_value && !is_global) Error("a pad value outside global memory", "an index outside this buffer is an error of the program");
  if (buffer.pad_value && !IsFloat(buffer.dtype) && !IsValueOf(buffer.dtype, *buffer.pad_value))
    Error(fmt::format("a pad value of {} for elements of {}", *buffer.pad_value, ir::Name(buffer.dtype)), "use a whole number that the type holds");
  for (ExprId extent : buffer.shape) CheckHostExpr(extent, buffer.view.has_value(), "the shape");
  for (ExprId stride : buffer.strides) CheckHostExpr(stride, buffer.view.has_value(), "a stride");
  is_global ? CheckTensor(id) : CheckTile(id);
  CheckArrivals(id);
  if (is_global) buffer_scope_[Index(id)] = true;
}

void Verifier::CheckView(BufferId id) {
  const Buffer &view = module_[id], &root = module_[view.view->of];
  const bool made = view.space == Space::kGlobal && !view.workspace && !is_param_[Index(id)];
  if (!made || !is_param_[Index(view.view->of)] || root.space != Space::kGlobal || root.dtype != view.dtype)
    Error(fmt::format("a view of {}", Name(view.view->of)), "a view is a global buffer of its own, and of a tensor parameter of the same type");
  if (view.strides.size() != view.shape.size()) Error("a view without strides", "name one for each dimension");
  for (ExprId expr : view.view->positive) CheckHostExpr(expr, true, "what a view asks to be positive");
}

void Verifier::CheckTensor(BufferId id) {
  const Buffer& buffer = module_[id];
  if (!buffer.strides.empty() && buffer.strides.size() != buffer.shape.size()) {
    Error(fmt::format("{} strides for {} dimensions", buffer.strides.size(), buffer.shape.size()), "give each dimension a stride, or none");
  }
  int64_t elements = 1;
  for (ExprId extent : buffer.shape) {
    std::optional<int64_t> value = exprs().ConstInt(extent);
    if (!value || *value == 0) continue;
    if (*value < 0) return Error(fmt::format("a dimension of {}", *value), "dimensions are 0 or more");
    if (__builtin_mul_overflow(elements, *value, &elements) || elements > kMaxTensorElements) {
      return Error(fmt::format("more than 2^60 elements"), "no device holds such a tensor");
    }
  }
}

// A ring's barriers (decided) have no number of arrivals: lowering counts its readers.
void Verifier::CheckArrivals(BufferId id) {
  const Buffer& buffer = module_[id];
  if (buffer.arrivals.empty()) return;
  if (buffer.space != Space::kBarrier) return Error(fmt::format("arrivals at a {} buffer", ir::Name(buffer.space)), "threads arrive at barriers");
  const std::optional<std::vector<int64_t>> shape = module_.ConstShape(id);
  if (buffer.dtype != DType::kI64 || !shape || *shape != std::vector{int64_t(buffer.arrivals.size())} || buffer.arrivals.size() > kMaxBarriers) {
    Error(fmt::format("barriers {}[{}] with {} numbers of arrivals", ir::Name(buffer.dtype), shape ? fmt::format("{}", fmt::join(*shape, ", ")) : "?",
                      buffer.arrivals.size()),
          fmt::format("use i64[n] with one number for each, and at most {}", kMaxBarriers));
  }
  for (const uint32_t count : buffer.arrivals) {
    if (count < 1 || count > kMaxArrivals) Error(fmt::format("{} arrivals at a barrier", count), fmt::format("use 1 to {}", kMaxArrivals));
  }
}

void Verifier::CheckTile(BufferId id) {
  const Buffer& buffer = module_[id];
  if (!buffer.strides.empty()) Error("strides outside global memory", "where its elements lie is the compiler's choice");
  std::optional<std::vector<int64_t>> shape = module_.ConstShape(id);
  if (!shape) return Error(fmt::format("the shape of a {} buffer is not constant", ir::Name(buffer.space)), "use a constant tile size");
  int64_t elements = 1;
  for (int64_t extent : *shape) {
    if (extent < 0) return Error(fmt::format("a dimension of {}", extent), "dimensions of tiles are 0 or more");
    if (__builtin_mul_overflow(elements, extent, &elements) || elements > kMaxTileElements) {
      return Error(fmt::format("a {} tile of {} has more than 2^24 elements", ir::Name(buffer.space), fmt::join(*shape, " × ")),
                   "shrink the tile; a block has a few hundred KiB of shared memory and registers");
    }
  }
  if (buffer.space != Space::kFragment || !buffer.layout) return;
  bool covers = buffer.layout->rank() == int(shape->size());
  for (int d = 0; covers && d < buffer.layout->rank(); ++d) covers = buffer.layout->Extent(d) >= (*shape)[size_t(d)];
  if (!covers)
    Error(fmt::format("the layout {} does not cover the shape", buffer.layout->ToString()),
          "the digits of a dimension multiply to its extent, or more");
}

void Verifier::CheckKernel(const Kernel& kernel) {
  place_ = fmt::format("kernel @{}", kernel.name);
  CheckGrid(kernel);
  if (kernel.threads < 1 || kernel.threads > kMaxThreads) {
    Error(fmt::format("{} threads in a block", kernel.threads), fmt::format("use 1 to {}", kMaxThreads));
  }
  const uint64_t all = uint64_t(kernel.threads) + kernel.producers;
  const uint64_t blocks = std::max(kernel.min_blocks, kernel.tried_blocks);
  if (blocks > kMaxResidentBlocks || blocks * all > kMaxResidentThreads) {
    Error(fmt::format("at least {} blocks of {} threads on a multiprocessor", blocks, all),
          fmt::format("it has at most {} blocks and {} threads", kMaxResidentBlocks, kMaxResidentThreads));
  }
  uint64_t cluster = 1;
  for (uint32_t size : kernel.cluster) cluster = std::min<uint64_t>(cluster * size, 1 << 20);
  bool clustered = !kernel.cluster.empty();
  if (clustered && kernel.cluster.size() != kernel.grid.size()) {
    Error("a cluster of another rank than the grid", "give it as many dimensions as the grid has");
  }
  if (clustered && (cluster < 1 || cluster > 16)) Error(fmt::format("a cluster of {} blocks", cluster), "use 1 to 16");
  size_t bound = bound_.size();
  for (size_t i = 0; i < kernel.block_vars.size(); ++i) {
    CheckPosition(kernel.block_vars[i], "a block variable");
    if (Bind(kernel.block_vars[i], VarKind::kBlock, "a block variable") && module_[kernel.block_vars[i]].axis != i) {
      Error(fmt::format("block variable {} has axis {} but stands at position {}", Name(kernel.block_vars[i]), module_[kernel.block_vars[i]].axis, i),
            "name them in the order x, y, z");
    }
  }
  threads = {0, kernel.threads};
  this->cluster = clustered ? int64_t(cluster) : 0;
  holders_.clear();
  CheckBlock(kernel.body);
  Unbind(bound);
}

void Verifier::CheckGrid(const Kernel& kernel) {
  if (kernel.grid.empty() || kernel.grid.size() > 3) return Error(fmt::format("a grid of {} dimensions", kernel.grid.size()), "use 1 to 3");
  if (kernel.block_vars.size() != kernel.grid.size()) {
    Error(fmt::format("{} block variables for a grid of {} dimensions", kernel.block_vars.size(), kernel.grid.size()),
          "give each dimension a variable");
  }
  for (size_t i = 0; i < kernel.grid.size(); ++i) {
    CheckHostExpr(kernel.grid[i], true, "the grid");
    std::optional<int64_t> extent = exprs().ConstInt(kernel.grid[i]);
    if (extent && (*extent < 0 || *extent > kMaxGrid[i])) {
      Error(fmt::format("{} blocks along {}", *extent, "xyz"[i]), fmt::format("use 0 to {}", kMaxGrid[i]));
    }
  }
}

void Verifier::CheckBranch(const Block& block, const std::optional<ThreadRange>& range) {
  if (range && (range->begin >= range->end || !threads.Holds(*range))) {
    Error(fmt::format("threads {} to {} of a branch to which threads {} to {} come", range->begin, range->end, threads.begin, threads.end),
          "name some of those threads");
  }
  if (range && InParallel()) Error("threads of a branch within a parallel loop", "its iterations have conditions of their own");
  const ThreadRange outer = std::exchange(threads, range.value_or(threads));
  const bool within = std::exchange(narrowed, narrowed || range);
  CheckBlock(block);
  threads = outer, narrowed = within;
}

void Verifier::CheckLoop(const For& op) {
  size_t bound = bound_.size();
  for (VarId var : op.vars) Bind(var, VarKind::kLoop, "a loop variable");
  loops.push_back(op.kind);
  CheckBlock(op.body);
  loops.pop_back();
  Unbind(bound);
}

void Verifier::Unbind(size_t bound) {
  for (; bound_.size() > bound; bound_.pop_back()) var_scope_[Index(bound_.back())] = false;
}

void Verifier::CheckBlock(const Block& block) {
  size_t bound = bound_.size(), brought = brought_.size();
  const Stmt* outer = stmt_;
  for (const Stmt& stmt : block) {
    stmt_ = &stmt;
    std::visit([this](const auto& op) { Check(*this, op); }, stmt.op);
    CheckOwnReads(stmt.op);
  }
  stmt_ = outer;
  Unbind(bound);
  for (; brought_.size() > brought; brought_.pop_back()) buffer_scope_[Index(brought_.back())] = false;
}

// Each thread evaluates the expressions for itself, while others may have begun to write the tile.
void Verifier::CheckOwnReads(const Op& op) {
  std::set<BufferId> written;
  ForEachRegion(op, [&](const Region& region, Use use) {
    if (use != Use::kRead) written.insert(region.buffer);
  });
  if (std::holds_alternative<Call>(op)) ForEachBuffer(op, [&](BufferId buffer) { written.insert(buffer); });
  if (written.empty()) return;
  const auto overlaps = [&](BufferId read, BufferId tile) { return read == tile || (module_[read].may_alias && module_[tile].may_alias); };
  std::vector<ExprId> open;
  ForEachExpr(op, [&](ExprId id) { open.push_back(id); });
  std::set<ExprId> seen(open.begin(), open.end());
  while (!open.empty()) {
    const ExprNode& node = exprs()[open.back()];
    open.pop_back();
    if (const BufferId read{node.ref}; node.op == ExprOp::kLoad) {
      const auto tile = std::ranges::find_if(written, [&](BufferId id) { return overlaps(read, id); });
      if (tile != written.end()) {
        const std::string shared = *tile == read ? "" : fmt::format(", which may share memory with {}", Name(*tile));
        return Error(fmt::format("an expression of the statement reads {}{}, which the statement writes", Name(read), shared),
                     "read it into a variable before the statement: x = …");
      }
    }
    for (ExprId arg : node.Args())
      if (seen.insert(arg).second) open.push_back(arg);
  }
}

Result Verify(const Module& module, Diagnostics& diagnostics, bool elements) {
  size_t errors = diagnostics.errors();
  Verifier verifier(module, diagnostics);
  verifier.branches = elements ? 0 : 1;
  verifier.Run();
  if (diagnostics.errors() > errors) return std::unexpected(Failed{});
  return {};
}

}  // namespace kiln::ir
