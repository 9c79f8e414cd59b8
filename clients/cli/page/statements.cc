// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/page/statements.h"

#include <algorithm>
#include <set>

#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::cli {
namespace {

using ir::Space;

// Only loads and casts of them: nothing is computed.
bool IsMove(const ir::ExprPool& pool, ir::ExprId id) {
  const ir::ExprNode& node = pool[id];
  if (node.op == ir::ExprOp::kCast) return IsMove(pool, node.args[0]);
  return node.op == ir::ExprOp::kLoad;
}

std::string_view KindOfStore(const ir::Module& module, const ir::Store& store) {
  if (module[store.buffer].space == Space::kGlobal) return "store";
  if (!IsMove(module.exprs, store.value)) return "arithmetic";
  ir::ExprId value = store.value;
  while (module.exprs[value].op == ir::ExprOp::kCast) value = module.exprs[value].args[0];
  const Space from = module[ir::BufferId(module.exprs[value].ref)].space;
  const Space to = module[store.buffer].space;
  return from == to && from == Space::kFragment ? "arithmetic" : "copy";
}

std::string_view KindOfLoop(const ir::Module& module, const ir::For& loop) {
  std::string_view kind = "arithmetic";
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    if (const auto* store = std::get_if<ir::Store>(&stmt.op)) kind = KindOfStore(module, *store);
    if (std::holds_alternative<ir::Atomic>(stmt.op)) kind = "store";
  });
  return kind;
}

struct Collector : ir::FieldVisitor {
  const ir::Module& module;
  std::set<uint32_t> seen;
  std::vector<Touch>& touches;

  Collector(const ir::Module& m, std::vector<Touch>& to) : module(m), touches(to) {}

  void Evaluates(auto& expr, std::string_view) { Loads(expr); }
  void Region(auto& region, std::string_view, ir::Use use) { Add(region.buffer, use), Offsets(region.offsets); }
  void Element(auto& buffer, auto& indices, ir::Use use) { Add(buffer, use), Offsets(indices); }
  void Whole(auto& buffer, std::string_view, ir::Use use) { Add(buffer, use); }
  void Names(auto& buffer, std::string_view) { Add(buffer, ir::Use::kUpdate); }
  void Uses(auto& buffer) { Add(buffer, ir::Use::kUpdate); }

  void Offsets(const std::vector<ir::ExprId>& indices) {
    for (const ir::ExprId index : indices) Loads(index);
  }

  void Add(ir::BufferId buffer, ir::Use use) {
    auto found = std::ranges::find(touches, buffer, &Touch::buffer);
    if (found == touches.end()) found = touches.insert(touches.end(), Touch{buffer});
    found->reads |= use != ir::Use::kWrite;
    found->writes |= use != ir::Use::kRead;
  }

  void Loads(ir::ExprId id) {
    if (!seen.insert(ir::Index(id)).second) return;
    const ir::ExprNode& node = module.exprs[id];
    if (node.op == ir::ExprOp::kLoad) Add(ir::BufferId(node.ref), ir::Use::kRead);
    for (const ir::ExprId arg : node.Args()) Loads(arg);
  }
};

}  // namespace

bool IsParallel(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  return loop != nullptr && loop->kind == ir::LoopKind::kParallel;
}

std::string_view KindOf(const ir::Module& module, const ir::Stmt& stmt) {
  return std::visit(ir::Overloaded{
                        [&](const ir::For& op) { return op.kind == ir::LoopKind::kParallel ? KindOfLoop(module, op) : "control"; },
                        [&](const ir::Store& op) { return KindOfStore(module, op); },
                        [&](const ir::Copy& op) -> std::string_view { return module[op.dst.buffer].space == Space::kGlobal ? "store" : "copy"; },
                        []<ir::OneOf<ir::Gemm, ir::Mma> T>(const T&) -> std::string_view { return "product"; },
                        []<ir::OneOf<ir::AnyElementwise, ir::Reduce, ir::Call, ir::PairSum, ir::StreamSum> T>(const T&) -> std::string_view {
                          return "arithmetic";
                        },
                        []<ir::OneOf<ir::Atomic> T>(const T&) -> std::string_view { return "store"; },
                        []<ir::OneOf<ir::Barrier, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait, ir::RingStep> T>(
                            const T&) -> std::string_view { return "wait"; },
                        []<ir::OneOf<ir::Alloc, ir::If, ir::While, ir::Let, ir::Assume, ir::Break, ir::Continue> T>(const T&) -> std::string_view {
                          return "control";
                        },
                    },
                    stmt.op);
}

const ir::Store* OnlyStore(const ir::Stmt& stmt) {
  std::vector<const ir::Store*> found;
  if (IsParallel(stmt)) {
    ir::WalkWithin(stmt, [&](const ir::Stmt& inner) {
      if (const auto* store = std::get_if<ir::Store>(&inner.op)) found.push_back(store);
    });
  }
  return found.size() == 1 ? found.front() : nullptr;
}

std::vector<Touch> TouchesOf(const ir::Module& module, const ir::Stmt& stmt) {
  std::vector<Touch> touches;
  Collector collector(module, touches);
  if (IsParallel(stmt)) {
    ir::WalkWithin(stmt, [&](const ir::Stmt& inner) { ir::Fields(inner.op, collector); });
  } else {
    ir::Fields(stmt.op, collector);
  }
  return touches;
}

std::string Line(const ir::Module& module, const ir::Stmt& stmt) {
  constexpr std::string_view kBody = " { ... }";
  std::string header = ir::PrintStmt(module, stmt);
  if (header.ends_with(kBody)) header.resize(header.size() - kBody.size());
  if (!IsParallel(stmt)) return header;
  std::string text;
  ir::WalkWithin(stmt, [&](const ir::Stmt& inner) {
    if (&inner != &stmt) text += (text.empty() ? "" : "; ") + Line(module, inner);
  });
  return text + "  (" + header + ")";
}

}  // namespace kiln::cli
