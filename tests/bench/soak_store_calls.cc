// SPDX-License-Identifier: Apache-2.0
//
// The soak's calls about what is kept: lookups, results from elsewhere, manifests, and an admin's.
#include <algorithm>
#include <array>
#include <set>

#include <fmt/format.h>

#include "kiln/v1/seal.pb.h"
#include "tests/bench/soak_client.h"

namespace kiln::bench {
namespace {

constexpr std::size_t kKeyBytes = 32;
constexpr std::uint64_t kGcBytes = std::uint64_t{20} << 20;

v1::LookupRequest ByKey(const std::string& key) {
  v1::LookupRequest request;
  request.set_key(key);
  return request;
}
v1::LookupRequest ByRequest(const v1::CompileRequest& of) {
  v1::LookupRequest request;
  *request.mutable_request() = of;
  return request;
}

bool IsOfATenant(const v1::CacheEntry& entry) {
  return std::ranges::any_of(kRoles, [&](const Role& role) { return role.tenant == entry.tenant() && !role.IsStranger(); });
}

// The ways to put a result that was got before.
enum class Claim { kAsItCame, kWithoutItsSeal, kChanged, kOfAnotherCompiler };

v1::PutRequest PutOf(const v1::CompileRequest& request, const v1::CompileReply& reply, Claim claim) {
  v1::PutRequest put;
  *put.mutable_request() = request;
  *put.mutable_artifact() = reply.artifact();
  v1::SealedReply sealed;
  sealed.ParseFromString(reply.SerializeAsString());
  if (claim != Claim::kWithoutItsSeal) *put.mutable_seal() = sealed.seal();
  if (claim == Claim::kChanged) put.mutable_artifact()->mutable_code()->append("\n");
  if (claim == Claim::kOfAnotherCompiler) put.mutable_artifact()->set_compiler("of another build");
  return put;
}

}  // namespace

grpc::Status SoakClient::LookUp(const v1::LookupRequest& request, v1::CompileReply& reply) {
  grpc::ClientContext context;
  Prepare(context);
  return stub_->Lookup(&context, request, &reply);
}

// Of what was compiled just before: it is known, both ways.
Wrong SoakClient::LookUp() {
  const v1::CompileRequest request = RequestOf(world_.variant(world_.fresh++));
  v1::CompileReply compiled;
  const grpc::Status status = Compile(request.module(), compiled);
  if (!status.ok() || !role_.May(Scope::kCompile)) return Judge(status, Scope::kCompile, {Code::OK});
  for (const v1::LookupRequest& lookup : {ByRequest(request), ByKey(compiled.key())}) {
    v1::CompileReply found;
    const grpc::Status looked = LookUp(lookup, found);
    if (Wrong wrong = Judge(looked, Scope::kRead, {Code::OK}); !wrong.empty()) return wrong;
    const bool same = found.key() == compiled.key() && found.artifact().SerializeAsString() == compiled.artifact().SerializeAsString();
    if (looked.ok() && !same) return "another result than that which was compiled";
  }
  return "";
}

// It may have been evicted.
Wrong SoakClient::LookUpKnown() {
  const unsigned number = Popular();
  v1::CompileReply found;
  const grpc::Status status = LookUp(ByRequest(RequestOf(world_.variant(number))), found);
  if (!status.ok() || !role_.May(Scope::kRead)) return Judge(status, Scope::kRead, {Code::OK, Code::NOT_FOUND});
  return world_.known.Compare(number, found);
}

Wrong SoakClient::LookUpUnknown() {
  v1::CompileReply none;
  const v1::LookupRequest program = ByRequest(RequestOf(world_.variant(world_.fresh++)));
  if (Wrong wrong = Judge(LookUp(program, none), Scope::kRead, {Code::NOT_FOUND}); !wrong.empty()) return wrong;
  if (Wrong wrong = Judge(LookUp(ByKey(RandomKey()), none), Scope::kRead, {Code::NOT_FOUND}); !wrong.empty()) return wrong;
  return Judge(LookUp(ByKey(RandomKey().substr(1)), none), Scope::kRead, {Code::INVALID_ARGUMENT});
}

// Of a result of this kilnd's, whose seal it trusts; an admin's it takes without a seal.
Wrong SoakClient::Put() {
  const unsigned number = Popular();
  const v1::CompileRequest request = RequestOf(world_.variant(number));
  v1::CompileReply reply;
  const grpc::Status got = Compile(request.module(), reply);
  if (!got.ok() && role_.May(Scope::kCompile)) return JudgeKnown(number, got, reply);
  constexpr std::array kClaims = {Claim::kAsItCame, Claim::kAsItCame, Claim::kWithoutItsSeal, Claim::kChanged, Claim::kOfAnotherCompiler};
  const Claim claim = kClaims[Below(kClaims.size())];
  grpc::ClientContext context;
  Prepare(context);
  v1::PutReply kept;
  const grpc::Status status = stub_->Put(&context, PutOf(request, reply, claim), &kept);
  if (status.ok() && kept.key() != reply.key()) return "put under another key than it was compiled under";
  if (claim == Claim::kOfAnotherCompiler) return Judge(status, Scope::kCompile, {Code::INVALID_ARGUMENT});
  const bool taken = claim == Claim::kAsItCame || (claim == Claim::kWithoutItsSeal && role_.May(Scope::kAdmin));
  return Judge(status, Scope::kCompile, {taken ? Code::OK : Code::PERMISSION_DENIED});
}

v1::EnsureRequest SoakClient::Manifest(unsigned known, unsigned fresh) {
  v1::EnsureRequest manifest;
  for (unsigned i = 0; i < known; ++i) *manifest.add_requests() = RequestOf(world_.variant(Popular()));
  for (unsigned i = 0; i < fresh; ++i) *manifest.add_requests() = RequestOf(world_.variant(world_.fresh++));
  return manifest;
}

// Four that may be known, one that is not, and one that is no program.
Wrong SoakClient::Ensure() {
  v1::EnsureRequest manifest = Manifest(4, 1);
  *manifest.add_requests() = RequestOf("kiln 1\nnonsense");
  grpc::ClientContext context;
  Prepare(context);
  const auto reader = stub_->EnsureKernels(&context, manifest);
  v1::EnsureProgress last;
  std::set<unsigned> ended;
  bool right = true;
  for (v1::EnsureProgress progress; reader->Read(&progress); last = progress) {
    for (const v1::EnsuredKernel& kernel : progress.kernels()) {
      const bool is_program = kernel.request() < 5;
      right &= ended.insert(kernel.request()).second && is_program == (kernel.key().size() == kKeyBytes);
      right &= kernel.code() == static_cast<unsigned>(is_program ? Code::OK : Code::INVALID_ARGUMENT);
    }
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok() || !role_.May(Scope::kCompile)) return Judge(status, Scope::kCompile, {Code::OK});
  right &= ended.size() == 6 && last.total() == 6 && last.failed() == 1 && last.compiled() >= 1 && last.known() + last.compiled() == 5;
  return right ? "" : "a manifest of 6 ends with " + last.ShortDebugString();
}

Wrong SoakClient::EnsureAndCancel() {
  grpc::ClientContext context;
  Prepare(context);
  const auto reader = stub_->EnsureKernels(&context, Manifest(2, 4));
  v1::EnsureProgress progress;
  const bool let_in = reader->Read(&progress);
  if (let_in && Below(2) == 0) reader->Read(&progress);
  if (let_in) context.TryCancel();
  while (reader->Read(&progress)) {
  }
  const grpc::Status status = reader->Finish();
  if (!let_in) return Judge(status, Scope::kCompile, {});
  if (!role_.May(Scope::kCompile)) return "a manifest's progress, whoever it is for";
  return Judge(status, Scope::kCompile, {Code::OK, Code::CANCELLED});
}

grpc::Status SoakClient::ListSome(unsigned limit, std::vector<v1::CacheEntry>& entries) {
  grpc::ClientContext context;
  Prepare(context);
  v1::CacheListRequest request;
  request.set_limit(limit);
  request.set_after(RandomKey());
  const auto reader = stub_->CacheList(&context, request);
  for (v1::CacheEntry entry; reader->Read(&entry);) entries.push_back(entry);
  const bool in_order = std::ranges::is_sorted(entries, {}, &v1::CacheEntry::key) && (entries.empty() || entries.front().key() > request.after());
  const grpc::Status status = reader->Finish();
  return status.ok() && !in_order ? grpc::Status(Code::DATA_LOSS, "a list out of its order") : status;
}

Wrong SoakClient::List() {
  constexpr unsigned kLimit = 50;
  std::vector<v1::CacheEntry> entries;
  const grpc::Status status = ListSome(kLimit, entries);
  if (!status.ok() || !role_.May(Scope::kAdmin)) return Judge(status, Scope::kAdmin, {Code::OK});
  const bool whole = std::ranges::all_of(entries, [](const v1::CacheEntry& entry) {
    return IsOfATenant(entry) && entry.key().size() == kKeyBytes && entry.bytes() > 0 && entry.target().ends_with(":sm_80");
  });
  return whole && entries.size() <= kLimit ? "" : fmt::format("a list of {} entries, or of what nobody has compiled", entries.size());
}

grpc::Status SoakClient::Export(const std::vector<v1::CacheEntry>& entries, std::string& bundle) {
  grpc::ClientContext context;
  Prepare(context);
  v1::CacheExportRequest request;
  for (const v1::CacheEntry& entry : entries) request.add_keys(entry.key());
  if (entries.empty()) request.add_keys(RandomKey());  // none would be all
  const auto reader = stub_->CacheExport(&context, request);
  for (v1::CacheChunk chunk; reader->Read(&chunk);) bundle += chunk.data();
  return reader->Finish();
}

grpc::Status SoakClient::Import(const std::string& bundle, v1::CacheImportReply& reply) {
  constexpr std::size_t kPiece = 64 << 10;
  grpc::ClientContext context;
  Prepare(context);
  const auto writer = stub_->CacheImport(&context, &reply);
  v1::CacheChunk chunk;
  bool open = true;
  for (std::size_t at = 0; open && at < bundle.size(); at += kPiece) {
    chunk.set_data(bundle.substr(at, kPiece));
    open = writer->Write(chunk);
  }
  writer->WritesDone();
  return writer->Finish();
}

// A few entries, and now and then a bundle that was cut off. What was listed may have been evicted when it is to be exported.
Wrong SoakClient::ExportAndImport() {
  std::vector<v1::CacheEntry> entries;
  if (Wrong wrong = Judge(ListSome(3, entries), Scope::kAdmin, {Code::OK}); !wrong.empty()) return wrong;
  std::string bundle = "no bundle";
  if (role_.May(Scope::kAdmin)) bundle.clear();
  const grpc::Status exported = Export(entries, bundle);
  if (Wrong wrong = Judge(exported, Scope::kAdmin, {Code::OK, Code::NOT_FOUND}); !wrong.empty()) return wrong;
  if (role_.May(Scope::kAdmin) && !exported.ok()) return "";
  const bool cut_off = Below(4) == 0;
  if (cut_off) bundle.resize(bundle.size() - 1 - Below(8));
  v1::CacheImportReply reply;
  const grpc::Status status = Import(bundle, reply);
  if (!status.ok() || !role_.May(Scope::kAdmin)) return Judge(status, Scope::kAdmin, {cut_off ? Code::INVALID_ARGUMENT : Code::OK});
  const auto results = static_cast<std::uint64_t>(std::ranges::count(entries, false, &v1::CacheEntry::refused));
  const bool whole = !cut_off && reply.imported() == results && reply.imported() + reply.rejected() == entries.size();
  return whole ? "" : fmt::format("of {} entries that were exported {} were imported", entries.size(), reply.imported());
}

Wrong SoakClient::Verify() {
  grpc::ClientContext context;
  Prepare(context);
  v1::CacheVerifyReply reply;
  const grpc::Status status = stub_->CacheVerify(&context, {}, &reply);
  if (!status.ok() || !role_.May(Scope::kAdmin)) return Judge(status, Scope::kAdmin, {Code::OK});
  return reply.corrupt() + reply.forged() == 0 && !reply.store_damaged() ? "" : "a store that is not whole: " + reply.ShortDebugString();
}

Wrong SoakClient::Gc() {
  grpc::ClientContext context;
  Prepare(context);
  v1::CacheGcRequest request;
  request.set_target_bytes(kGcBytes);
  v1::CacheGcReply reply;
  const grpc::Status status = stub_->CacheGc(&context, request, &reply);
  return Judge(status, Scope::kAdmin, {Code::OK});
}

}  // namespace kiln::bench
