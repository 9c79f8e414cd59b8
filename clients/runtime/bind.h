// SPDX-License-Identifier: Apache-2.0
//
// Matches arguments with a kernel's parameters: solves the run-time dimensions, checks everything the compiler relied on, and
// works out grids, scalars and workspace sizes. No driver is involved. The error texts follow TileLang's host checks.
#pragma once

#include <array>
#include <span>
#include <vector>

#include "clients/runtime/dtype.h"
#include "clients/runtime/host_expr.h"

namespace kiln::runtime {

// DLPack's DLDeviceType.
enum class Place : uint8_t { kHost = 1, kCuda = 2, kPinned = 3, kHip = 10, kHipPinned = 11, kManaged = 13 };

// Elements of memory of which only the address is given: nobody knows where it ends. The address may be 0 if the kernel does not go there.
inline constexpr int64_t kEndlessElements = int64_t{1} << 40;

struct Tensor {
  uint64_t data = 0;  // address of the first element
  DType dtype{};
  Place place = Place::kCuda;
  int device = 0;
  std::span<const int64_t> shape;
  const int64_t* strides = nullptr;  // in elements, as many as shape; null: row-major contiguous
};

struct Arg {
  enum class Kind : uint8_t { kNone, kTensor, kInt, kFloat };
  Kind kind = Kind::kNone;
  Tensor tensor;
  int64_t integer = 0;
  double real = 0;

  static Arg Of(const Tensor& tensor) { return {.kind = Kind::kTensor, .tensor = tensor}; }
  static Arg Of(int64_t value) { return {.kind = Kind::kInt, .tensor = {}, .integer = value}; }
  static Arg Of(double value) { return {.kind = Kind::kFloat, .tensor = {}, .integer = 0, .real = value}; }
};

struct OutputShape {
  size_t param;
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
};

// A view as a launch has it.
struct BoundView {
  std::vector<int64_t> shape, strides;
};

// What holds for every call whose arguments agree in Binder::Key.
struct Binding {
  std::vector<int64_t> symbols;
  struct Grid {
    std::array<uint32_t, 3> size;
    bool empty;  // nothing to launch
  };
  std::vector<Grid> grids;                // one for each launch
  std::vector<uint64_t> workspace_bytes;  // one for each workspace
  std::vector<std::vector<int64_t>> workspace_shapes;
  std::vector<BoundView> views;  // one for each view; none where nothing is launched
};

class Binder {
 public:
  static constexpr int kMaxRank = 16;
  static constexpr int kMaxParams = 256;

  // Checks everything in `info` that later steps index by. `name` is what error texts call the kernel; `place` and `device`
  // are where its tensors must be.
  static Result<Binder> Create(LaunchInfo info, std::string name, Place place, int device);

  // `args`: one for each parameter.
  Result<Binding> Bind(std::span<const Arg> args) const;

  // Shapes of the parameters marked as outputs. `inputs`: one for each parameter that is not.
  Result<std::vector<OutputShape>> Outputs(std::span<const Arg> inputs) const;

  // Appends all that Bind's result depends on. Arguments with equal keys bind alike. False: it does not fit `words`.
  bool Key(std::span<const Arg> args, std::span<uint64_t> words, size_t& used) const;

  // Scalar argument `param` as the kernel takes it.
  Result<uint64_t> Scalar(std::span<const Arg> args, size_t param) const;

  const LaunchInfo& info() const { return info_; }
  const std::string& name() const { return name_; }
  size_t output_count() const { return output_count_; }

 private:
  struct Param {
    std::vector<HostExpr> shape;
    std::vector<HostExpr> strides;
    bool used = false;    // by a launch
    bool in_key = false;  // a scalar that an expression refers to
  };
  struct Equation;
  class Solver;

  Binder() = default;
  Result<void> ParseParams(const std::vector<bool>& integer_scalar);
  Result<void> ParseViews(const std::vector<bool>& integer_scalar);
  Result<void> ParseTensorMaps();
  Result<void> ParseLaunches(const std::vector<bool>& integer_scalar);
  Result<void> CheckKernelArg(const KernelArg& arg);
  Result<void> CheckTensor(size_t index, const Arg& arg) const;
  Result<void> CheckAlignment(std::span<const Arg> args) const;
  Result<void> CheckTensorMaps(std::span<const Arg> args, const Binding& binding) const;
  Result<void> CheckMapped(const TensorMap& map, std::span<const Arg> args, const Binding& binding) const;
  Result<void> BindViews(std::span<const Arg> args, const HostValues& values, Binding& binding) const;
  std::expected<BoundView, std::string> Evaluate(size_t view, const Arg& arg, const HostValues& values) const;
  std::unexpected<Error> ForLessAlignment(std::span<const Arg> args, std::string_view problem, std::string_view otherwise = {}) const;
  uint32_t CommonAlignment(std::span<const Arg> args) const;
  Result<Binding> Finish(const HostValues& values, std::vector<int64_t> symbols) const;
  Result<void> CheckAssumptions(size_t launch, const HostValues& values) const;
  Result<Binding::Grid> EvaluateGrid(size_t launch, const HostValues& values) const;
  Result<std::vector<int64_t>> WorkspaceShape(size_t index, const HostValues& values) const;

  LaunchInfo info_;
  std::string name_;
  Place place_ = Place::kCuda;
  int device_ = 0;
  size_t output_count_ = 0;
  std::vector<Param> params_;
  struct Assumed {
    HostExpr left, right;
    Assumption::Relation relation;
  };
  struct ParsedView {
    std::vector<HostExpr> shape, strides, positive;
  };
  std::vector<ParsedView> views_;
  std::vector<std::vector<HostExpr>> grids_;
  std::vector<std::vector<Assumed>> assumed_;  // one for each launch
  std::vector<std::vector<HostExpr>> workspaces_;
};

// The element count, absent on overflow or a negative extent.
std::optional<uint64_t> ElementCount(std::span<const int64_t> shape);

}  // namespace kiln::runtime
