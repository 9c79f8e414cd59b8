// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <set>

#include "clients/cli/page/facts.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::cli {
namespace {

using ir::Layout;

// A place is a sum of one term for each dimension (ir/layout.h), so these tables are the whole function.
Json Terms(const Layout& layout, std::span<const int64_t> shape, bool in_memory) {
  std::vector<Json> dims;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<Json> first, second;
    ir::Indices index(shape.size(), 0);
    for (int64_t i = 0; i < shape[d]; ++i) {
      index[d] = i;
      first.emplace_back(in_memory ? layout.AddressOf(index) : layout.ThreadOf(index));
      if (!in_memory) second.emplace_back(layout.RegisterOf(index));
    }
    dims.push_back(in_memory ? Json::Object({{"address", Json::Array(first)}})
                             : Json::Object({{"thread", Json::Array(first)}, {"register", Json::Array(second)}}));
  }
  return Json::Array(dims);
}

// What the threads of the other copies have more than that of the first.
Json Copies(const Layout& layout) {
  std::vector<int64_t> offsets{0};
  for (const ir::Digit& digit : layout.replicas()) {
    std::vector<int64_t> more;
    for (int64_t i = 0; i < digit.size; ++i)
      for (const int64_t offset : offsets) more.push_back(offset + i * digit.stride);
    offsets = std::move(more);
  }
  std::ranges::sort(offsets);
  return Json::Map(offsets, [](int64_t offset) { return Json(offset); });
}

Json Shape(std::span<const int64_t> shape) {
  return Json::Map(shape, [](int64_t extent) { return Json(extent); });
}

Json Spread(const std::string& name, std::string_view kind, const Layout& layout, std::span<const int64_t> shape, Json dtype, Json lines) {
  return Json::Object({{"name", name},
                       {"kind", kind},
                       {"dtype", dtype},
                       {"shape", Shape(shape)},
                       {"text", layout.ToString()},
                       {"threads", layout.Threads()},
                       {"registers", layout.Registers()},
                       {"copies", Copies(layout)},
                       {"terms", Terms(layout, shape, false)},
                       {"lines", lines}});
}

Json InMemory(const std::string& name, const ir::Buffer& buffer, std::span<const int64_t> shape, const v1::SharedSlot* slot, Json lines) {
  const Layout& layout = *buffer.layout;
  return Json::Object({{"name", name},
                       {"kind", buffer.space == ir::Space::kBarrier ? "barrier" : "shared"},
                       {"dtype", ir::Name(buffer.dtype)},
                       {"bits", int64_t{ir::Bits(buffer.dtype)}},
                       {"shape", Shape(shape)},
                       {"text", layout.ToString()},
                       {"offset", buffer.shared_offset ? Json(*buffer.shared_offset) : Json::Null()},
                       {"versions", slot != nullptr ? Json(slot->versions()) : Json::Null()},
                       {"conflicts", slot != nullptr ? Json(slot->bank_conflicts()) : Json::Null()},
                       {"swizzle", Json::Object({{"bits", int64_t{layout.swizzle().bits}},
                                                 {"base", int64_t{layout.swizzle().base}},
                                                 {"shift", int64_t{layout.swizzle().shift}}})},
                       {"terms", Terms(layout, shape, true)},
                       {"lines", lines}});
}

// The program's lines whose statements name a buffer, and its loops over the threads.
struct Uses {
  const Decided& decided;
  std::vector<std::set<uint32_t>> of_buffer;
  std::vector<const ir::Stmt*> loops;

  explicit Uses(const Decided& d) : decided(d), of_buffer(d.module.buffers.size()) {
    for (const ir::Kernel& kernel : decided.module.kernels) ir::Walk(kernel.body, [&](const ir::Stmt& stmt) { Take(stmt); });
  }

  void Take(const ir::Stmt& stmt) {
    const uint32_t line = decided.LineOf(stmt);
    if (line != 0) ir::ForEachBuffer(stmt.op, [&](ir::BufferId id) { of_buffer[ir::Index(id)].insert(line); });
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && loop->layout) loops.push_back(&stmt);
  }
};

Json Lines(const std::set<uint32_t>& lines) {
  return Json::Map(lines, [](uint32_t line) { return Json(line); });
}

// A loop's name is what it writes.
std::string Written(const ir::Names& names, const ir::For& loop) {
  std::string name;
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    if (const auto* store = std::get_if<ir::Store>(&stmt.op); store != nullptr && name.empty()) name = names.Of(store->buffer);
  });
  return name.empty() ? "loop" : name + "[…] =";
}

std::optional<std::vector<int64_t>> ConstExtents(const ir::Module& module, const ir::For& loop) {
  std::vector<int64_t> extents;
  for (const ir::ExprId extent : loop.extents) {
    const auto value = module.exprs.ConstInt(extent);
    if (!value) return std::nullopt;
    extents.push_back(*value);
  }
  return extents;
}

}  // namespace

Json LayoutFacts(const Decided& decided, const v1::Report& report) {
  const ir::Module& module = decided.module;
  const ir::Names names(module);
  const Uses uses(decided);
  std::vector<Json> out;
  for (uint32_t i = 0; i < module.buffers.size(); ++i) {
    const ir::Buffer& buffer = module.buffers[i];
    const auto shape = module.ConstShape(ir::BufferId(i));
    if (!buffer.layout || !shape || buffer.layout->rank() != int(shape->size())) continue;
    const std::string& name = names.Of(ir::BufferId(i));
    if (buffer.space == ir::Space::kFragment) {
      out.push_back(Spread(name, "fragment", *buffer.layout, *shape, ir::Name(buffer.dtype), Lines(uses.of_buffer[i])));
    } else {
      out.push_back(InMemory(name, buffer, *shape, SlotOf(decided, report, ir::BufferId(i)), Lines(uses.of_buffer[i])));
    }
  }
  std::set<std::string> seen;  // a pipeline repeats the loops that copy: once each
  for (const ir::Stmt* stmt : uses.loops) {
    const auto& loop = std::get<ir::For>(stmt->op);
    const auto extents = ConstExtents(module, loop);
    if (!extents || loop.layout->rank() != int(extents->size())) continue;
    const uint32_t line = decided.LineOf(*stmt);
    const std::string name = Written(names, loop);
    if (!seen.insert(name + loop.layout->ToString() + std::to_string(line)).second) continue;
    std::set<uint32_t> lines;
    if (line != 0) lines.insert(line);
    out.push_back(Spread(name, "loop", *loop.layout, *extents, Json::Null(), Lines(lines)));
  }
  return Json::Array(out);
}

}  // namespace kiln::cli
