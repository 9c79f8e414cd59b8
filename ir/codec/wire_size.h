// SPDX-License-Identifier: Apache-2.0
//
// The memory that a message will take, computed from its bytes before they are parsed. Two bytes can encode an empty submessage or an
// unknown field, which takes up to a hundred bytes of memory. Hostile bytes are therefore measured before a parser gets them. On the way it
// finds what a parser would keep and nobody would read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>

#include "ir/limits.h"

namespace kiln::ir {

class WireSize {
 public:
  static constexpr int kNesting = 100;  // messages within messages, as protobuf's parsers take

  // Reads the stream to its end. Malformed bytes, and those nested deeper than `nesting` messages, are measured as far as they can be read.
  WireSize(const google::protobuf::Descriptor& message, google::protobuf::io::CodedInputStream& stream, int nesting = kNesting);
  WireSize(const google::protobuf::Descriptor& message, std::string_view bytes, int nesting = kNesting);

  // Bytes; an upper estimate.
  size_t memory() const { return memory_; }
  // How often this field occurs in the message and in those within it; and how often it is nested within itself.
  size_t Count(const google::protobuf::FieldDescriptor& field) const;
  size_t Depth(const google::protobuf::FieldDescriptor& field) const;

  // What this version of the protocol has no meaning for.
  struct Foreign {
    const google::protobuf::Descriptor* message;
    int number;                         // of a field that the message does not have, or not with a value of this kind
    std::optional<int64_t> value = {};  // that is none of the field's enum; the field itself is known
  };
  // The first of it.
  const std::optional<Foreign>& foreign() const { return foreign_; }

 private:
  struct Shape;
  struct Shapes;
  struct Tally {
    size_t count = 0;
    size_t open = 0;
    size_t deepest = 0;
  };
  using Stream = google::protobuf::io::CodedInputStream;

  void Measure(const google::protobuf::Descriptor& message, Stream& stream, int nesting);
  bool Read(Stream& stream, const Shape& shape, int nesting);
  bool ReadField(Stream& stream, const Shape& shape, uint32_t tag, int nesting);
  bool ReadLength(Stream& stream, const Shape& shape, int number, int nesting);
  bool ReadEnum(Stream& stream, const Shape& shape, int number);
  bool ReadEnums(Stream& stream, const Shape& shape, int number, int length);
  void Note(const Shape& shape, int number, std::optional<int64_t> value = {});

  std::vector<Tally> tallies_;  // by Shape::Field::slot
  size_t memory_ = 0;
  std::optional<Foreign> foreign_;
};

// What is in a serialized kiln.v1.Module. For the text form, only what it becomes (`decoded`) is known.
struct ModuleSize {
  size_t variables = 0, buffers = 0, expressions = 0, parameters = 0, kernels = 0, functions = 0, files = 0, statements = 0;
  size_t nesting = 0;  // of statements
  size_t memory = 0;   // of the message
  size_t decoded = 0;  // further bytes of memory while the ir::Module and its key are made from it
};
ModuleSize MeasureModule(std::string_view bytes);

// How deep the messages of a module are nested at most: a nested statement is three, Stmt, its op and Block.
inline constexpr int kWireNesting = 4 * kMaxNesting;

}  // namespace kiln::ir
