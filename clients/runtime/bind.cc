// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/bind.h"

#include <fmt/format.h>

#include <algorithm>

#include "clients/runtime/solve.h"
#include "clients/runtime/tensor_map.h"

namespace kiln::runtime {
namespace {

constexpr int kMaxLaunches = 256;
constexpr size_t kMaxTensorMaps = 256, kMaxViews = 256;
constexpr uint32_t kMaxThreads = 1024;
constexpr std::array<int64_t, 3> kMaxGrid = {0x7fffffff, 65535, 65535};

std::string_view PlaceName(Place place) {
  switch (place) {
    case Place::kHost: return "cpu";
    case Place::kCuda: return "cuda";
    case Place::kPinned: return "cuda_host";
    case Place::kHip: return "rocm";
    case Place::kHipPinned: return "rocm_host";
    case Place::kManaged: return "cuda_managed";
  }
  return "unknown device";
}

// Memory that the kernel can reach: that of its own device and, for CUDA, managed memory.
bool Reachable(Place wanted, Place given) { return given == wanted || (wanted == Place::kCuda && given == Place::kManaged); }

// Bytes between elements; loads and stores of one element rely on it.
uint32_t ElementAlignment(DType dtype) { return std::max<uint32_t>(1, Find(dtype)->bits / 8); }

bool HasElements(const Arg& arg) { return arg.kind == Arg::Kind::kTensor && std::ranges::find(arg.tensor.shape, 0) == arg.tensor.shape.end(); }

template <class Proto>
Result<std::vector<HostExpr>> ParseAll(const Proto& protos, size_t symbols, const std::vector<bool>& integer_scalar) {
  std::vector<HostExpr> parsed;
  for (const auto& proto : protos) {
    auto expr = HostExpr::Parse(proto, symbols, integer_scalar);
    if (!expr) return std::unexpected(expr.error());
    parsed.push_back(std::move(*expr));
  }
  return parsed;
}

}  // namespace

std::optional<uint64_t> ElementCount(std::span<const int64_t> shape) {
  uint64_t count = 1;
  bool overflow = false;
  for (int64_t extent : shape) {
    if (extent < 0) return std::nullopt;
    if (extent == 0) return 0;
    overflow |= __builtin_mul_overflow(count, uint64_t(extent), &count);
  }
  if (overflow || count > uint64_t(INT64_MAX)) return std::nullopt;
  return count;
}

Result<Binder> Binder::Create(LaunchInfo info, std::string name, Place place, int device) {
  Binder binder;
  binder.info_ = std::move(info);
  binder.name_ = std::move(name);
  binder.place_ = place;
  binder.device_ = device;
  if (binder.info_.params.size() > kMaxParams || binder.info_.launches.size() > kMaxLaunches)
    return ArtifactError(fmt::format("the artifact has {} parameters and {} launches; at most {} and {} are allowed", binder.info_.params.size(),
                                     binder.info_.launches.size(), kMaxParams, kMaxLaunches));
  if (binder.info_.launches.size() == 0) return ArtifactError("the artifact launches nothing");
  std::vector<bool> integer_scalar;
  for (const auto& param : binder.info_.params) integer_scalar.push_back(!param.tensor && IsInteger(param.dtype));
  if (auto ok = binder.ParseParams(integer_scalar); !ok) return std::unexpected(ok.error());
  if (auto ok = binder.ParseViews(integer_scalar); !ok) return std::unexpected(ok.error());
  if (auto ok = binder.ParseTensorMaps(); !ok) return std::unexpected(ok.error());
  if (auto ok = binder.ParseLaunches(integer_scalar); !ok) return std::unexpected(ok.error());
  std::vector<bool> in_key(binder.params_.size());
  auto mark = [&](const std::vector<HostExpr>& exprs) {
    for (const HostExpr& expr : exprs) expr.MarkScalars(in_key);
  };
  for (const Param& param : binder.params_) mark(param.shape), mark(param.strides);
  for (const ParsedView& view : binder.views_) mark(view.shape), mark(view.strides), mark(view.positive);
  for (const auto& exprs : binder.grids_) mark(exprs);
  for (const auto& launch : binder.assumed_)
    for (const Assumed& assumed : launch) mark({assumed.left, assumed.right});
  for (const auto& exprs : binder.workspaces_) mark(exprs);
  for (size_t i = 0; i < in_key.size(); ++i) binder.params_[i].in_key = in_key[i];
  return binder;
}

Result<void> Binder::ParseParams(const std::vector<bool>& integer_scalar) {
  const size_t symbols = size_t(info_.symbols.size());
  for (const auto& symbol : info_.symbols)
    if (!IsInteger(symbol.dtype)) return ArtifactError(fmt::format("symbol {} is of type {}", symbol.name, Name(symbol.dtype)));
  for (auto& proto : info_.params) {
    Param param;
    if (!Find(proto.dtype)) return ArtifactError(fmt::format("parameter {} is of unknown type {}", proto.name, int(proto.dtype)));
    if (!proto.tensor && (proto.output || proto.shape.size() || proto.strides.size()))
      return ArtifactError(fmt::format("scalar parameter {} is described as a tensor", proto.name));
    if (proto.shape.size() > kMaxRank) return ArtifactError(fmt::format("{} has {} dimensions", proto.name, proto.shape.size()));
    if (proto.strides.size() && proto.strides.size() != proto.shape.size())
      return ArtifactError(fmt::format("{} has {} dimensions and {} strides", proto.name, proto.shape.size(), proto.strides.size()));
    if (proto.alignment & (proto.alignment - 1) || proto.alignment > 4096)
      return ArtifactError(fmt::format("{} asks for an alignment of {} bytes", proto.name, proto.alignment));
    if (proto.tensor) proto.alignment = std::max(proto.alignment, ElementAlignment(proto.dtype));
    auto shape = ParseAll(proto.shape, symbols, integer_scalar);
    if (!shape) return std::unexpected(shape.error());
    auto strides = ParseAll(proto.strides, symbols, integer_scalar);
    if (!strides) return std::unexpected(strides.error());
    param.shape = std::move(*shape);
    param.strides = std::move(*strides);
    output_count_ += proto.output;
    params_.push_back(std::move(param));
  }
  return {};
}

Result<void> Binder::ParseViews(const std::vector<bool>& integer_scalar) {
  const size_t symbols = size_t(info_.symbols.size());
  if (info_.views.size() > kMaxViews)
    return ArtifactError(fmt::format("the artifact has {} views; at most {} are allowed", info_.views.size(), kMaxViews));
  for (const LaunchView& view : info_.views) {
    if (view.tensor >= params_.size() || !info_.params[view.tensor].tensor)
      return ArtifactError("a view is of a parameter that is not there or no tensor");
    const LaunchParam& param = info_.params[view.tensor];
    if (!param.strides.empty() || view.shape.size() > kMaxRank || view.shape.size() != view.strides.size())
      return ArtifactError(
          fmt::format("a view of {} has {} dimensions and {} strides, and the tensor {} strides; as many, at most {}, and none are "
                      "needed",
                      param.name, view.shape.size(), view.strides.size(), param.strides.size(), kMaxRank));
    ParsedView parsed;
    for (const auto& [from, to] : {std::pair{&view.shape, &parsed.shape}, {&view.strides, &parsed.strides}, {&view.positive, &parsed.positive}}) {
      auto exprs = ParseAll(*from, symbols, integer_scalar);
      if (!exprs) return std::unexpected(exprs.error());
      *to = std::move(*exprs);
    }
    views_.push_back(std::move(parsed));
  }
  return {};
}

Result<void> Binder::ParseTensorMaps() {
  if (info_.tensor_maps.empty()) return {};
  if (place_ != Place::kCuda && place_ != Place::kHost)  // the emulator is at the host
    return ArtifactError(fmt::format("{} knows no tensor maps; compile for it", PlaceName(place_)));
  if (info_.tensor_maps.size() > kMaxTensorMaps)
    return ArtifactError(fmt::format("the artifact has {} tensor maps; at most {} are allowed", info_.tensor_maps.size(), kMaxTensorMaps));
  for (const TensorMap& map : info_.tensor_maps) {
    if (auto ok = CheckTensorMap(map, info_.params, info_.views); !ok) return ok;
    uint32_t& alignment = info_.params[map.tensor].alignment;
    alignment = std::max(alignment, kTensorMapAlignment);
  }
  return {};
}

Result<void> Binder::ParseLaunches(const std::vector<bool>& integer_scalar) {
  const size_t symbols = size_t(info_.symbols.size());
  for (const auto& proto : info_.workspaces) {
    if (!Find(proto.dtype)) return ArtifactError("a workspace is of unknown type");
    auto shape = ParseAll(proto.shape, symbols, integer_scalar);
    if (!shape) return std::unexpected(shape.error());
    workspaces_.push_back(std::move(*shape));
  }
  for (const auto& launch : info_.launches) {
    if (launch.grid.size() < 1 || launch.grid.size() > 3)
      return ArtifactError(fmt::format("launch {} has a grid of {} dimensions", launch.entry, launch.grid.size()));
    if (launch.threads < 1 || launch.threads > kMaxThreads)
      return ArtifactError(fmt::format("launch {} asks for {} threads in a block; 1 to {} are possible", launch.entry, launch.threads, kMaxThreads));
    auto grid = ParseAll(launch.grid, symbols, integer_scalar);
    if (!grid) return std::unexpected(grid.error());
    grids_.push_back(std::move(*grid));
    assumed_.emplace_back();
    for (const Assumption& assumption : launch.assumptions) {
      auto left = HostExpr::Parse(assumption.left, symbols, integer_scalar);
      auto right = HostExpr::Parse(assumption.right, symbols, integer_scalar);
      if (!left || !right) return std::unexpected((left ? right : left).error());
      assumed_.back().push_back({std::move(*left), std::move(*right), assumption.relation});
    }
    for (const auto& arg : launch.args)
      if (auto ok = CheckKernelArg(arg); !ok) return ok;
  }
  return {};
}

Result<void> Binder::CheckKernelArg(const KernelArg& arg) {
  const auto is_param = [&](bool tensor) { return arg.index < params_.size() && info_.params[arg.index].tensor == tensor; };
  bool there = false;
  switch (arg.kind) {
    case KernelArg::Kind::kTensor: there = is_param(true); break;
    case KernelArg::Kind::kScalar: there = is_param(false); break;
    case KernelArg::Kind::kSymbol: there = arg.index < info_.symbols.size(); break;
    case KernelArg::Kind::kWorkspace: there = arg.index < workspaces_.size(); break;
    case KernelArg::Kind::kZeroedWorkspace:
    case KernelArg::Kind::kBlockCounter: there = arg.index < workspaces_.size() && info_.workspaces[arg.index].zeroed; break;
    case KernelArg::Kind::kTensorMap: there = arg.index < info_.tensor_maps.size(); break;
    case KernelArg::Kind::kNone: return ArtifactError("a kernel argument is of a kind this runtime does not know; update it");
  }
  if (!there) return ArtifactError("a kernel argument refers to a parameter, symbol, workspace or tensor map that is not there");
  if (arg.kind == KernelArg::Kind::kTensor) params_[arg.index].used = !info_.params[arg.index].unused;
  if (arg.kind == KernelArg::Kind::kTensorMap) params_[info_.tensor_maps[arg.index].tensor].used = true;
  return {};
}

// Whatever needs no symbol.
Result<void> Binder::CheckTensor(size_t index, const Arg& arg) const {
  const auto& proto = info_.params[index];
  const std::string where = fmt::format("{}.{}", name_, proto.name);
  if (arg.kind == Arg::Kind::kNone) return {};
  if (arg.kind != Arg::Kind::kTensor) return ArgumentError(fmt::format("{} is expected to be a tensor, but got a number", where));
  const Tensor& tensor = arg.tensor;
  if (tensor.shape.size() != params_[index].shape.size())
    return ArgumentError(fmt::format("{}.ndim is expected to equal {}, but got {}", where, params_[index].shape.size(), tensor.shape.size()));
  if (!Accepts(proto.dtype, tensor.dtype))
    return ArgumentError(fmt::format("{}.dtype is expected to be {}, but got {}", where, Name(proto.dtype), Name(tensor.dtype)));
  if (!Reachable(place_, tensor.place))
    return ArgumentError(fmt::format("{}.device_type mismatch [expected: {} ({})], but got {} ({}); move the tensor there", where, int(place_),
                                     PlaceName(place_), int(tensor.place), PlaceName(tensor.place)));
  if (tensor.place == place_ && tensor.device != device_)
    return ArgumentError(
        fmt::format("{}.device_id is expected to be {}, but got {}; the kernel was loaded on device {}", where, device_, tensor.device, device_));
  const auto count = ElementCount(tensor.shape);
  if (!count) return ArgumentError(fmt::format("{} has a negative extent or more than 2^63 elements", where));
  if (*count > 0 && *count != kEndlessElements && tensor.data == 0)
    return ArgumentError(fmt::format("{} is expected to have non-NULL pointer", where));
  return {};
}

Result<void> Binder::CheckAlignment(std::span<const Arg> args) const {
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& proto = info_.params[i];
    if (!HasElements(args[i]) || args[i].tensor.data % std::max(proto.alignment, 1u) == 0) continue;
    const uint32_t common = CommonAlignment(args);
    auto error = ArgumentError(
        fmt::format("{}.{}.data is expected to be aligned to {} bytes, but its address is {:#x}; pass a copy of it (.clone()){}", name_, proto.name,
                    proto.alignment, args[i].tensor.data, common ? fmt::format(", or compile with pointer_alignment = {}", common) : ""));
    error.error().alignment = common;
    return error;
  }
  return {};
}

// Only for the launches that take place.
Result<void> Binder::CheckTensorMaps(std::span<const Arg> args, const Binding& binding) const {
  for (size_t i = 0; i < binding.grids.size(); ++i) {
    if (binding.grids[i].empty) continue;
    for (const KernelArg& arg : info_.launches[i].args) {
      if (arg.kind != KernelArg::Kind::kTensorMap) continue;
      if (auto ok = CheckMapped(info_.tensor_maps[arg.index], args, binding); !ok) return ok;
    }
  }
  return {};
}

// A tensor that no map can describe is treated as misaligned: a compile for less alignment does not use tensor copies for it.
Result<void> Binder::CheckMapped(const TensorMap& map, std::span<const Arg> args, const Binding& binding) const {
  const LaunchParam& param = info_.params[map.tensor];
  const Arg& arg = args[map.tensor];
  auto described = arg.kind == Arg::Kind::kTensor ? DescribeTensor(map, param, MappedTensor(map, arg.tensor, binding.views))
                                                  : std::unexpected(std::string("it is absent"));
  if (described) return {};
  return ForLessAlignment(args, fmt::format("{}.{} cannot be moved by tensor copies (TMA): {}", name_, param.name, described.error()),
                          ", or with disable_tma");
}

// A compile for less alignment has neither tensor copies nor views.
std::unexpected<Error> Binder::ForLessAlignment(std::span<const Arg> args, std::string_view problem, std::string_view otherwise) const {
  const uint32_t alignment = std::min(CommonAlignment(args), kTensorMapAlignment / 2);
  auto error = ArgumentError(fmt::format("{}; compile with pointer_alignment = {}{}", problem, alignment, otherwise));
  error.error().alignment = alignment;
  return error;
}

Result<void> Binder::BindViews(std::span<const Arg> args, const HostValues& values, Binding& binding) const {
  if (std::ranges::all_of(binding.grids, [](const Binding::Grid& grid) { return grid.empty; })) return {};
  for (size_t i = 0; i < views_.size(); ++i) {
    const size_t tensor = info_.views[i].tensor;
    auto view = Evaluate(i, args[tensor], values);
    if (!view)
      return ForLessAlignment(args, fmt::format("{}.{} is not the tensor that it is taken for: {}", name_, info_.params[tensor].name, view.error()));
    binding.views.push_back(std::move(*view));
  }
  return {};
}

std::expected<BoundView, std::string> Binder::Evaluate(size_t index, const Arg& arg, const HostValues& values) const {
  const ParsedView& view = views_[index];
  BoundView bound;
  if (arg.kind != Arg::Kind::kTensor) return std::unexpected("it is absent");
  for (const HostExpr& expr : view.positive) {
    const auto value = expr.Evaluate(values);
    if (!value || **value < 1)
      return std::unexpected(fmt::format("{} is {}, not positive", expr.Text(info_), value ? fmt::to_string(**value) : value.error().message));
  }
  for (const auto& [exprs, list] : {std::pair{&view.shape, &bound.shape}, {&view.strides, &bound.strides}}) {
    for (const HostExpr& expr : *exprs) {
      const auto value = expr.Evaluate(values);
      if (!value || **value < 0)
        return std::unexpected(fmt::format("{} {} is {}", list == &bound.shape ? "an extent," : "a stride,", expr.Text(info_),
                                           value ? fmt::to_string(**value) : value.error().message));
      list->push_back(**value);
    }
  }
  const uint64_t elements = *ElementCount(arg.tensor.shape);  // Bind has checked it
  __int128 last = 0;
  for (size_t d = 0; d < bound.shape.size(); ++d) {
    if (bound.shape[d] == 0) return bound;
    last += __int128(bound.shape[d] - 1) * bound.strides[d];
    if (last >= __int128(elements))
      return std::unexpected(fmt::format("its {} elements do not hold a tensor of shape ({}) with strides ({})", elements,
                                         fmt::join(bound.shape, ", "), fmt::join(bound.strides, ", ")));
  }
  return bound;
}

// The largest power of two that divides the addresses of all tensors, but no larger than what a parameter relies on; 0 if a tensor starts
// inside an element.
uint32_t Binder::CommonAlignment(std::span<const Arg> args) const {
  uint64_t bits = 0;
  uint32_t largest = 1;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& proto = info_.params[i];
    if (!proto.tensor) continue;
    largest = std::max(largest, proto.alignment);
    if (!HasElements(args[i])) continue;
    if (args[i].tensor.data % ElementAlignment(proto.dtype) != 0) return 0;
    bits |= args[i].tensor.data;
  }
  return bits == 0 ? largest : uint32_t(std::min<uint64_t>(largest, bits & -bits));
}

Result<Binding> Binder::Bind(std::span<const Arg> args) const {
  if (args.size() != params_.size()) return ArgumentError(fmt::format("{}: num_args should be {}, but got {}", name_, params_.size(), args.size()));
  for (size_t i = 0; i < args.size(); ++i) {
    if (info_.params[i].tensor) {
      if (auto ok = CheckTensor(i, args[i]); !ok) return std::unexpected(ok.error());
    } else if (auto bits = Scalar(args, i); !bits) {
      return std::unexpected(bits.error());
    }
  }
  if (auto ok = CheckAlignment(args); !ok) return std::unexpected(ok.error());
  Solver solver(*this, args);
  if (auto ok = solver.Run(); !ok) return std::unexpected(ok.error());
  auto symbols = solver.Symbols();
  if (!symbols) return std::unexpected(symbols.error());
  auto binding = Finish(solver.values(), std::move(*symbols));
  if (!binding) return binding;
  if (auto ok = BindViews(args, solver.values(), *binding); !ok) return std::unexpected(ok.error());
  if (auto ok = CheckTensorMaps(args, *binding); !ok) return std::unexpected(ok.error());
  return binding;
}

Result<Binding> Binder::Finish(const HostValues& values, std::vector<int64_t> symbols) const {
  Binding binding{.symbols = std::move(symbols), .grids = {}, .workspace_bytes = {}, .workspace_shapes = {}, .views = {}};
  for (size_t i = 0; i < grids_.size(); ++i) {
    auto grid = EvaluateGrid(i, values);
    if (!grid) return std::unexpected(grid.error());
    if (!grid->empty) {
      if (auto ok = CheckAssumptions(i, values); !ok) return std::unexpected(ok.error());
    }
    binding.grids.push_back(*grid);
  }
  for (size_t i = 0; i < workspaces_.size(); ++i) {
    auto shape = WorkspaceShape(i, values);
    if (!shape) return std::unexpected(shape.error());
    binding.workspace_bytes.push_back(Bytes(*Find(info_.workspaces[i].dtype), *ElementCount(*shape)));
    binding.workspace_shapes.push_back(std::move(*shape));
  }
  return binding;
}

Result<void> Binder::CheckAssumptions(size_t launch, const HostValues& values) const {
  constexpr std::string_view kSigns[] = {"==", "!=", "<", "<="};
  for (const Assumed& assumed : assumed_[launch]) {
    const auto text = [&] {
      return fmt::format("{}: Assume: {} {} {}", name_, assumed.left.Text(info_), kSigns[size_t(assumed.relation)], assumed.right.Text(info_));
    };
    const auto left = assumed.left.Evaluate(values), right = assumed.right.Evaluate(values);
    if (!left || !right) return ArgumentError(fmt::format("{}: {}", text(), (left ? right : left).error().message));
    const int64_t a = **left, b = **right;  // Solver::Symbols has shown that nothing is unknown
    using enum Assumption::Relation;
    const bool holds = assumed.relation == kEq ? a == b : assumed.relation == kNe ? a != b : assumed.relation == kLt ? a < b : a <= b;
    if (holds) continue;
    return ArgumentError(fmt::format("{} does not hold: {} and {} (the program was compiled for arguments for which it does)", text(), a, b));
  }
  return {};
}

Result<Binding::Grid> Binder::EvaluateGrid(size_t launch, const HostValues& values) const {
  Binding::Grid grid{.size = {1, 1, 1}, .empty = false};
  for (size_t d = 0; d < grids_[launch].size(); ++d) {
    auto extent = grids_[launch][d].Evaluate(values);
    if (!extent) return ArgumentError(fmt::format("{}: grid extent {}: {}", name_, d, extent.error().message));
    const int64_t size = **extent;  // Solver::Symbols has shown that nothing is unknown
    if (size <= 0) {
      grid.empty = true;
    } else if (size > kMaxGrid[d]) {
      return ArgumentError(
          fmt::format("{}: grid extent {} is {}, but a launch has at most {}; put the larger extent first, or use "
                      "larger tiles",
                      name_, d, size, kMaxGrid[d]));
    } else {
      grid.size[d] = uint32_t(size);
    }
  }
  return grid;
}

Result<std::vector<int64_t>> Binder::WorkspaceShape(size_t index, const HostValues& values) const {
  std::vector<int64_t> shape;
  for (const HostExpr& expr : workspaces_[index]) {
    auto extent = expr.Evaluate(values);
    if (!extent) return ArgumentError(fmt::format("{}: workspace {}: {}", name_, index, extent.error().message));
    shape.push_back(**extent);
  }
  const auto count = ElementCount(shape);
  constexpr uint64_t kMost = uint64_t(1) << 48;
  if (!count || *count > kMost) return ArgumentError(fmt::format("{}: workspace {} is too large: {} elements", name_, index, fmt::join(shape, "×")));
  return shape;
}

Result<std::vector<OutputShape>> Binder::Outputs(std::span<const Arg> inputs) const {
  if (inputs.size() + output_count_ != params_.size())
    return ArgumentError(fmt::format("{}: num_args should be {} ({} with the outputs), but got {}", name_, params_.size() - output_count_,
                                     params_.size(), inputs.size()));
  std::vector<Arg> args(params_.size());
  for (size_t i = 0, next = 0; i < args.size(); ++i) {
    if (info_.params[i].output) continue;
    args[i] = inputs[next++];
    if (!info_.params[i].tensor) continue;
    if (auto ok = CheckTensor(i, args[i]); !ok) return std::unexpected(ok.error());
  }
  Solver solver(*this, args);
  if (auto ok = solver.Run(); !ok) return std::unexpected(ok.error());
  std::vector<OutputShape> outputs;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto& proto = info_.params[i];
    if (!proto.output) continue;
    OutputShape output{.param = i, .name = proto.name, .dtype = proto.dtype, .shape = {}};
    for (const HostExpr& expr : params_[i].shape) {
      auto extent = expr.Evaluate(solver.values());
      if (!extent) return ArgumentError(fmt::format("{}.{}: {}", name_, proto.name, extent.error().message));
      if (!*extent)
        return ArgumentError(fmt::format("{}: the inputs do not determine the shape of output {} ({}); pass the output tensor too", name_, proto.name,
                                         expr.Text(info_)));
      output.shape.push_back(**extent);
    }
    if (!ElementCount(output.shape))
      return ArgumentError(fmt::format("{}.{} would have the shape {}", name_, proto.name, fmt::join(output.shape, "×")));
    if (Find(proto.dtype)->bits < 8 && output.shape.size() > 1 && output.shape.back() % 2 != 0)
      return ArgumentError(fmt::format("{}.{} would have the shape {}, whose rows of {} do not end with a byte", name_, proto.name,
                                       fmt::join(output.shape, "×"), Name(proto.dtype)));
    outputs.push_back(std::move(output));
  }
  return outputs;
}

bool Binder::Key(std::span<const Arg> args, std::span<uint64_t> words, size_t& used) const {
  used = 0;
  for (size_t i = 0; i < args.size(); ++i) {
    const Arg& arg = args[i];
    const size_t rank = arg.kind == Arg::Kind::kTensor ? arg.tensor.shape.size() : 0;
    if (used + 2 + 2 * rank > words.size()) return false;
    uint64_t head = uint64_t(arg.kind);
    if (arg.kind == Arg::Kind::kTensor) {
      const Tensor& t = arg.tensor;
      const uint64_t alignment = i < params_.size() ? info_.params[i].alignment : 0;
      const bool misaligned = alignment > 1 && (t.data & (alignment - 1)) != 0;
      head |= uint64_t(t.dtype) << 8 | uint64_t(t.place) << 16 | uint64_t(rank) << 24 | uint64_t(misaligned) << 32 | uint64_t(t.data == 0) << 33 |
              uint64_t(t.strides != nullptr) << 34 | uint64_t(uint8_t(t.device)) << 40;
      words[used++] = head;
      for (size_t d = 0; d < rank; ++d) words[used++] = uint64_t(t.shape[d]);
      if (t.strides)
        for (size_t d = 0; d < rank; ++d) words[used++] = uint64_t(t.strides[d]);
    } else {
      words[used++] = head;
      if (i < params_.size() && params_[i].in_key) words[used++] = uint64_t(arg.integer);
    }
  }
  return true;
}

Result<uint64_t> Binder::Scalar(std::span<const Arg> args, size_t param) const {
  const auto& proto = info_.params[param];
  const Arg& arg = args[param];
  const bool integer = IsInteger(proto.dtype);
  std::optional<uint64_t> bits;
  if (arg.kind == Arg::Kind::kInt) {
    bits = ScalarBits(proto.dtype, arg.integer);
  } else if (arg.kind == Arg::Kind::kFloat && !integer) {
    bits = ScalarBits(proto.dtype, arg.real);
  } else {
    return ArgumentError(fmt::format("{}.{}: Expect arg[{}] to be {}", name_, proto.name, param,
                                     proto.dtype == DType::kBool ? "boolean"
                                     : integer                   ? "int"
                                                                 : "float"));
  }
  if (!bits) return ArgumentError(fmt::format("{}.{}: {} does not fit {}", name_, proto.name, arg.integer, Name(proto.dtype)));
  return *bits;
}

}  // namespace kiln::runtime
