// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/solve.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::runtime {
namespace {

// A byte tensor stands for a sub-byte one of twice the length in its last dimension, and of twice the strides in the others.
bool IsPacked(const LaunchParam& proto, const Tensor& tensor) { return Find(proto.dtype)->bits == 4 && Find(tensor.dtype)->bits == 8; }

int64_t GivenExtent(const LaunchParam& proto, const Tensor& tensor, size_t dim) {
  return IsPacked(proto, tensor) && dim + 1 == tensor.shape.size() ? tensor.shape[dim] * 2 : tensor.shape[dim];
}

int64_t GivenStride(const LaunchParam& proto, const Tensor& tensor, size_t dim, int64_t stride) {
  return IsPacked(proto, tensor) && dim + 1 != tensor.shape.size() ? stride * 2 : stride;
}

}  // namespace

Binder::Solver::Solver(const Binder& binder, std::span<const Arg> args)
    : binder_(binder), args_(args), symbols_(size_t(binder.info_.symbols.size())), scalars_(args.size()) {
  for (size_t i = 0; i < args.size(); ++i)
    if (!binder_.info_.params[i].tensor && args[i].kind == Arg::Kind::kInt) scalars_[i] = args[i].integer;
}

Result<void> Binder::Solver::AddTensor(size_t index, const Arg& arg) {
  const Param& param = binder_.params_[index];
  const auto& proto = binder_.info_.params[index];
  const Tensor& tensor = arg.tensor;
  const bool empty = ElementCount(tensor.shape) == 0u;
  for (size_t d = 0; d < param.shape.size(); ++d) equations_.push_back({&param.shape[d], GivenExtent(proto, tensor, d), index, d, false, true});
  if (param.strides.empty()) return empty ? Result<void>() : CheckContiguous(index, tensor);
  int64_t contiguous = 1;
  std::vector<int64_t> row_major(tensor.shape.size());
  for (size_t d = row_major.size(); d-- > 0;) {
    row_major[d] = contiguous;
    if (__builtin_mul_overflow(contiguous, std::max<int64_t>(tensor.shape[d], 1), &contiguous)) contiguous = INT64_MAX;
  }
  for (size_t d = 0; d < param.strides.size(); ++d)
    equations_.push_back({&param.strides[d], GivenStride(proto, tensor, d, tensor.strides ? tensor.strides[d] : row_major[d]), index, d, true,
                          !empty && tensor.shape[d] > 1});
  return {};
}

Result<void> Binder::Solver::CheckContiguous(size_t param, const Tensor& tensor) const {
  if (!tensor.strides) return {};
  int64_t expected = 1;
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.shape[d] > 1 && tensor.strides[d] != expected)
      return ArgumentError(
          fmt::format("Argument {}.{}.strides[{}] has an unsatisfied constraint: {} == {}; the tensor must be contiguous (pass "
                      ".contiguous(), or declare it as a StridedTensor)",
                      binder_.name_, binder_.info_.params[param].name, d, expected, tensor.strides[d]));
    expected *= tensor.shape[d];  // ElementCount has shown that it does not overflow
  }
  return {};
}

Result<bool> Binder::Solver::SolveOnce(bool binding) {
  bool progress = false;
  for (const Equation& equation : equations_) {
    if (equation.binding != binding) continue;
    auto solution = equation.expr->Solve(values(), equation.given);
    if (!solution) {
      if (!binding) continue;
      return ArgumentError(fmt::format("{}: {}", Where(equation), solution.error().message));
    }
    if (!*solution) continue;
    const auto& symbol = binder_.info_.symbols[(*solution)->symbol];
    if (!ScalarBits(symbol.dtype, (*solution)->value))
      return ArgumentError(fmt::format("{}: {} = {} does not fit {}; declare the dimension as int64", Where(equation), symbol.name,
                                       (*solution)->value, Name(symbol.dtype)));
    symbols_[(*solution)->symbol] = (*solution)->value;
    progress = true;
  }
  return progress;
}

Result<void> Binder::Solver::Run() {
  for (size_t i = 0; i < args_.size(); ++i) {
    if (args_[i].kind != Arg::Kind::kTensor || !binder_.info_.params[i].tensor) continue;
    if (auto ok = AddTensor(i, args_[i]); !ok) return ok;
  }
  for (bool binding : {true, false}) {
    for (bool progress = true; progress;) {
      auto solved = SolveOnce(binding);
      if (!solved) return std::unexpected(solved.error());
      progress = *solved;
    }
  }
  for (const Equation& equation : equations_)
    if (auto ok = CheckEquation(equation); !ok) return ok;
  for (size_t i = 0; i < args_.size(); ++i) {
    const auto& proto = binder_.info_.params[i];
    if (args_[i].kind != Arg::Kind::kNone || !proto.tensor || proto.output) continue;
    if (auto ok = CheckAbsent(i); !ok) return ok;
  }
  EmptyAbsent();
  return {};
}

// An absent tensor has no elements: a size that stands in the shapes of such alone is 0.
void Binder::Solver::EmptyAbsent() {
  std::vector<bool> of_absent(symbols_.size()), of_others(symbols_.size());
  for (size_t i = 0; i < args_.size(); ++i) {
    const auto& proto = binder_.info_.params[i];
    const bool absent = args_[i].kind == Arg::Kind::kNone && proto.tensor && !proto.output;
    for (const HostExpr& extent : binder_.params_[i].shape) extent.MarkSymbols(absent ? of_absent : of_others);
    for (const HostExpr& stride : binder_.params_[i].strides) stride.MarkSymbols(of_others);
  }
  for (size_t i = 0; i < symbols_.size(); ++i)
    if (!symbols_[i] && of_absent[i] && !of_others[i]) symbols_[i] = 0;
}

Result<void> Binder::Solver::CheckEquation(const Equation& equation) const {
  if (!equation.binding) return {};
  auto value = equation.expr->Evaluate(values());
  if (!value) return ArgumentError(fmt::format("{}: {}", Where(equation), value.error().message));
  if (!*value || **value == equation.given) return {};
  return ArgumentError(fmt::format("{}: {} == {}{}", Where(equation), equation.expr->Text(binder_.info_), equation.given, Known(*equation.expr)));
}

// None is fine where no launch takes the tensor, and where it would be empty.
Result<void> Binder::Solver::CheckAbsent(size_t index) const {
  const Param& param = binder_.params_[index];
  if (!param.used) return {};
  for (const HostExpr& extent : param.shape) {
    auto value = extent.Evaluate(values());
    if (value && *value && **value == 0) return {};
  }
  return ArgumentError(fmt::format("{}.{} is expected to have non-NULL pointer", binder_.name_, binder_.info_.params[index].name));
}

Result<std::vector<int64_t>> Binder::Solver::Symbols() const {
  std::vector<int64_t> all;
  for (size_t i = 0; i < symbols_.size(); ++i) {
    if (!symbols_[i])
      return ArgumentError(
          fmt::format("{}: the arguments do not determine {}; it must stand alone, or linearly, in the shape of a "
                      "tensor that is passed",
                      binder_.name_, binder_.info_.symbols[i].name));
    all.push_back(*symbols_[i]);
  }
  return all;
}

std::string Binder::Solver::Where(const Equation& equation) const {
  return fmt::format("Argument {}.{}.{}[{}] has an unsatisfied constraint", binder_.name_, binder_.info_.params[equation.param].name,
                     equation.stride ? "strides" : "shape", equation.dim);
}

// " with m = 512", for the reader to see which dimension was fixed by another argument.
std::string Binder::Solver::Known(const HostExpr& expr) const {
  if (expr.Constant()) return "";
  std::string text;
  const std::string formula = expr.Text(binder_.info_);
  for (size_t i = 0; i < symbols_.size(); ++i) {
    const std::string& name = binder_.info_.symbols[i].name;
    if (symbols_[i] && !name.empty() && formula.find(name) != std::string::npos)
      text += fmt::format("{} {} = {}", text.empty() ? ", with" : ",", name, *symbols_[i]);
  }
  return text;
}

}  // namespace kiln::runtime
