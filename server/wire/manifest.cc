// SPDX-License-Identifier: Apache-2.0
#include "server/wire/manifest.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include "compiler/target/target.h"
#include "server/wire/message_reader.h"
#include "server/wire/wire.h"

namespace kiln::server {
namespace {

// What one piece of the expansion handles at most.
constexpr std::size_t kPieceBytes = std::size_t{4} << 20;
constexpr std::size_t kPieceItems = 8192;

Failure Malformed(std::string message) { return {.kind = Failure::Kind::kMalformed, .message = std::move(message)}; }

Failure TooManyItems(std::size_t items, const RequestLimits& limits) {
  return Malformed(
      fmt::format("the manifest has {} requests × targets; send it in parts of at most {} (--max-manifest)", items, limits.manifest_items));
}

// One name for all spellings of a target.
std::string_view CanonicalName(const std::string& name) {
  const auto found = target::Find(name);
  return found ? (*found)->name : std::string_view(name);
}

// A field at the end of a message replaces one of the same number before it.
std::string TargetField(std::string_view target) {
  std::string field;
  google::protobuf::io::StringOutputStream stream(&field);
  google::protobuf::io::CodedOutputStream out(&stream);
  out.WriteTag(v1::CompileRequest::kTargetFieldNumber << 3 | 2);
  out.WriteVarint32(static_cast<std::uint32_t>(target.size()));
  out.WriteRaw(target.data(), static_cast<int>(target.size()));
  out.Trim();
  return field;
}

}  // namespace

Manifest::Manifest(v1::EnsureRequest request, const RequestLimits& limits) : request_(std::move(request)), limits_(limits) {
  std::set<std::string, std::less<>> seen;
  for (const std::string& target : request_.targets()) {
    if (seen.emplace(CanonicalName(target)).second) targets_.push_back(target);
  }
  const std::size_t items = static_cast<std::size_t>(request_.requests_size()) * std::max<std::size_t>(1, targets_.size());
  if (items > limits_.manifest_items) problem_ = TooManyItems(items, limits_);
}

Manifest::Size Manifest::Measure(const grpc::ByteBuffer& bytes, const RequestLimits& limits) {
  constexpr std::size_t kOfAnItem = 128, kOfARequest = 96;
  const auto& type = *v1::EnsureRequest::descriptor();
  const ir::WireSize wire = server::Measure(type, bytes);
  Size size{.requests = wire.Count(*type.FindFieldByNumber(v1::EnsureRequest::kRequestsFieldNumber)),
            .targets = wire.Count(*type.FindFieldByNumber(v1::EnsureRequest::kTargetsFieldNumber))};
  const std::size_t items = size.requests * std::max<std::size_t>(1, size.targets);
  size.memory = wire.memory() + kOfARequest * size.requests + kOfAnItem * std::min(items, limits.manifest_items);
  return size;
}

// The same target under two spellings may make it smaller than it seems here.
std::optional<Failure> Manifest::ProblemOf(const Size& size, const RequestLimits& limits) {
  const std::size_t known = target::All().size() + target::Emulated().size();
  if (size.targets > known) {
    return Malformed(fmt::format("the manifest names {} targets; there are {}, `kiln devices` lists them", size.targets, known));
  }
  if (size.requests > limits.manifest_items) return TooManyItems(size.requests, limits);
  return std::nullopt;
}

bool Manifest::ExpandSome() {
  const auto requests = static_cast<std::size_t>(request_.requests_size());
  requests_.reserve(requests);
  std::size_t bytes = 0;
  for (const std::size_t before = items_.size(); requests_.size() < requests;) {
    if (bytes >= kPieceBytes || items_.size() - before >= kPieceItems) return false;
    Expand(static_cast<std::uint32_t>(requests_.size()));
    bytes += requests_.back().bytes.size();
  }
  v1::EnsureRequest().Swap(&request_);
  std::ranges::sort(items_, {}, &Item::digest);
  return true;
}

void Manifest::Expand(std::uint32_t index) {
  v1::CompileRequest given;  // ends here, with its memory
  given.Swap(request_.mutable_requests(static_cast<int>(index)));
  Request& request = requests_.emplace_back(Request{.size = given.ByteSizeLong()});
  if (targets_.empty()) request.target = given.target();
  cache::Digest digest;
  if (request.size <= limits_.request_bytes) {
    given.clear_target();
    given.clear_explain();
    if (given.priority() == v1::INTERACTIVE) given.set_priority(v1::BATCH);
    request.bytes = given.SerializeAsString();
    digest = cache::Sha256(request.bytes);
  }
  const auto targets = static_cast<std::uint32_t>(std::max<std::size_t>(1, targets_.size()));
  for (std::uint32_t target = 0; target < targets; ++target) {
    Item& item = items_.emplace_back(Item{index, target, {}});
    item.digest = DigestOf("EnsureKernels", std::string(digest.view()).append(TargetOf(item)));
  }
}

std::string_view Manifest::TargetOf(const Item& item) const { return targets_.empty() ? requests_[item.request].target : targets_[item.target]; }

std::string Manifest::BytesOf(const Item& item) const { return requests_[item.request].bytes + TargetField(TargetOf(item)); }

std::optional<Failure> Manifest::ProblemOf(const Item& item) const {
  const std::size_t bytes = requests_[item.request].size;
  if (bytes <= limits_.request_bytes) return std::nullopt;
  return RequestTooLarge(bytes, limits_);
}

}  // namespace kiln::server
