// SPDX-License-Identifier: Apache-2.0
//
// What a program asks of a machine, counted in its text: operations and bytes of one block, how many blocks there are; and what the target's
// rows say that a multiprocessor does in a cycle. Branches count as taken, tiles as whole.
#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "clients/cli/page/facts.h"
#include "clients/cli/page/statements.h"
#include "compiler/target/instructions.h"
#include "ir/elementwise.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::cli {
namespace {

// Extents may be anything; what is beyond the type is as good as its largest.
int64_t Whole(double count) { return int64_t(std::min(count, 9e18)); }

struct Counted {
  std::map<uint32_t, double> products;  // operations, by the product's line
  double arithmetic = 0;                // other operations on floats
  double bytes = 0;                     // to and from global memory
  std::string unknown;                  // why it cannot be counted
};

class Counter {
 public:
  explicit Counter(ir::Module& module) : module_(module) {}

  Counted Count(const ir::Block& body) {
    Take(body, 1);
    return std::move(counted_);
  }

 private:
  void Take(const ir::Block& block, double times) {
    for (const ir::Stmt& stmt : block) {
      std::visit(ir::Overloaded{
                     [&](const ir::For& op) { Take(op.body, times * Trips(stmt, op)); },
                     [&](const ir::While& op) { Unknown(stmt), Take(op.body, times); },
                     [&](const ir::If& op) { Take(op.then_body, times), Take(op.else_body, times); },
                     [&](const ir::Let& op) { Expression(op.value, times); },
                     [&](const ir::Store& op) { Element(op.buffer, op.value, times); },
                     [&](const ir::Atomic& op) { Atomic(op, times); },
                     [&](const ir::Copy& op) { Tile(op.src, times), Tile(op.dst, times); },
                     [&](const ir::Elementwise auto& op) { Elementwise(op, times); },
                     [&](const ir::Reduce& op) { counted_.arithmetic += times * Elements(op.src); },
                     [&](const ir::Gemm& op) { counted_.products[stmt.loc.line] += times * Product(op); },
                     [&]<ir::OneOf<ir::Mma, ir::Call> T>(const T&) { Unknown(stmt); },
                     ir::Ignored<ir::Alloc, ir::Assume, ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit,
                                 ir::AsyncWait, ir::RingStep, ir::PairSum, ir::StreamSum>{},
                 },
                 stmt.op);
    }
  }

  double Trips(const ir::Stmt& stmt, const ir::For& loop) {
    double trips = 1;
    for (const ir::ExprId extent : loop.extents) {
      if (const auto value = module_.exprs.ConstInt(extent)) {
        trips *= double(std::max<int64_t>(0, *value));
      } else {
        Unknown(stmt);
      }
    }
    return trips;
  }

  void Unknown(const ir::Stmt& stmt) {
    if (!counted_.unknown.empty()) return;
    counted_.unknown = fmt::format("How often “{}” runs is known only when the program is launched.", Line(module_, stmt));
  }

  static double Elements(const ir::Region& region) {
    double elements = 1;
    for (const int64_t extent : region.extents) elements *= double(extent);
    return elements;
  }

  static double Product(const ir::Gemm& gemm) {
    const auto& c = gemm.c.extents;
    const auto& b = gemm.b.extents;
    if (c.size() < 2 || b.size() < 2) return 0;
    return 2.0 * double(c[c.size() - 2]) * double(c.back()) * double(gemm.transpose_b ? b.back() : b[b.size() - 2]);
  }

  void Moved(ir::BufferId buffer, double elements) {
    if (module_[buffer].space == ir::Space::kGlobal) counted_.bytes += elements * ir::Bits(module_[buffer].dtype) / 8;
  }
  void Tile(const ir::Region& region, double times) { Moved(region.buffer, times * Elements(region)); }

  void Elementwise(const ir::Elementwise auto& op, double times) {
    const ir::Region& dst = ir::Destination(op);
    const ir::ElementOf element = [&](const ir::Region& region) {
      return module_.exprs.Load(region.buffer, module_[region.buffer].dtype, region.offsets);
    };
    Element(dst.buffer, ir::Becomes(module_, op, element), times * Elements(dst));
  }
  void Atomic(const ir::Atomic& op, double times) {
    Moved(op.buffer, times);
    if (op.TakesValue()) Expression(op.value, times);
    if (op.Compares()) Expression(op.compare, times);
    counted_.arithmetic += times;
  }
  void Element(ir::BufferId buffer, ir::ExprId value, double times) { Moved(buffer, times), Expression(value, times); }

  // Each node once: equal expressions are computed once.
  void Expression(ir::ExprId id, double times) {
    std::set<uint32_t> seen;
    std::vector<ir::ExprId> open{id};
    while (!open.empty()) {
      const ir::ExprId next = open.back();
      open.pop_back();
      if (!seen.insert(ir::Index(next)).second) continue;
      const ir::ExprNode& node = module_.exprs[next];
      if (node.op == ir::ExprOp::kLoad) Moved(ir::BufferId(node.ref), times);
      if (IsFloatWork(node)) counted_.arithmetic += times;
      open.insert(open.end(), node.Args().begin(), node.Args().end());
    }
  }

  static bool IsFloatWork(const ir::ExprNode& node) {
    switch (ir::RuleOf(node.op)) {
      case ir::TypeRule::arith:
      case ir::TypeRule::unary:
      case ir::TypeRule::math:
      case ir::TypeRule::math2:
      case ir::TypeRule::math3: return ir::IsFloat(node.dtype);
      default: return false;
    }
  }

  ir::Module& module_;  // whose pool takes what elements become
  Counted counted_;
};

Json Blocks(const ir::Module& module, const ir::Kernel& kernel) {
  double blocks = 1;
  for (const ir::ExprId extent : kernel.grid) {
    const auto value = module.exprs.ConstInt(extent);
    if (!value) return Json::Null();
    blocks *= double(*value);
  }
  return Json(Whole(blocks));
}

// Bytes of all tensors that the program names, each read and each written once.
Json TensorBytes(const ir::Module& program) {
  std::vector<Touch> touched(program.buffers.size());
  for (const ir::Kernel& kernel : program.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      for (const Touch& touch : TouchesOf(program, stmt)) {
        touched[ir::Index(touch.buffer)].reads |= touch.reads;
        touched[ir::Index(touch.buffer)].writes |= touch.writes;
      }
    });
  }
  double bytes = 0;
  for (uint32_t i = 0; i < program.buffers.size(); ++i) {
    const ir::Buffer& buffer = program.buffers[i];
    if (buffer.space != ir::Space::kGlobal || !(touched[i].reads || touched[i].writes)) continue;
    const auto shape = program.ConstShape(ir::BufferId(i));
    if (!shape) return Json::Null();
    double elements = 1;
    for (const int64_t extent : *shape) elements *= double(extent);
    bytes += elements * ir::Bits(buffer.dtype) / 8 * (int{touched[i].reads} + int{touched[i].writes});
  }
  return Json(Whole(bytes));
}

// Operations of one multiprocessor in a cycle; nothing where the row does not tell how many units it has.
std::optional<double> Rate(const target::MmaInstruction& row) {
  if (row.units == 0) return std::nullopt;
  return 2.0 * row.m * row.n * row.k / row.cycles * row.units;
}

Json Products(const Decided& decided, const target::Target* target) {
  std::map<std::pair<uint32_t, std::string>, Json> found;
  for (const ir::Kernel& kernel : decided.module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
      if (gemm == nullptr || !gemm->plan) return;
      const std::string& name = gemm->plan->instruction;
      const target::MmaInstruction* row = target == nullptr ? nullptr : target::FindMma(*target, name);
      const std::optional<double> rate = row == nullptr ? std::nullopt : Rate(*row);
      const uint32_t line = decided.LineOf(stmt);
      found.emplace(std::pair(line, name),
                    Json::Object({{"line", line}, {"instruction", name}, {"rate", rate ? Json(*rate) : Json::Null()}, {"row", row != nullptr}}));
    });
  }
  std::vector<Json> out;
  for (const auto& [key, product] : found) out.push_back(product);
  return Json::Array(out);
}

// Bytes that a multiprocessor has from memory and from L2 in a cycle. Only an H200 has figures (compiler/target/costs.h).
Json Bandwidth(const target::Target* target) {
  if (target == nullptr || (target->arch != "sm_90a" && target->arch != "sm_90")) return Json::Null();
  const target::Costs& costs = target->costs;
  return Json::Object({{"memory", double(costs.line) / costs.memory_line_cycles}, {"l2", double(costs.line) / costs.line_cycles}});
}

}  // namespace

Json WorkFacts(const ir::Module& program, const Decided& decided, const target::Target* target) {
  std::vector<Json> kernels;
  ir::Module scratch = program;
  for (const ir::Kernel& kernel : program.kernels) {
    const Counted counted = Counter(scratch).Count(kernel.body);
    std::vector<Json> products;
    for (const auto& [line, operations] : counted.products) products.push_back(Json::Object({{"line", line}, {"operations", Whole(operations)}}));
    kernels.push_back(Json::Object({{"name", kernel.name},
                                    {"blocks", Blocks(program, kernel)},
                                    {"products", Json::Array(products)},
                                    {"arithmetic", Whole(counted.arithmetic)},
                                    {"bytes", Whole(counted.bytes)},
                                    {"unknown", counted.unknown.empty() ? Json::Null() : Json(counted.unknown)}}));
  }
  return Json::Object({{"kernels", Json::Array(kernels)},
                       {"tensors", TensorBytes(program)},
                       {"instructions", Products(decided, target)},
                       {"bandwidth", Bandwidth(target)}});
}

}  // namespace kiln::cli
