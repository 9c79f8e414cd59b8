// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/builder.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "clients/cpp/builder_state.h"
#include "ir/codec/encode.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

namespace kiln {

ir::SourceLoc BuilderState::Place(const std::source_location& where) {
  const auto [file, added] = files.try_emplace(where.file_name(), std::uint32_t(module.files.size()));
  if (added) module.files.emplace_back(where.file_name());
  return {file->second, where.line()};
}

void BuilderState::Report(std::string message, std::string hint, const std::source_location& where) {
  diagnostics.Error(std::move(message), std::move(hint), Place(where));
}

void BuilderState::ReportBroken(const std::source_location& where) {
  for (std::string& why : std::exchange(broken, {})) Report(std::move(why), "", where);
}

void BuilderState::Append(ir::Op op, const std::source_location& where) {
  ReportBroken(where);
  if (blocks.empty()) return Report(fmt::format("{} outside a kernel", Name(op)), "put it into the body of a Launch", where);
  blocks.back()->push_back({std::move(op), Place(where)});
}

Region Tile::Slice(std::vector<Expr> offsets, std::vector<std::int64_t> extents) const {
  return Region(*this, std::move(offsets), std::move(extents));
}

Element::operator Expr() const {
  BuilderState& state = *tile_.state_;
  const std::vector<ir::ExprId> indices = state.TakeAll(index_);
  const ir::BufferId buffer{tile_.id_};
  if (indices.size() != state.module[buffer].shape.size() || indices.size() > ir::kMaxRank) {
    state.broken.push_back(
        fmt::format("{} indices of {}, which has {} dimensions", indices.size(), state.module[buffer].name, state.module[buffer].shape.size()));
    return state.Give(state.module.exprs.Int(0));
  }
  return state.Give(state.module.exprs.Load(buffer, state.module[buffer].dtype, indices));
}

Builder::Builder(std::string name) : state_(std::make_unique<BuilderState>()) { state_->module.name = std::move(name); }
Builder::~Builder() = default;
Builder::Builder(Builder&&) noexcept = default;
Builder& Builder::operator=(Builder&&) noexcept = default;

// --- parameters

Expr Builder::Symbol(std::string name, DType dtype) {
  ir::Module& module = state_->module;
  return state_->Give(module.VarRef(module.AddVar({.kind = ir::VarKind::kSymbol, .dtype = ir::DType(dtype), .name = std::move(name)})));
}

Expr Builder::Scalar(std::string name, DType dtype) {
  ir::Module& module = state_->module;
  const ir::VarId var = module.AddVar({.kind = ir::VarKind::kScalar, .dtype = ir::DType(dtype), .name = std::move(name)});
  module.params.emplace_back(var);
  return state_->Give(module.VarRef(var));
}

Tile Builder::AddTensor(std::string name, DType dtype, const std::vector<Expr>& shape, const std::vector<Expr>& strides, const Where& where) {
  ir::Buffer buffer{.space = ir::Space::kGlobal,
                    .dtype = ir::DType(dtype),
                    .shape = state_->TakeAll(shape),
                    .strides = state_->TakeAll(strides),
                    .name = std::move(name)};
  state_->ReportBroken(where);
  return Tile(state_.get(), ir::Index(state_->module.AddBuffer(std::move(buffer))));
}

Tile Builder::Tensor(std::string name, DType dtype, std::vector<Expr> shape, std::vector<Expr> strides, Where where) {
  const Tile tile = AddTensor(std::move(name), dtype, shape, strides, where);
  state_->module.params.emplace_back(ir::BufferId(tile.id_));
  return tile;
}

Tile Builder::Output(std::string name, DType dtype, std::vector<Expr> shape, std::vector<Expr> strides, Where where) {
  const Tile tile = Tensor(std::move(name), dtype, std::move(shape), std::move(strides), where);
  state_->module.outputs.push_back(std::uint32_t(state_->module.params.size() - 1));
  return tile;
}

void Builder::MayAlias(const Tile& tensor, Where where) {
  ir::Module& module = state_->module;
  const ir::BufferId id{tensor.id_};
  if (tensor.state_ != state_.get()) return state_->Report("a tensor of another builder may not overlap tensors of this one", "", where);
  if (std::ranges::find(module.params, ir::Param(id)) == module.params.end()) {
    return state_->Report(fmt::format("{} is no tensor parameter", module[id].name), "only what a caller passes may overlap: a Tensor or an Output",
                          where);
  }
  module[id].may_alias = true;
}

Tile Builder::Workspace(std::string name, DType dtype, std::vector<Expr> shape, Where where) {
  const Tile tile = AddTensor(std::move(name), dtype, shape, {}, where);
  state_->module[ir::BufferId(tile.id_)].workspace = true;
  return tile;
}

void Builder::LaunchVars(const LaunchOptions& options, int arity, const VarsBody& body, const Where& where) {
  ir::Module& module = state_->module;
  if (!state_->blocks.empty()) return state_->Report("a kernel inside a kernel", "launch them one after the other", where);
  if (std::size_t(arity) != options.grid.size()) {
    return state_->Report(fmt::format("a grid of {} dimensions and a body of {} block indices", options.grid.size(), arity), "", where);
  }
  ir::Kernel kernel;
  kernel.grid = state_->TakeAll(options.grid);
  kernel.cluster = options.cluster;
  kernel.threads = options.threads;
  kernel.raster_panel = options.raster_panel;
  kernel.min_blocks = options.min_blocks;
  kernel.name = options.name;
  state_->ReportBroken(where);
  std::vector<Expr> vars;
  for (std::size_t axis = 0; axis < options.grid.size(); ++axis) {
    constexpr const char* kNames[] = {"bx", "by", "bz", "bw"};
    kernel.block_vars.push_back(module.AddVar(
        {.kind = ir::VarKind::kBlock, .dtype = ir::DType::kI32, .axis = std::uint8_t(axis), .name = kNames[std::min<std::size_t>(axis, 3)]}));
    vars.push_back(state_->Give(module.VarRef(kernel.block_vars.back())));
  }
  kernel.body = state_->Nested([&] { body(vars); });
  module.kernels.push_back(std::move(kernel));
}

// --- tiles

Tile Builder::AddTile(std::uint8_t space, std::string name, DType dtype, std::vector<std::int64_t> shape, const Where& where) {
  ir::Module& module = state_->module;
  ir::Buffer buffer{.space = ir::Space(space), .dtype = ir::DType(dtype), .shape = {}, .strides = {}, .name = std::move(name)};
  for (std::int64_t extent : shape) buffer.shape.push_back(module.exprs.Int(extent));
  const ir::BufferId id = module.AddBuffer(std::move(buffer));
  state_->Append(ir::Alloc{id}, where);
  return Tile(state_.get(), ir::Index(id));
}

Tile Builder::Shared(std::string name, DType dtype, std::vector<std::int64_t> shape, Where where) {
  return AddTile(std::uint8_t(ir::Space::kShared), std::move(name), dtype, std::move(shape), where);
}
Tile Builder::Fragment(std::string name, DType dtype, std::vector<std::int64_t> shape, Where where) {
  return AddTile(std::uint8_t(ir::Space::kFragment), std::move(name), dtype, std::move(shape), where);
}
Tile Builder::Local(std::string name, DType dtype, std::vector<std::int64_t> shape, Where where) {
  return AddTile(std::uint8_t(ir::Space::kLocal), std::move(name), dtype, std::move(shape), where);
}

Tile Builder::Barriers(std::string name, std::vector<std::uint32_t> arrivals, Where where) {
  ir::Module& module = state_->module;
  ir::Buffer buffer{.space = ir::Space::kBarrier, .dtype = ir::DType::kI64, .shape = {}, .strides = {}, .name = std::move(name)};
  buffer.shape.push_back(module.exprs.Int(std::int64_t(arrivals.size())));
  buffer.arrivals = std::move(arrivals);
  const ir::BufferId id = module.AddBuffer(std::move(buffer));
  state_->Append(ir::Alloc{id}, where);
  return Tile(state_.get(), ir::Index(id));
}

Expr Builder::Thread() {
  ir::Module& module = state_->module;
  const auto known = std::ranges::find(module.vars, ir::VarKind::kThread, &ir::Var::kind);
  if (known != module.vars.end()) return state_->Give(module.VarRef(ir::VarId(std::uint32_t(known - module.vars.begin()))));
  return state_->Give(module.VarRef(module.AddVar({.kind = ir::VarKind::kThread, .dtype = ir::DType::kI32, .name = "tx"})));
}

// --- the end

std::expected<std::string, Error> Builder::Finish() const {
  ir::Diagnostics diagnostics = state_->diagnostics;
  for (const std::string& why : state_->broken) diagnostics.Error(why);
  // A module with mistakes of the builder is not checked further: the verifier would report what is missing once more.
  if (!diagnostics.HasErrors() && ir::Verify(state_->module, diagnostics)) return ir::EncodeBytes(state_->module);
  Error error{.code = ErrorCode::kInvalid, .message = fmt::format("the program {} has mistakes", state_->module.name)};
  for (const ir::Diagnostic& d : diagnostics.all()) {
    const bool placed = d.loc.line != 0 && d.loc.file < state_->module.files.size();
    error.diagnostics.push_back({.severity = Severity(d.severity),
                                 .message = d.message,
                                 .hint = d.hint,
                                 .statement = d.statement,
                                 .file = placed ? state_->module.files[d.loc.file] : "",
                                 .line = d.loc.line});
    if (error.diagnostics.size() == 1) error.message += ": " + d.message;
  }
  return std::unexpected(std::move(error));
}

std::string Builder::Text() const { return ir::Print(state_->module); }

std::vector<std::string> Builder::ParameterNames() const {
  std::vector<std::string> names;
  for (const ir::Param& param : state_->module.params) names.push_back(std::visit([&](auto id) { return state_->module[id].name; }, param));
  return names;
}

}  // namespace kiln
