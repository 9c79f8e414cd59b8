// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/artifact.h"

#include <fmt/format.h>

namespace kiln::runtime {
namespace {

// One field of a message: `number` for the varint and fixed wire types, `bytes` for the length-delimited one.
struct Field {
  uint32_t id = 0;
  uint32_t wire = 0;
  uint64_t number = 0;
  std::string_view bytes;
};

// Walks a message (protobuf documentation, "Encoding"). Once it has failed, it gives no more fields.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  bool Next(Field& field) {
    if (rest_.empty() || !ok_) return false;
    uint64_t tag = 0;
    if (!Varint(tag) || tag >> 35) return Fail();
    field.id = uint32_t(tag >> 3);
    field.wire = uint32_t(tag & 7);
    switch (field.wire) {
      case 0: return Varint(field.number) || Fail();
      case 1: return Take(8, field.bytes) || Fail();
      case 5: return Take(4, field.bytes) || Fail();
      case 2: {
        uint64_t size = 0;
        return (Varint(size) && Take(size, field.bytes)) || Fail();
      }
      default: return Fail();
    }
  }
  // The next entry of a packed list of numbers.
  bool NextPacked(uint32_t& out) {
    if (rest_.empty() || !ok_) return false;
    uint64_t value = 0;
    if (!Varint(value) || value > UINT32_MAX) return Fail();
    out = uint32_t(value);
    return true;
  }
  bool ok() const { return ok_; }

 private:
  bool Fail() {
    ok_ = false;
    return false;
  }
  bool Varint(uint64_t& value) {
    value = 0;
    for (unsigned shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = uint8_t(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t(byte & 0x7f) << shift;
      if (!(byte & 0x80)) return true;
    }
    return false;
  }
  bool Take(uint64_t size, std::string_view& out) {
    if (size > rest_.size()) return false;
    out = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_;
  bool ok_ = true;
};

template <class Message>
bool DecodeEach(std::string_view bytes, Message& message, bool (*decode)(const Field&, Message&)) {
  Reader reader(bytes);
  for (Field field; reader.Next(field);)
    if (!decode(field, message)) return false;
  return reader.ok();
}

// These readers return false if the field has another wire type than its number demands.
bool Number(const Field& field, uint32_t& out) {
  out = uint32_t(field.number);
  return field.wire == 0 && field.number <= UINT32_MAX;
}
// An entry of a list, or several packed: readers have to take both.
bool Numbers(const Field& field, std::vector<uint32_t>& list) {
  if (field.wire != 2) return Number(field, list.emplace_back());
  Reader reader(field.bytes);
  for (uint32_t value; reader.NextPacked(value);) list.push_back(value);
  return reader.ok();
}
bool Flag(const Field& field, bool& out) {
  out = field.number != 0;
  return field.wire == 0;
}
bool Text(const Field& field, std::string& out) {
  out = field.bytes;
  return field.wire == 2;
}
template <class Enum>
bool Enumerator(const Field& field, Enum last, Enum& out) {
  out = Enum(field.number);
  return field.wire == 0 && field.number <= uint64_t(last);
}
bool Type(const Field& field, DType& out) { return Enumerator(field, DType(255), out); }  // Binder::Create refuses unknown ones
template <class Message>
bool Nested(const Field& field, std::vector<Message>& list, bool (*decode)(const Field&, Message&)) {
  return field.wire == 2 && DecodeEach(field.bytes, list.emplace_back(), decode);
}

bool DecodeNode(const Field& field, HostNode& node) {
  switch (field.id) {
    case 1: return Enumerator(field, HostOp::kMax, node.op);
    case 2: node.value = int64_t(field.number >> 1) ^ -int64_t(field.number & 1); return field.wire == 0;  // sint64
    case 3: return Number(field, node.a);
    case 4: return Number(field, node.b);
    default: return true;
  }
}
bool DecodeExpr(const Field& field, HostNodes& nodes) { return field.id != 1 || Nested(field, nodes, DecodeNode); }

bool DecodeParam(const Field& field, LaunchParam& param) {
  switch (field.id) {
    case 1: return Text(field, param.name);
    case 2: return Type(field, param.dtype);
    case 3: return Flag(field, param.tensor);
    case 4: return Nested(field, param.shape, DecodeExpr);
    case 5: return Nested(field, param.strides, DecodeExpr);
    case 6: return Flag(field, param.output);
    case 7: return Flag(field, param.written);
    case 8: return Number(field, param.alignment);
    case 9: return Flag(field, param.may_alias);
    case 10: return Flag(field, param.unused);
    default: return true;
  }
}
bool DecodeSymbol(const Field& field, LaunchSymbol& symbol) {
  if (field.id == 1) return Text(field, symbol.name);
  return field.id != 2 || Type(field, symbol.dtype);
}
bool DecodeWorkspace(const Field& field, Workspace& workspace) {
  if (field.id == 1) return Type(field, workspace.dtype);
  if (field.id == 3) return Flag(field, workspace.zeroed);
  return field.id != 2 || Nested(field, workspace.shape, DecodeExpr);
}
bool DecodeTensorMap(const Field& field, TensorMap& map) {
  switch (field.id) {
    case 1: return Number(field, map.tensor);
    case 2: return Numbers(field, map.box);
    case 3: return Number(field, map.swizzle_bytes);
    case 4: return Number(field, map.panels);
    case 5: return Number(field, map.view);
    default: return true;
  }
}
bool DecodeView(const Field& field, LaunchView& view) {
  switch (field.id) {
    case 1: return Number(field, view.tensor);
    case 2: return Nested(field, view.shape, DecodeExpr);
    case 3: return Nested(field, view.strides, DecodeExpr);
    case 4: return Nested(field, view.positive, DecodeExpr);
    default: return true;
  }
}
bool DecodeArg(const Field& field, KernelArg& arg) {
  if (field.id < 1 || field.id > uint32_t(KernelArg::Kind::kBlockCounter)) return true;  // a kind we do not know stays kNone
  arg.kind = KernelArg::Kind(field.id);
  return Number(field, arg.index);
}
bool DecodeAssumption(const Field& field, Assumption& assumption) {
  switch (field.id) {
    case 1: return field.wire == 2 && DecodeEach(field.bytes, assumption.left, DecodeExpr);
    case 2: return Enumerator(field, Assumption::Relation::kLe, assumption.relation);
    case 3: return field.wire == 2 && DecodeEach(field.bytes, assumption.right, DecodeExpr);
    default: return true;
  }
}
bool DecodeLaunch(const Field& field, LaunchSpec& launch) {
  switch (field.id) {
    case 1: return Text(field, launch.entry);
    case 2: return Nested(field, launch.grid, DecodeExpr);
    case 3: return Number(field, launch.threads);
    case 4:
    case 5:
    case 6: return Number(field, launch.cluster[field.id - 4]);
    case 7: return Number(field, launch.dynamic_shared_bytes);
    case 8: return Nested(field, launch.args, DecodeArg);
    case 9: return Nested(field, launch.assumptions, DecodeAssumption);
    default: return true;
  }
}
bool DecodeLaunchInfo(const Field& field, LaunchInfo& info) {
  switch (field.id) {
    case 1: return Nested(field, info.params, DecodeParam);
    case 2: return Nested(field, info.symbols, DecodeSymbol);
    case 3: return Nested(field, info.workspaces, DecodeWorkspace);
    case 4: return Nested(field, info.launches, DecodeLaunch);
    case 5: return Nested(field, info.tensor_maps, DecodeTensorMap);
    case 6: return Nested(field, info.views, DecodeView);
    default: return true;
  }
}
bool DecodeField(const Field& field, Artifact& artifact) {
  switch (field.id) {
    case 1: return Text(field, artifact.target);
    case 2: return Enumerator(field, CodeKind::kEmulator, artifact.kind);
    case 3: return Text(field, artifact.code);
    case 4: return Text(field, artifact.cubin);
    case 5: return field.wire == 2 && DecodeEach(field.bytes, artifact.launch, DecodeLaunchInfo);
    case 8: return Flag(field, artifact.unoptimized);
    default: return true;
  }
}

}  // namespace

Result<Artifact> DecodeArtifact(std::string_view bytes) {
  Artifact artifact;
  if (!DecodeEach(bytes, artifact, DecodeField) || artifact.target.empty())
    return ArtifactError(
        fmt::format("these {} bytes are no kiln.v1.Artifact that this runtime knows; they are damaged, or made by a "
                    "newer Kiln",
                    bytes.size()));
  return artifact;
}

}  // namespace kiln::runtime
