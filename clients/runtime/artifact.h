// SPDX-License-Identifier: Apache-2.0
//
// kiln.v1.Artifact as the launcher needs it, decoded from its bytes without protobuf: the Python extension is loaded beside torch,
// which may bring a protobuf and a C++ library of its own. artifact_test.cc holds this to compile.proto.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "clients/runtime/error.h"

namespace kiln::runtime {

// Numbers of kiln.v1.DType; 0 is none.
enum class DType : uint8_t {
#define KILN_DTYPE(number, id, name, bits, kind) id = number,
#include "ir/dtypes.def"
};

enum class CodeKind : uint8_t { kNone = 0, kPtx = 1, kHsaco = 2, kCubin = 3, kEmulator = 4 };

enum class HostOp : uint8_t { kConst, kSymbol, kScalar, kAdd, kSub, kMul, kFloorDiv, kFloorMod, kMin, kMax };
struct HostNode {
  HostOp op = HostOp::kConst;
  int64_t value = 0;
  uint32_t a = 0, b = 0;
};
using HostNodes = std::vector<HostNode>;  // unchecked; HostExpr::Parse checks

struct LaunchParam {
  std::string name;
  DType dtype{};
  bool tensor = false;
  std::vector<HostNodes> shape;
  std::vector<HostNodes> strides;  // in elements; empty: must be contiguous
  bool output = false;
  bool written = false;
  uint32_t alignment = 0;   // bytes the compiler relied on
  bool may_alias = false;   // may overlap the other tensors that say so
  bool unused = false;      // a tensor that no launch reads or writes: it may be absent
  bool by_address = false;  // whoever loads it sets this: an address is taken, of a tensor its own, and who passes it answers for overlaps and bounds
};

struct LaunchSymbol {
  std::string name;
  DType dtype{};
};

struct Workspace {
  DType dtype{};
  std::vector<HostNodes> shape;
  bool zeroed = false;    // before the first launch; each launch leaves it so
  std::string name = {};  // for reports; artifacts hold none
};

// How tensor copies cut a tensor into boxes; tensor_map.h encodes it.
struct TensorMap {
  uint32_t tensor = 0;        // params[tensor]
  std::vector<uint32_t> box;  // elements along each of its dimensions
  uint32_t swizzle_bytes = 0;
  uint32_t panels = 0;  // boxes that are moved as one
  uint32_t view = 0;    // not 0: of views[view - 1]
};

// A tensor that a kernel sees in a parameter, which is contiguous, from its first element on.
struct LaunchView {
  uint32_t tensor = 0;  // params[tensor]
  std::vector<HostNodes> shape;
  std::vector<HostNodes> strides;   // in elements
  std::vector<HostNodes> positive;  // what is 1 or more
};

struct KernelArg {
  enum class Kind : uint8_t { kNone, kTensor, kScalar, kSymbol, kWorkspace, kTensorMap, kZeroedWorkspace, kBlockCounter } kind = Kind::kNone;
  uint32_t index = 0;
};

// What a launch relies on: left relation right.
struct Assumption {
  enum class Relation : uint8_t { kEq, kNe, kLt, kLe } relation{};
  HostNodes left, right;
};

struct LaunchSpec {
  std::string entry;
  std::vector<HostNodes> grid;
  uint32_t threads = 0;
  std::array<uint32_t, 3> cluster = {};  // {0, …}: no cluster
  uint32_t dynamic_shared_bytes = 0;
  std::vector<KernelArg> args;
  std::vector<Assumption> assumptions;
};

struct LaunchInfo {
  std::vector<LaunchParam> params;
  std::vector<LaunchSymbol> symbols;
  std::vector<Workspace> workspaces;
  std::vector<LaunchSpec> launches;
  std::vector<TensorMap> tensor_maps;
  std::vector<LaunchView> views;
};

struct Artifact {
  std::string target;
  CodeKind kind = CodeKind::kNone;
  std::string code;
  std::string cubin;
  LaunchInfo launch;
  bool unoptimized = false;  // PTX so long that the driver's compiler should not optimize it
};

// Hostile input: bounds are checked, unknown fields skipped, enumerators outside their range refused.
Result<Artifact> DecodeArtifact(std::string_view bytes);

}  // namespace kiln::runtime
