// SPDX-License-Identifier: Apache-2.0
#include "server/reply/tune_record.h"

#include <array>
#include <string>

#include "kiln/v1/service.pb.h"
#include "server/reply/reply.h"
#include "server/reply/tenant_key.h"

namespace kiln::server {
namespace {

constexpr std::string_view kRecord = "record";

}  // namespace

std::expected<cache::Entry, cache::Error> SealTuneRecord(const cache::Digest& kept_under, std::string_view tenant, const v1::TuneRecord& record,
                                                         std::string_view name) {
  v1::CacheEntry label;
  label.set_tenant(std::string(tenant));
  label.set_target(record.target());
  label.set_name(LabelName(name));
  label.set_compiler(record.compiler());
  label.set_tuning(true);
  const std::string blob = BlobOf(kRecord, tenant), bytes = record.SerializeAsString();
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{blob, bytes}};
  return cache::Seal(kept_under, label.SerializeAsString(), blobs);
}

bool IsTuneRecord(const cache::Entry& entry) { return entry.blobs().size() == 1 && entry.blobs().front().name.starts_with(kRecord); }

std::optional<v1::TuneRecord> TuneRecordFrom(const cache::Entry& entry, std::string_view tenant) {
  const std::string_view bytes = entry.blob(BlobOf(kRecord, tenant));
  v1::TuneRecord record;
  if (bytes.empty() || !record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || record.measurements().empty()) return std::nullopt;
  return record;
}

}  // namespace kiln::server
