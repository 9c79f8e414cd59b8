// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "clients/cli/page/facts.h"
#include "clients/cli/page/statements.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::cli {
namespace {

bool IsShared(const ir::Buffer& buffer) {
  return (buffer.space == ir::Space::kShared || buffer.space == ir::Space::kBarrier) && buffer.shared_offset.has_value();
}

// The statements of a kernel that touch its shared memory, in their order, and the loops around them.
class Map {
 public:
  Map(const Decided& decided, const v1::Report& report, const ir::Kernel& kernel) : decided_(decided), report_(report), kernel_(kernel) {
    Take(kernel.body);
  }

  Json ToJson() const {
    std::vector<Json> buffers;
    for (uint32_t i = 0; i < decided_.module.buffers.size(); ++i) {
      if (Uses(i).empty()) continue;
      buffers.push_back(Buffer(ir::BufferId(i)));
    }
    return Json::Object({{"kernel", kernel_.name},
                         {"bytes", kernel_.shared_bytes},
                         {"statements", Json::Array(statements_)},
                         {"loops", Json::Array(loops_)},
                         {"buffers", Json::Array(buffers)}});
  }

 private:
  struct Use {
    size_t statement;
    ir::BufferId buffer;
    std::string_view kind;
  };

  void Take(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      Touches(stmt);
      const bool loops = std::holds_alternative<ir::For>(stmt.op) || std::holds_alternative<ir::While>(stmt.op);
      if (IsParallel(stmt)) continue;
      const size_t from = statements_.size();
      ir::ForEachBody(stmt.op, [&](const ir::Block& body) { Take(body); });
      if (loops && statements_.size() > from) {
        loops_.push_back(Json::Object({{"from", uint64_t{from}},
                                       {"to", uint64_t{statements_.size()}},
                                       {"text", Line(decided_.module, stmt)},
                                       {"line", decided_.LineOf(stmt)}}));
      }
    }
  }

  void Touches(const ir::Stmt& stmt) {
    bool any = false;
    for (const Touch& touch : TouchesOf(decided_.module, stmt)) {
      if (!IsShared(decided_.module[touch.buffer])) continue;
      any = true;
      uses_.push_back({statements_.size(), touch.buffer, touch.reads && touch.writes ? "both" : touch.reads ? "reads" : "writes"});
    }
    if (!any) return;
    statements_.push_back(
        Json::Object({{"text", Line(decided_.module, stmt)}, {"kind", KindOf(decided_.module, stmt)}, {"line", decided_.LineOf(stmt)}}));
  }

  std::vector<Use> Uses(uint32_t buffer) const {
    std::vector<Use> found;
    std::ranges::copy_if(uses_, std::back_inserter(found), [&](const Use& use) { return ir::Index(use.buffer) == buffer; });
    return found;
  }

  Json Buffer(ir::BufferId id) const {
    const ir::Buffer& buffer = decided_.module[id];
    const v1::SharedSlot* slot = SlotOf(decided_, report_, id);
    return Json::Object({{"name", ir::Names(decided_.module).Of(id)},
                         {"offset", *buffer.shared_offset},
                         {"bytes", slot == nullptr ? Json::Null() : Json(slot->bytes())},
                         {"versions", slot == nullptr ? Json::Null() : Json(slot->versions())},
                         {"conflicts", slot == nullptr ? Json::Null() : Json(slot->bank_conflicts())},
                         {"layout", buffer.layout ? Json(buffer.layout->ToString()) : Json::Null()},
                         {"uses", Json::Map(Uses(ir::Index(id)), [](const Use& use) {
                            return Json::Object({{"statement", uint64_t{use.statement}}, {"kind", use.kind}});
                          })}});
  }

  const Decided& decided_;
  const v1::Report& report_;
  const ir::Kernel& kernel_;
  std::vector<Json> statements_, loops_;
  std::vector<Use> uses_;
};

}  // namespace

Json MemoryFacts(const Decided& decided, const v1::Report& report, const target::Target* target) {
  return Json::Object(
      {{"limit", target == nullptr ? Json::Null() : Json(target->max_shared_bytes)},
       {"kernels", Json::Map(decided.module.kernels, [&](const ir::Kernel& kernel) { return Map(decided, report, kernel).ToJson(); })}});
}

}  // namespace kiln::cli
