// SPDX-License-Identifier: Apache-2.0
#include "server/wire/wire.h"

#include <memory>
#include <vector>

#include <grpcpp/impl/codegen/proto_utils.h>

#include "kiln/v1/service.pb.h"

namespace kiln::server {
namespace {

// Below this a copy is cheaper than keeping the owner.
constexpr std::size_t kCopyBelow = 4096;

using Owner = std::shared_ptr<const void>;

grpc::Slice Share(const Reply& reply) {
  auto* bytes = const_cast<char*>(reply.kept.data());  // gRPC only reads what it sends
  return grpc::Slice(bytes, reply.kept.size(), [](void* owner) { delete static_cast<Owner*>(owner); }, new Owner(reply.owner));
}

grpc::ByteBuffer Join(std::string head, const Reply& reply, std::string_view tail) {
  if (reply.kept.size() < kCopyBelow) {
    head.append(reply.kept).append(tail);
    const grpc::Slice whole(head);
    return grpc::ByteBuffer(&whole, 1);
  }
  std::vector<grpc::Slice> slices;
  if (!head.empty()) slices.emplace_back(head);
  slices.push_back(Share(reply));
  slices.emplace_back(tail.data(), tail.size());
  return grpc::ByteBuffer(slices.data(), slices.size());
}

void AppendVarint(std::string& out, std::size_t value) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

}  // namespace

grpc::ByteBuffer ToBuffer(const Reply& reply) { return Join({}, reply, reply.Tail()); }

grpc::ByteBuffer ToProgress(const Reply& reply) {
  constexpr char kTag = v1::CompileProgress::kReplyFieldNumber << 3 | 2;
  const std::string tail = reply.Tail();
  std::string head(1, kTag);
  AppendVarint(head, reply.kept.size() + tail.size());
  return Join(std::move(head), reply, tail);
}

grpc::ByteBuffer ToProgress(std::string_view stage) {
  v1::CompileProgress progress;
  progress.set_stage(std::string(stage));
  const grpc::Slice slice(progress.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

grpc::ByteBuffer ToBuffer(const google::protobuf::MessageLite& message) {
  grpc::ByteBuffer buffer;
  bool own = false;
  [[maybe_unused]] const grpc::Status ok = grpc::SerializationTraits<google::protobuf::MessageLite>::Serialize(message, &buffer, &own);
  return buffer;
}

std::string ToString(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  std::string out;
  out.reserve(buffer.Length());
  if (!buffer.Dump(&slices).ok()) return out;
  for (const grpc::Slice& slice : slices) out.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return out;
}

std::string TakeBytes(const grpc::ByteBuffer& request) {
  std::string bytes = ToString(request);
  const_cast<grpc::ByteBuffer&>(request).Clear();  // the call's, which keeps it until its end
  return bytes;
}

cache::Digest DigestOf(std::string_view method, const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  cache::Hasher hasher;
  hasher.Update(method).Update(std::string_view("\0", 1));
  if (buffer.Dump(&slices).ok()) {
    for (const grpc::Slice& slice : slices) {
      hasher.Update({reinterpret_cast<const char*>(slice.begin()), slice.size()});
    }
  }
  return hasher.Finish();
}

cache::Digest DigestOf(std::string_view method, std::string_view bytes) {
  return cache::Hasher().Update(method).Update(std::string_view("\0", 1)).Update(bytes).Finish();
}

}  // namespace kiln::server
