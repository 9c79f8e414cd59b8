// SPDX-License-Identifier: Apache-2.0
#include "ir/codec/wire_size.h"

#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "ir/limits.h"
#include "kiln/v1/ir.pb.h"

namespace kiln::ir {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;

// Sizes of separate allocations, measured with protobuf 3.21 and glibc on 64 bits: they include the allocator's own bytes, and a list's
// pointers with space for twice as many.
constexpr size_t kOfAMessage = 48;    // besides itself
constexpr size_t kOfAString = 64;     // besides its bytes
constexpr size_t kOfAnUnknown = 112;  // besides its bytes
constexpr size_t kOfAMapEntry = 192;
constexpr size_t kOfAList = 32;  // of numbers, besides these

// What a program is made of, likewise, while what holds it grows. A text's blocks double, and take up to 744 a statement when they do; but for
// as many statements as there may be, no more than this.
constexpr size_t kOfAStatement = 512;
constexpr size_t kOfAnExpression = 160;
constexpr size_t kOfABuffer = 768;
constexpr size_t kOfAVariable = 192;
constexpr size_t kOfAParameter = 64;
constexpr size_t kOfAKernel = 1024;
constexpr size_t kOfAText = 160;  // for each byte: "-~-~-~%x" has six expressions besides %x, "break " is a statement

size_t Decoded(const ModuleSize& size) {
  return size.statements * kOfAStatement + size.expressions * kOfAnExpression + size.buffers * kOfABuffer + size.variables * kOfAVariable +
         size.parameters * kOfAParameter + size.kernels * kOfAKernel;
}

// The parser stops at the limits of a module. Names stay in the text.
size_t DecodedText(size_t bytes) {
  static const size_t most = Decoded({.variables = kMaxVars,
                                      .buffers = kMaxBuffers,
                                      .expressions = kMaxExprs,
                                      .parameters = kMaxParams,
                                      .kernels = kMaxKernels,
                                      .statements = kMaxStmts});
  return std::min(kOfAText * bytes, most + 8 * bytes);
}

size_t SizeOf(const Descriptor& type) {
  if (type.options().map_entry()) return kOfAMapEntry;
  return google::protobuf::MessageFactory::generated_factory()->GetPrototype(&type)->SpaceUsedLong() + kOfAMessage;
}

size_t ElementBytes(const FieldDescriptor& field) {
  using Field = FieldDescriptor;
  const bool wide =
      field.cpp_type() == Field::CPPTYPE_INT64 || field.cpp_type() == Field::CPPTYPE_UINT64 || field.cpp_type() == Field::CPPTYPE_DOUBLE;
  return wide ? 8 : 4;
}

}  // namespace

struct WireSize::Shape {
  struct Field {
    bool known = false;
    WireFormatLite::WireType wire{};  // sent as another, a parser keeps it as an unknown field
    const Shape* message = nullptr;
    const google::protobuf::EnumDescriptor* values = nullptr;
    bool text = false;         // string or bytes
    size_t element_bytes = 0;  // of a list of numbers, which may be packed
    size_t slot = 0;

    bool Is(WireFormatLite::WireType sent) const {
      return known && (sent == wire || (element_bytes > 0 && sent == WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
    }
  };
  const Descriptor* type = nullptr;  // none: nothing within it is known
  size_t own = 0;
  std::vector<Field> fields;  // by number

  const Field& At(int number) const {
    static const Field kUnknown;
    return size_t(number) < fields.size() ? fields[size_t(number)] : kUnknown;
  }
};

// Layouts of all message types asked for, each made once.
struct WireSize::Shapes {
  std::mutex mutex;
  std::map<const Descriptor*, std::unique_ptr<Shape>> shapes;
  size_t slots = 0;

  static Shapes& All() {
    static Shapes all;
    return all;
  }

  const Shape* Of(const Descriptor& type) {
    auto [at, made] = shapes.try_emplace(&type);
    if (!made) return at->second.get();
    Shape& shape = *(at->second = std::make_unique<Shape>());
    shape.type = &type;
    shape.own = SizeOf(type);
    for (int i = 0; i < type.field_count(); ++i) {
      const FieldDescriptor& field = *type.field(i);
      if (shape.fields.size() <= size_t(field.number())) shape.fields.resize(size_t(field.number()) + 1);
      const bool message = field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
      const bool text = field.cpp_type() == FieldDescriptor::CPPTYPE_STRING;
      const Shape* inner = message ? Of(*field.message_type()) : nullptr;
      shape.fields[size_t(field.number())] = {.known = true,
                                              .wire = WireFormatLite::WireTypeForFieldType(WireFormatLite::FieldType(field.type())),
                                              .message = inner,
                                              .values = field.enum_type(),
                                              .text = text,
                                              .element_bytes = field.is_repeated() && !message && !text ? ElementBytes(field) : 0,
                                              .slot = slots++};
    }
    return &shape;
  }

  size_t SlotOf(const FieldDescriptor& field) {
    std::lock_guard lock(mutex);
    return Of(*field.containing_type())->At(field.number()).slot;
  }
};

WireSize::WireSize(const Descriptor& message, Stream& stream, int nesting) { Measure(message, stream, nesting); }

WireSize::WireSize(const Descriptor& message, std::string_view bytes, int nesting) {
  Stream stream(reinterpret_cast<const uint8_t*>(bytes.data()), int(bytes.size()));
  Measure(message, stream, nesting);
}

void WireSize::Measure(const Descriptor& message, Stream& stream, int nesting) {
  Shapes& all = Shapes::All();
  const Shape* root = nullptr;
  {
    std::lock_guard lock(all.mutex);
    root = all.Of(message);
    tallies_.resize(all.slots);
  }
  Read(stream, *root, nesting);
}

bool WireSize::Read(Stream& stream, const Shape& shape, int nesting) {
  memory_ += shape.own;
  for (;;) {
    const uint32_t tag = stream.ReadTag();
    if (tag == 0) return stream.ConsumedEntireMessage();
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_END_GROUP) return true;
    if (!ReadField(stream, shape, tag, nesting)) return false;
  }
}

bool WireSize::ReadField(Stream& stream, const Shape& shape, uint32_t tag, int nesting) {
  static const Shape kUnknown;
  const int number = WireFormatLite::GetTagFieldNumber(tag);
  const WireFormatLite::WireType sent = WireFormatLite::GetTagWireType(tag);
  switch (sent) {
    case WireFormatLite::WIRETYPE_LENGTH_DELIMITED: return ReadLength(stream, shape, number, nesting);
    case WireFormatLite::WIRETYPE_START_GROUP:
      Note(shape, number);
      memory_ += kOfAnUnknown;
      return nesting > 0 && Read(stream, kUnknown, nesting - 1);
    default: break;
  }
  const Shape::Field& field = shape.At(number);
  if (!field.Is(sent)) Note(shape, number);
  memory_ += !field.Is(sent) ? kOfAnUnknown : field.element_bytes > 0 ? kOfAList + 2 * field.element_bytes : 0;
  return field.Is(sent) && field.values != nullptr ? ReadEnum(stream, shape, number) : WireFormatLite::SkipField(&stream, tag);
}

bool WireSize::ReadEnum(Stream& stream, const Shape& shape, int number) {
  uint64_t value = 0;
  if (!stream.ReadVarint64(&value)) return false;
  if (shape.At(number).values->FindValueByNumber(int(value)) == nullptr) Note(shape, number, int(value));
  return true;
}

bool WireSize::ReadEnums(Stream& stream, const Shape& shape, int number, int length) {
  const Stream::Limit limit = stream.PushLimit(length);
  bool whole = true;
  while (whole && stream.BytesUntilLimit() > 0) whole = ReadEnum(stream, shape, number);
  stream.PopLimit(limit);
  return whole;
}

void WireSize::Note(const Shape& shape, int number, std::optional<int64_t> value) {
  if (!foreign_ && shape.type != nullptr) foreign_ = {shape.type, number, value};
}

bool WireSize::ReadLength(Stream& stream, const Shape& shape, int number, int nesting) {
  const Shape::Field& field = shape.At(number);
  uint32_t length = 0;
  if (!stream.ReadVarint32(&length) || int(length) < 0) return false;
  const bool known = field.Is(WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  known ? void(++tallies_[field.slot].count) : Note(shape, number);
  if (!known || !field.message) {
    // A number in a list has a byte or more.
    memory_ += !known ? kOfAnUnknown + length : field.text ? kOfAString + length : kOfAList + 2 * length * field.element_bytes;
    return known && field.values != nullptr ? ReadEnums(stream, shape, number, int(length)) : stream.Skip(int(length));
  }
  if (nesting == 0) return false;
  Tally& tally = tallies_[field.slot];
  tally.deepest = std::max(tally.deepest, ++tally.open);
  const Stream::Limit limit = stream.PushLimit(int(length));
  const bool whole = Read(stream, *field.message, nesting - 1);
  stream.PopLimit(limit);
  --tally.open;
  return whole;
}

size_t WireSize::Count(const FieldDescriptor& field) const {
  const size_t slot = Shapes::All().SlotOf(field);
  return slot < tallies_.size() ? tallies_[slot].count : 0;
}

size_t WireSize::Depth(const FieldDescriptor& field) const {
  const size_t slot = Shapes::All().SlotOf(field);
  return slot < tallies_.size() ? tallies_[slot].deepest : 0;
}

ModuleSize MeasureModule(std::string_view bytes) {
  if (bytes.starts_with("kiln ")) return {.decoded = DecodedText(bytes.size())};
  const WireSize size(*v1::Module::descriptor(), bytes, kWireNesting);
  const auto count = [&](int field) { return size.Count(*v1::Module::descriptor()->FindFieldByNumber(field)); };
  const FieldDescriptor& stmts = *v1::Block::descriptor()->FindFieldByNumber(v1::Block::kStmtsFieldNumber);
  ModuleSize module{.variables = count(v1::Module::kVarsFieldNumber),
                    .buffers = count(v1::Module::kBuffersFieldNumber),
                    .expressions = count(v1::Module::kExprsFieldNumber),
                    .parameters = count(v1::Module::kParamsFieldNumber),
                    .kernels = count(v1::Module::kKernelsFieldNumber),
                    .functions = count(v1::Module::kFunctionsFieldNumber),
                    .files = size.Count(*v1::DebugInfo::descriptor()->FindFieldByNumber(v1::DebugInfo::kFilesFieldNumber)),
                    .statements = size.Count(stmts),
                    .nesting = size.Depth(stmts),
                    .memory = size.memory()};
  module.decoded = Decoded(module) + bytes.size();
  return module;
}

}  // namespace kiln::ir
