// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>

#include "ir/op.h"
#include "ir/verify/verifier.h"

namespace kiln::ir {

bool Verifier::CheckExpr(ExprId id) {
  ++round_;
  return CheckNode(id);
}

// What is wrong in a shared part is said once for each expression that a statement holds.
bool Verifier::CheckNode(ExprId id) {
  if (checked_[Index(id)] == round_) return sound_[Index(id)];
  const ExprNode& node = exprs()[id];
  bool sound = true;
  for (ExprId arg : node.Args()) sound &= CheckNode(arg);
  if (sound) {
    std::string problem = TypeProblem(exprs(), node);
    if (!problem.empty()) Error(std::move(problem), "convert an operand, as f32(x)");
    sound = problem.empty();
  }
  if (node.op == ExprOp::kVar) sound = CheckVar(node) && sound;
  if (node.op == ExprOp::kLoad) sound = CheckLoad(node) && sound;
  checked_[Index(id)] = round_;
  sound_[Index(id)] = sound;
  return sound;
}

bool Verifier::CheckVar(const ExprNode& node) {
  VarId var{node.ref};
  if (!var_scope_[node.ref]) {
    Error(fmt::format("{} is used outside the statements that bind it", Name(var)), "bind it by a loop, let or block variable around this statement");
    return false;
  }
  if (module_[var].dtype == node.dtype) return true;
  Error(fmt::format("{} is {} and is read as {}", Name(var), ir::Name(module_[var].dtype), ir::Name(node.dtype)),
        fmt::format("read it as {} and convert that", ir::Name(module_[var].dtype)));
  return false;
}

bool Verifier::CheckLoad(const ExprNode& node) {
  BufferId buffer{node.ref};
  if (!CheckUsable(buffer) || !CheckIndices(buffer, node.Args())) return false;
  if (module_[buffer].dtype == node.dtype) return true;
  Error(fmt::format("{} holds {} and is read as {}", Name(buffer), ir::Name(module_[buffer].dtype), ir::Name(node.dtype)),
        fmt::format("read it as {} and convert that", ir::Name(module_[buffer].dtype)));
  return false;
}

bool Verifier::CheckTyped(ExprId id, DType dtype, std::string_view what) {
  if (!CheckExpr(id)) return false;
  if (exprs().Type(id) == dtype) return true;
  Error(fmt::format("{} is {}, expected {}", what, ir::Name(exprs().Type(id)), ir::Name(dtype)),
        fmt::format("convert it, as {}(x)", ir::Name(dtype)));
  return false;
}

bool Verifier::CheckInteger(ExprId id, std::string_view what) {
  if (!CheckExpr(id)) return false;
  if (IsInteger(exprs().Type(id))) return true;
  Error(fmt::format("{} is {}, expected an integer", what, ir::Name(exprs().Type(id))), "convert it, as i32(x)");
  return false;
}

bool Verifier::CheckUsable(BufferId buffer) {
  if (!buffer_scope_[Index(buffer)]) {
    Error(fmt::format("{} is used outside the block that allocates it", Name(buffer)), "allocate it before, in this block or one around it");
    return false;
  }
  if (module_[buffer].space == Space::kFragment) return CheckHolder(buffer);
  if (module_[buffer].space != Space::kBarrier) return true;
  Error(fmt::format("{} is a barrier and holds no elements", Name(buffer)), "use another buffer for data");
  return false;
}

// A layout counts the threads of one range, from 0.
bool Verifier::CheckHolder(BufferId fragment) {
  if (!module_[fragment].layout) return true;
  const auto [it, added] = holders_.try_emplace(fragment, threads);
  if (added || it->second.IsSame(threads)) return true;
  Error(fmt::format("{} is spread over threads {} to {} and used by threads {} to {}", Name(fragment), it->second.begin, it->second.end,
                    threads.begin, threads.end),
        "hand its elements on through shared memory");
  return false;
}

void Verifier::CheckRing(const Ring& ring) {
  if (!InScope(ring.barriers) || module_[ring.barriers].space != Space::kBarrier) {
    Error(fmt::format("{} are no barriers in scope", Name(ring.barriers)), "allocate them before the loop that uses them");
  }
  const Buffer& position = module_[ring.position];
  if (!CheckUsable(ring.position)) return;
  if (position.space != Space::kLocal || position.dtype != DType::kI32) {
    Error(fmt::format("{} is no position in a ring", Name(ring.position)), "use a local buffer of two i32: the stage and its parity");
  }
}

bool Verifier::CheckSignal(BufferId barriers, const std::vector<ExprId>& indices) {
  if (!InScope(barriers) || module_[barriers].arrivals.empty()) {
    Error(fmt::format("{} are no barriers in scope with a number of arrivals", Name(barriers)),
          "allocate them before, as barrier i64[1] arrivals(128)");
    return false;
  }
  bool sound = true;
  for (ExprId index : indices) sound &= CheckInteger(index, "which barrier");
  return sound && CheckIndices(barriers, indices);
}

void Verifier::CheckCluster(const std::optional<ExprId>& rank, std::string_view what) {
  if (cluster == 0) return Error(fmt::format("{} in a kernel without one", what), "say how many blocks a cluster has, as cluster(2, 1)");
  if (!rank || !CheckInteger(*rank, "the block's rank")) return;
  const std::optional<int64_t> number = exprs().ConstInt(*rank);
  if (number && (*number < 0 || *number >= cluster))
    Error(fmt::format("block {} of a cluster of {}", *number, cluster), fmt::format("ranks go from 0 to {}", cluster - 1));
}

bool Verifier::CheckElement(BufferId buffer, const std::vector<ExprId>& indices) {
  if (!CheckUsable(buffer)) return false;
  bool sound = true;
  for (ExprId index : indices) sound &= CheckInteger(index, "an index");
  return sound && CheckIndices(buffer, indices);
}

bool Verifier::CheckIndices(BufferId buffer, std::span<const ExprId> indices) {
  const std::vector<ExprId>& shape = module_[buffer].shape;
  if (indices.size() != shape.size()) {
    Error(fmt::format("{} has {} dimensions and is indexed by {}", Name(buffer), shape.size(), indices.size()), "give one index for each dimension");
    return false;
  }
  if (module_[buffer].space == Space::kGlobal || branches > 0) return true;
  for (size_t d = 0; d < shape.size(); ++d) {
    std::optional<int64_t> index = exprs().ConstInt(indices[d]), extent = exprs().ConstInt(shape[d]);
    if (!index || !extent || (*index >= 0 && *index < *extent)) continue;
    Error(fmt::format("index {} of dimension {} of {}, whose extent is {}", *index, d, Name(buffer), *extent),
          "keep it inside, or put the access under an if");
    return false;
  }
  return true;
}

bool Verifier::CheckRegion(const Region& region, std::string_view what) {
  if (!CheckUsable(region.buffer)) return false;
  const Buffer& buffer = module_[region.buffer];
  size_t rank = buffer.shape.size();
  if (region.offsets.size() != rank || region.extents.size() != rank) {
    Error(fmt::format("{} names {} offsets and {} extents of {}, which has {} dimensions", what, region.offsets.size(), region.extents.size(),
                      Name(region.buffer), rank),
          "give each dimension an offset and an extent");
    return false;
  }
  int64_t elements = 1;
  for (size_t d = 0; d < rank; ++d) {
    int64_t extent = region.extents[d];
    if (!CheckInteger(region.offsets[d], "an offset")) return false;
    if (extent < 0) {
      Error(fmt::format("{} takes {} elements of dimension {} of {}", what, extent, d, Name(region.buffer)), "take 0 or more");
      return false;
    }
    if (__builtin_mul_overflow(elements, extent, &elements) || elements > kMaxTileElements) {
      Error(fmt::format("{} has more than 2^24 elements: {}", what, fmt::join(region.extents, " × ")), "shrink the tile");
      return false;
    }
    std::optional<int64_t> size = exprs().ConstInt(buffer.shape[d]);
    if (buffer.space == Space::kGlobal || !size) continue;
    int64_t offset = branches > 0 ? 0 : exprs().ConstInt(region.offsets[d]).value_or(0);
    if (offset >= 0 && extent <= *size && offset <= *size - extent) continue;
    Error(fmt::format("{} takes elements {} to {} of dimension {} of {}, whose extent is {}", what, offset, offset + (extent - 1), d,
                      Name(region.buffer), *size),
          "take a part that lies inside, or make the tile larger");
    return false;
  }
  return true;
}

bool Verifier::InParallel() const {
  return std::ranges::any_of(loops, [](LoopKind kind) { return kind == LoopKind::kParallel || kind == LoopKind::kVectorized; });
}

bool Verifier::CheckTogether(std::string_view what) {
  if (!InParallel()) return true;
  Error(fmt::format("{} inside a parallel or vectorized loop; it is done by all threads together", what),
        "move it out of the loop, or write its elements with store");
  return false;
}

bool Verifier::Bind(VarId var, VarKind kind, std::string_view what) {
  if (module_[var].kind != kind) {
    Error(fmt::format("{} is bound as {}, but is of another kind", Name(var), what), "use a new variable");
    return false;
  }
  if (var_scope_[Index(var)]) {
    Error(fmt::format("{} is bound again inside the statement that binds it", Name(var)), "use a new variable");
    return false;
  }
  var_scope_[Index(var)] = true;
  bound_.push_back(var);
  return true;
}

void Verifier::Bring(BufferId buffer) {
  allocated_[Index(buffer)] = true;
  buffer_scope_[Index(buffer)] = true;
  brought_.push_back(buffer);
}

}  // namespace kiln::ir
