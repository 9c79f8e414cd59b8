// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "ir/grammar/writer.h"
#include "ir/op.h"

namespace kiln::ir::grammar {
namespace {

bool MayNest(const Writer& writer) { return writer.place.depth < writer.sizes().depth; }

Place Inside(const Writer& writer, bool some_threads) {
  Place place = writer.place;
  place.some_threads |= some_threads;
  return place;
}

BufferId Target(Writer& writer) {
  for (int tries = 0; tries < 4; ++tries) {
    const BufferId id = writer.SomeBuffer();
    if (writer.module[id].space != Space::kLocal && writer.HasElements(id)) return id;
  }
  return writer.AddTile(Space::kFragment, writer.Shape(size_t(1 + writer.Below(2)), writer.sizes().elements));
}

// Over elements: what each iteration writes is its own.
Op WriteElements(Writer& writer) {
  const auto outer = std::tuple(writer.own, writer.written, writer.scope);
  For loop{.kind = LoopKind::kParallel, .vars = {}, .extents = {}, .coalesced_width = uint32_t(writer.OneIn(6) ? 1 << writer.Below(4) : 0)};
  const BufferId target = Target(writer);
  writer.own.clear();
  int64_t most = writer.sizes().elements;
  for (size_t d = 0; d < writer.module[target].shape.size() && writer.own.size() < 4; ++d) {
    const int64_t all = writer.ConstExtent(target, d).value_or(64);
    int64_t extent = std::min({all, writer.module[target].space == Space::kGlobal ? writer.Extent() : all, most});
    if (writer.Odd(40)) extent = writer.Extent();
    most = std::max<int64_t>(1, most / std::max<int64_t>(1, extent));
    writer.own.emplace_back(writer.Loop(extent, writer.Odd(20) ? DType::kI64 : DType::kI32), extent);
  }
  if (writer.own.empty()) writer.own.emplace_back(writer.Loop(1), 1);
  for (const auto& [var, extent] : writer.own) {
    loop.vars.push_back(var);
    loop.extents.push_back(writer.module.exprs.Int(extent, writer.module[var].dtype));
  }
  std::vector<int64_t> shape;
  for (const auto& one : writer.own) shape.push_back(one.second);
  if (writer.decisions() && Writer::HasLayout(shape) && writer.Coin()) loop.layout = writer.SomeLayout(shape);
  writer.written = target;
  Place place = writer.place;
  place.parallel = true;
  place.in_loop = false;
  loop.body = writer.Nested(place);
  const Place around = std::exchange(writer.place, place);
  loop.body.push_back(
      {Store{target, writer.OwnIndices(target), writer.module.exprs.Cast(writer.module[target].dtype, writer.module.VarRef(loop.vars[0]))}, {}});
  writer.place = around;
  std::tie(writer.own, writer.written, writer.scope) = outer;
  return loop;
}

// One iteration after the other, or a row of elements.
Op WriteCounted(Writer& writer, LoopKind kind) {
  const Scope outer = writer.scope;
  const DType type = writer.Odd(12) ? DType::kI64 : DType::kI32;
  const bool long_unrolled = kind == LoopKind::kUnroll && writer.OneIn(30);
  const int64_t extent = long_unrolled ? writer.Pick<int64_t>({64, 65, 1000, 5000}) : writer.Pick<int64_t>({0, 1, 2, 2, 3, 4, 4, 7, 8, 16});
  const bool constant = kind == LoopKind::kVectorized || writer.OneIn(2);
  ExprId up_to = writer.module.exprs.Int(extent, type);
  if (!constant) up_to = writer.module.exprs.Cast(type, writer.place.parallel ? writer.Index(16) : writer.UniformCount());
  For loop{.kind = kind, .vars = {writer.Loop(constant ? extent : 0, type)}, .extents = {up_to}};
  if (kind == LoopKind::kPipelined) loop.num_stages = uint32_t(writer.Below(5));
  Place place = Inside(writer, !constant && writer.DiffersByThread(up_to));
  const auto own = writer.own;
  if (kind == LoopKind::kVectorized) writer.own.emplace_back(loop.vars[0], extent);
  place.parallel |= kind == LoopKind::kVectorized;
  place.in_loop = kind != LoopKind::kVectorized;
  loop.body = writer.Nested(place);
  writer.own = own;
  writer.scope = outer;
  return loop;
}

}  // namespace

int Weight(const Writer& writer, Tag<For>) { return !MayNest(writer) ? 0 : writer.sizes().flat ? 1 : 14; }
Op Write(Writer& writer, Tag<For>) {
  const bool apart = writer.place.parallel || (writer.place.some_threads && !writer.OneIn(20));
  if (apart) return WriteCounted(writer, writer.Pick<LoopKind>({LoopKind::kSerial, LoopKind::kUnroll, LoopKind::kVectorized}));
  if (writer.Coin()) return WriteElements(writer);
  if (writer.OneIn(6)) return WriteProductLoop(writer);
  return WriteCounted(writer, writer.Pick<LoopKind>({LoopKind::kSerial, LoopKind::kSerial, LoopKind::kUnroll, LoopKind::kUnroll,
                                                     LoopKind::kVectorized, LoopKind::kPipelined, LoopKind::kPersistent}));
}

int Weight(const Writer& writer, Tag<If>) { return MayNest(writer) ? 6 : 0; }
Op Write(Writer& writer, Tag<If>) {
  const auto [cond, together] = writer.Branch();
  If branch{.cond = cond, .then_body = {}, .else_body = {}};
  const Place place = Inside(writer, !together);
  branch.then_body = writer.Nested(place);
  if (writer.OneIn(3)) branch.else_body = writer.Nested(place);
  return branch;
}

int Weight(const Writer& writer, Tag<While>) { return MayNest(writer) && !writer.sizes().flat ? 2 : 0; }
Op Write(Writer& writer, Tag<While>) {
  const auto [cond, together] = writer.Branch();
  While loop{.cond = cond, .body = {}};
  Place place = Inside(writer, !together);
  place.in_loop = true;
  loop.body = writer.Nested(place);
  if (writer.Coin()) loop.body.push_back({writer.Coin() ? Op(Break{}) : Op(Continue{}), {}});
  return loop;
}

int Weight(const Writer& writer, Tag<Break>) { return writer.place.in_loop ? 1 : 0; }
Op Write(Writer&, Tag<Break>) { return Break{}; }

int Weight(const Writer& writer, Tag<Continue>) { return writer.place.in_loop ? 1 : 0; }
Op Write(Writer&, Tag<Continue>) { return Continue{}; }

// Few modules call functions, for few daemons may compile these.
int Weight(const Writer& writer, Tag<Call>) { return writer.signals() ? writer.Together(1) : 0; }
Op Write(Writer& writer, Tag<Call>) {
  if (writer.module.functions.empty()) {
    writer.module.functions.push_back({Language::kLlvm, "nothing", "define void @nothing(ptr %a, i32 %n) {\n  ret void\n}"});
  }
  const BufferId tile = writer.AddTile(Space::kShared, DType::kF32, {64});
  return Call{FunctionId(0), {{tile, writer.Index(64)}, {{}, writer.module.exprs.Int(writer.Below(9))}}};
}

}  // namespace kiln::ir::grammar
