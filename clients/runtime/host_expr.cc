// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/host_expr.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::runtime {
namespace {

bool IsLeaf(HostOp op) { return op == HostOp::kConst || op == HostOp::kSymbol || op == HostOp::kScalar; }

std::optional<int64_t> Apply(HostOp op, int64_t a, int64_t b) {
  int64_t r = 0;
  switch (op) {
    case HostOp::kAdd: return __builtin_add_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case HostOp::kSub: return __builtin_sub_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case HostOp::kMul: return __builtin_mul_overflow(a, b, &r) ? std::nullopt : std::optional(r);
    case HostOp::kFloorDiv: return FloorDiv(a, b);
    case HostOp::kFloorMod: return FloorMod(a, b);
    case HostOp::kMin: return std::min(a, b);
    case HostOp::kMax: return std::max(a, b);
    default: return std::nullopt;
  }
}

std::string_view Sign(HostOp op) {
  switch (op) {
    case HostOp::kAdd: return " + ";
    case HostOp::kSub: return " - ";
    case HostOp::kMul: return " * ";
    case HostOp::kFloorDiv: return " // ";
    case HostOp::kFloorMod: return " % ";
    case HostOp::kMin: return "min";
    case HostOp::kMax: return "max";
    default: return "?";
  }
}

// coefficient · unknown + offset; the unknown is the same for the whole expression.
struct Affine {
  int64_t coefficient = 0;
  int64_t offset = 0;
  bool linear = true;
};

Affine Combine(HostOp op, const Affine& a, const Affine& b) {
  const Affine nonlinear{0, 0, false};
  if (!a.linear || !b.linear) return nonlinear;
  if (a.coefficient == 0 && b.coefficient == 0) {
    const auto value = Apply(op, a.offset, b.offset);
    return value ? Affine{0, *value, true} : nonlinear;
  }
  if (op == HostOp::kAdd || op == HostOp::kSub) {
    const auto coefficient = Apply(op, a.coefficient, b.coefficient);
    const auto offset = Apply(op, a.offset, b.offset);
    return coefficient && offset ? Affine{*coefficient, *offset, true} : nonlinear;
  }
  if (op == HostOp::kMul && (a.coefficient == 0 || b.coefficient == 0)) {
    const Affine& variable = a.coefficient ? a : b;
    const int64_t factor = a.coefficient ? b.offset : a.offset;
    const auto coefficient = Apply(op, variable.coefficient, factor);
    const auto offset = Apply(op, variable.offset, factor);
    return coefficient && offset ? Affine{*coefficient, *offset, true} : nonlinear;
  }
  return nonlinear;
}

}  // namespace

std::optional<int64_t> FloorDiv(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return std::nullopt;
  return a / b - (a % b != 0 && (a % b < 0) != (b < 0));
}

std::optional<int64_t> FloorMod(int64_t a, int64_t b) {
  if (b == 0) return std::nullopt;
  if (b == -1) return 0;
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

Result<HostExpr> HostExpr::Parse(const HostNodes& proto, size_t symbol_count, const std::vector<bool>& scalar_param) {
  if (proto.empty()) return ArtifactError("a host expression is empty");
  if (proto.size() > kMaxNodes) return ArtifactError(fmt::format("a host expression has {} nodes; at most {} are allowed", proto.size(), kMaxNodes));
  for (size_t index = 0; index < proto.size(); ++index) {
    const HostNode& node = proto[index];
    if (node.op == HostOp::kSymbol && (node.value < 0 || uint64_t(node.value) >= symbol_count))
      return ArtifactError(fmt::format("a host expression names symbol {} of {}", node.value, symbol_count));
    if (node.op == HostOp::kScalar && (node.value < 0 || uint64_t(node.value) >= scalar_param.size() || !scalar_param[size_t(node.value)]))
      return ArtifactError(fmt::format("a host expression names parameter {}, which is no integer scalar", node.value));
    if (!IsLeaf(node.op) && (node.a >= index || node.b >= index))
      return ArtifactError("a host expression's node refers to one that does not come before it");
  }
  HostExpr expr;
  expr.nodes_ = proto;
  return expr;
}

Result<std::optional<int64_t>> HostExpr::Evaluate(const HostValues& values) const {
  if (nodes_.size() == 1 && nodes_[0].op == HostOp::kConst) return nodes_[0].value;
  std::vector<std::optional<int64_t>> results(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const HostNode& node = nodes_[i];
    switch (node.op) {
      case HostOp::kConst: results[i] = node.value; continue;
      case HostOp::kSymbol: results[i] = values.symbols[size_t(node.value)]; continue;
      case HostOp::kScalar: results[i] = values.scalars[size_t(node.value)]; continue;
      default: break;
    }
    if (!results[node.a] || !results[node.b]) continue;
    results[i] = Apply(node.op, *results[node.a], *results[node.b]);
    if (!results[i])
      return ArgumentError(fmt::format("{}{}{} overflows 64 bits or divides by zero", *results[node.a], Sign(node.op), *results[node.b]));
  }
  return results.back();
}

Result<std::optional<HostExpr::Solution>> HostExpr::Solve(const HostValues& values, int64_t target) const {
  std::optional<size_t> unknown;
  std::vector<Affine> forms(nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const HostNode& node = nodes_[i];
    if (node.op == HostOp::kConst) {
      forms[i].offset = node.value;
    } else if (node.op == HostOp::kSymbol || node.op == HostOp::kScalar) {
      const auto& value = (node.op == HostOp::kSymbol ? values.symbols : values.scalars)[size_t(node.value)];
      if (value) {
        forms[i].offset = *value;
      } else {
        if (node.op == HostOp::kScalar || (unknown && *unknown != size_t(node.value))) return std::nullopt;
        unknown = size_t(node.value);
        forms[i].coefficient = 1;
      }
    } else {
      forms[i] = Combine(node.op, forms[node.a], forms[node.b]);
    }
  }
  const Affine& form = forms.back();
  if (!unknown || !form.linear || form.coefficient == 0) return std::nullopt;
  int64_t rest = 0;
  if (__builtin_sub_overflow(target, form.offset, &rest) || (form.coefficient == -1 && rest == INT64_MIN) || rest % form.coefficient != 0)
    return ArgumentError(fmt::format("no integer solves it for {}", target));
  return Solution{*unknown, rest / form.coefficient};
}

void HostExpr::MarkScalars(std::vector<bool>& used) const {
  for (const HostNode& node : nodes_)
    if (node.op == HostOp::kScalar) used[size_t(node.value)] = true;
}

void HostExpr::MarkSymbols(std::vector<bool>& used) const {
  for (const HostNode& node : nodes_)
    if (node.op == HostOp::kSymbol) used[size_t(node.value)] = true;
}

std::optional<int64_t> HostExpr::Constant() const {
  if (nodes_.size() == 1 && nodes_[0].op == HostOp::kConst) return nodes_[0].value;
  return std::nullopt;
}

std::string HostExpr::Text(const LaunchInfo& info) const {
  constexpr size_t kLongest = 200;  // shared nodes could make the text exponentially long
  std::vector<std::string> texts;
  for (const HostNode& node : nodes_) {
    std::string text;
    if (node.op == HostOp::kConst) {
      text = std::to_string(node.value);
    } else if (node.op == HostOp::kSymbol) {
      text = info.symbols[node.value].name;
    } else if (node.op == HostOp::kScalar) {
      text = info.params[node.value].name;
    } else if (node.op == HostOp::kMin || node.op == HostOp::kMax) {
      text = fmt::format("{}({}, {})", Sign(node.op), texts[node.a], texts[node.b]);
    } else {
      const bool last = texts.size() + 1 == nodes_.size();
      text = fmt::format("{}{}{}{}{}", last ? "" : "(", texts[node.a], Sign(node.op), texts[node.b], last ? "" : ")");
    }
    texts.push_back(text.size() <= kLongest ? std::move(text) : "…");
  }
  return texts.back();
}

}  // namespace kiln::runtime
