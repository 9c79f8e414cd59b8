// SPDX-License-Identifier: Apache-2.0
#include "ir/text/print_stmt.h"

#include <fmt/ranges.h>

#include <utility>

#include "ir/fields.h"
#include "ir/text/print.h"

namespace kiln::ir {
namespace {

std::string LayoutClause(const Layout& layout) { return fmt::format(" layout({})", layout.ToString()); }

}  // namespace

// Appends each field to the op's name.
class StmtPrinter::FieldPrinter {
 public:
  FieldPrinter(const ExprPrinter& exprs, std::string_view name) : exprs_(exprs), text_(name) {}
  std::string Take() { return std::move(text_); }

  void Evaluates(ExprId expr, std::string_view) { Add(exprs_(expr)); }
  void Region(const ir::Region& region, std::string_view, Use) {
    Add(fmt::format("{}[{}; {}]", exprs_(region.buffer), exprs_(region.offsets), Joined(region.extents)));
  }
  void Element(BufferId buffer, const std::vector<ExprId>& indices, Use) { Add(fmt::format("{}[{}]", exprs_(buffer), exprs_(indices))); }
  void ElementIfAny(const std::optional<ir::Element>& element, std::string_view) {
    if (element) Add("->"), Element(element->buffer, element->indices, Use::kWrite);
  }
  void EvaluatesIfAny(const std::optional<ExprId>& expr, Label label) {
    if (expr) Add(label.word), Add(exprs_(*expr));
  }
  void RegionIfAny(const std::optional<ir::Region>& region, Label label) {
    if (region) Add(label.word), Region(*region, label.name, Use::kRead);
  }
  void Whole(BufferId buffer, std::string_view, Use) { Add(exprs_(buffer)); }
  void Names(BufferId buffer, std::string_view) { Add(exprs_(buffer)); }
  void Body(const Block&, std::string_view) { Add("{"); }
  void Says(std::string_view text) { text == "," ? void(text_ += text) : Add(text); }
  void Is(bool flag, Label label) {
    if (flag != label.where_false) Add(label.word);
  }
  template <typename T>
  void Is(T value, Label label) {
    if (label.word.empty()) Add(Text(value));
    else if (value != T{}) Clause(label.word, value);
  }
  template <typename T>
  void Decided(const std::optional<T>& value, std::string_view word) {
    if (value) Clause(word, *value);
  }
  void Decided(bool value, std::string_view word) {
    if (value) Add(word);
  }
  void Uses(const auto&) {}  // stands in the decision that names it
  void Counts(size_t) {}
  // Ops that have these are written by functions of their own.
  void Declares(BufferId, std::string_view) = delete;
  void Binds(VarId, std::string_view) = delete;
  void Calls(FunctionId, std::string_view) = delete;

 private:
  void Add(std::string_view text) { fmt::format_to(std::back_inserter(text_), " {}", text); }
  template <typename T>
  void Clause(std::string_view word, const T& value) {
    Add(word);
    Add(Text(value));
  }

  template <typename T>
    requires std::is_integral_v<T>
  static std::string Text(T value) {
    return fmt::format("{}", value);
  }
  template <typename E>
    requires std::is_enum_v<E> && (!std::is_same_v<E, BufferId>)
  static std::string Text(E value) {
    return std::string(Name(value));
  }
  std::string Text(BufferId buffer) const { return exprs_(buffer); }
  std::string Text(const CopyPlan& plan) const {
    std::string text = fmt::format("{{ {} vector {}", Name(plan.instruction), plan.vector);
    if (plan.ring) text += fmt::format(" ring {} at {}", exprs_(plan.ring->barriers), exprs_(plan.ring->position));
    if (plan.multicast) text += " multicast";
    if (plan.panels) text += " panels";
    if (plan.adds) text += " adds";
    if (plan.groups_m != 0) text += fmt::format(" groups {} x {}", plan.groups_m, plan.groups_n);
    if (plan.layout) text += LayoutClause(*plan.layout);
    return text + " }";
  }
  // "{ vector 8 parted kept packed 2 loads %A vector 8 once, %S across 0 by 4 }"
  std::string Text(const StorePlan& plan) const {
    std::string text = fmt::format("{{ {}", Name(plan.form));
    if (plan.form == StoreForm::kVector) text += fmt::format(" {}", plan.width);
    if (plan.parted) text += " parted";
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
  static std::string Text(const GemmPlan& plan) {
    std::string text = fmt::format("{{ {} warps {} x {}", plan.instruction, plan.warps_m, plan.warps_n);
    if (plan.warps_k > 1) text += fmt::format(" x {}", plan.warps_k);
    return text + fmt::format("{}{}{}{} }}", plan.by_warps ? " by_warps" : "", plan.in_flight ? " in_flight" : "", plan.promoted ? " promoted" : "",
                              plan.as_sums ? " as_sums" : "");
  }

  const ExprPrinter& exprs_;
  std::string text_;
};

std::string StmtPrinter::operator()(const Op& op) const {
  return std::visit([this](const auto& alternative) { return Text(alternative); }, op);
}

template <typename T>
std::string StmtPrinter::Text(const T& op) const {
  FieldPrinter printer(exprs_, OpRow<T>::kName);
  Fields(op, printer);
  return printer.Take();
}

std::string StmtPrinter::Text(const Alloc& op) const { return fmt::format("{} = alloc {}", exprs_(op.buffer), Type(module_[op.buffer])); }

std::string StmtPrinter::Text(const For& op) const {
  std::string vars;
  for (VarId var : op.vars) vars += (vars.empty() ? "" : ", ") + Declared(var);
  std::string text = fmt::format("for {} {} in {}", Name(op.kind), vars, exprs_(op.extents));
  if (op.num_stages != 0) text += fmt::format(" stages {}", op.num_stages);
  if (op.coalesced_width != 0) text += fmt::format(" coalesced {}", op.coalesced_width);
  if (op.layout) text += LayoutClause(*op.layout);
  return text + " {";
}

std::string StmtPrinter::Text(const If& op) const { return fmt::format("if {}{} {{", exprs_(op.cond), Clause(op.then_threads)); }

std::string StmtPrinter::Text(const Let& op) const { return fmt::format("let {} = {}", exprs_(op.var), exprs_(op.value)); }

std::string StmtPrinter::Text(const PairSum& op) const {
  const std::string half = op.half ? fmt::format(" -> {} dim {}", exprs_(*op.half), op.dim) : "";
  return fmt::format("pair_sum {}{}{}", exprs_(op.sum), half, op.scratch ? " scratch " + exprs_(*op.scratch) : "");
}

std::string StmtPrinter::Text(const Call& op) const {
  std::vector<std::string> arguments;
  for (const Argument& argument : op.arguments) {
    arguments.push_back(argument.buffer ? fmt::format("&{}[{}]", exprs_(*argument.buffer), exprs_(argument.value)) : exprs_(argument.value));
  }
  return fmt::format("call {}({})", Callee(op.function), Joined(arguments));
}

std::string StmtPrinter::Type(const Buffer& buffer) const {
  std::string text = fmt::format("{} {}[{}]", Name(buffer.space), Name(buffer.dtype), exprs_(buffer.shape));
  if (!buffer.strides.empty()) text += fmt::format(" strides({})", exprs_(buffer.strides));
  if (buffer.pad_value) text += fmt::format(" pad({})", FloatText(DType::kF64, *buffer.pad_value));
  if (buffer.may_alias) text += " may_alias";
  if (!buffer.arrivals.empty()) text += fmt::format(" arrivals({})", fmt::join(buffer.arrivals, ", "));
  if (buffer.layout) text += LayoutClause(*buffer.layout);
  if (buffer.shared_offset) text += fmt::format(" offset({})", *buffer.shared_offset);
  if (buffer.view) text += fmt::format(" of({})", exprs_(buffer.view->of));
  if (buffer.view && !buffer.view->positive.empty()) text += fmt::format(" positive({})", exprs_(buffer.view->positive));
  return text;
}

std::string StmtPrinter::Clause(const std::optional<ThreadRange>& threads) {
  if (!threads) return "";
  const std::string barrier = threads->barrier != 0 ? fmt::format(" barrier {}", threads->barrier) : "";
  return fmt::format(" threads {} to {}{}", threads->begin, threads->end, barrier);
}

std::string StmtPrinter::Declared(VarId var) const {
  DType type = module_[var].dtype;
  return type == DType::kI32 ? exprs_(var) : fmt::format("{}: {}", exprs_(var), Name(type));
}

}  // namespace kiln::ir
