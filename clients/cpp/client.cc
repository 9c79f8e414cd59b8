// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/client.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include <google/protobuf/any.pb.h>
#include <google/protobuf/duration.pb.h>
#include <grpcpp/grpcpp.h>

#include "clients/common/config_environment.h"
#include "clients/common/endpoint.h"
#include "clients/cpp/client_impl.h"
#include "clients/cpp/convert.h"
#include "clients/cpp/manifest_parts.h"
#include "clients/cpp/pieces_of_file.h"
#include "clients/cpp/replaced_file.h"
#include "kiln/rpc/status.pb.h"

namespace kiln {
namespace {

constexpr int kMaxMessageBytes = 256 << 20;
constexpr int kMaxHeaderBytes = 1 << 20;  // diagnostics travel in a header
constexpr std::string_view kUnix = "unix:";
constexpr const char* kDetailsBytes = "524288";
constexpr std::chrono::hours kLongest{24 * 365};  // that is waited for anything; the clock ends some time after that

using std::chrono::milliseconds;
using std::chrono::system_clock;

std::expected<std::string, Error> DefaultAddress() {
  if (const std::string named = Environment("KILN_ADDRESS"); !named.empty()) return named;
  const std::string address = DefaultListen(std::getenv("XDG_RUNTIME_DIR"), ::getuid());
  const std::string_view path = std::string_view(address).substr(kUnix.size());
  if (!path.starts_with("/tmp/")) return address;
  if (std::string why = DistrustOf(std::filesystem::path(path).parent_path(), ::getuid()); !why.empty()) {
    return std::unexpected(Error{.code = ErrorCode::kRefused, .message = std::move(why)});
  }
  return address;
}

// gRPC ends the process over metadata with other characters.
bool IsHeaderText(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

ErrorCode CodeOf(grpc::StatusCode code) {
  switch (code) {
    case grpc::StatusCode::INVALID_ARGUMENT: return ErrorCode::kInvalid;
    case grpc::StatusCode::UNIMPLEMENTED: return ErrorCode::kUnsupported;
    case grpc::StatusCode::NOT_FOUND: return ErrorCode::kNotFound;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::UNAUTHENTICATED: return ErrorCode::kRefused;
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return ErrorCode::kBusy;
    case grpc::StatusCode::UNAVAILABLE: return ErrorCode::kUnavailable;
    case grpc::StatusCode::DEADLINE_EXCEEDED: return ErrorCode::kDeadline;
    case grpc::StatusCode::CANCELLED: return ErrorCode::kCancelled;
    default: return ErrorCode::kInternal;
  }
}

void ReadDetail(const google::protobuf::Any& detail, Error& error) {
  v1::CompileFailure failure;
  if (detail.UnpackTo(&failure)) {
    error.reproducer = failure.reproducer();
    for (const v1::Diagnostic& diagnostic : failure.diagnostics()) error.diagnostics.push_back(FromProto(diagnostic));
  }
  rpc::RetryInfo retry;
  if (detail.type_url().ends_with("/google.rpc.RetryInfo") && retry.ParseFromString(detail.value())) {
    const google::protobuf::Duration& delay = retry.retry_delay();
    const std::chrono::seconds seconds(std::clamp<std::int64_t>(delay.seconds(), 0, std::chrono::seconds(kLongest).count()));
    error.retry_after = seconds + milliseconds(delay.nanos() / 1'000'000);
  }
}

Error ToError(const grpc::Status& status, const grpc::ClientContext& context, const std::string& address) {
  Error error{.code = CodeOf(status.error_code()), .message = status.error_message()};
  if (rpc::Status details; details.ParseFromString(status.error_details())) {
    for (const google::protobuf::Any& detail : details.details()) ReadDetail(detail, error);
  }
  const auto& trailer = context.GetServerTrailingMetadata();
  const auto id = trailer.find("kiln-request-id");
  if (id != trailer.end()) {
    error.request_id.assign(id->second.begin(), id->second.end());
  } else if (error.code == ErrorCode::kCancelled) {  // we cancel nothing: a server that shuts down does, at its very end
    error.code = ErrorCode::kUnavailable;
    error.message = "the kilnd at " + address + " is shutting down; try again shortly";
  } else if (error.code == ErrorCode::kUnavailable) {
    error.message =
        "no kilnd answers at " + address + " (" + error.message + "). Start one with `kiln serve`, or name another with KILN_ADDRESS or --address";
  }
  if (error.code == ErrorCode::kDeadline) {
    error.message =
        "there was no answer in the time given; what was asked for may still be under way: ask again, or allow more time "
        "(ConnectOptions::timeout, --timeout)";
  }
  return error;
}

// How long to wait before a refused call is made again; nullopt if repeating it is of no use.
std::optional<milliseconds> PauseAfter(const grpc::Status& status, const Error& error, int attempt) {
  constexpr int kMostAttempts = 6;
  if (error.code != ErrorCode::kBusy) return std::nullopt;
  std::minstd_rand random(std::random_device{}());
  if (error.retry_after) return *error.retry_after + milliseconds(std::uniform_int_distribution(0, 50)(random));
  // A refusal by the transport before the daemon had read the request: its connections already hold all the memory they may.
  if (status.error_message().find("RST_STREAM") == std::string::npos || attempt >= kMostAttempts) return std::nullopt;
  const int most = std::min(50 << attempt, 1000);
  return milliseconds(std::uniform_int_distribution(most / 2, most)(random));
}

Ensured ToEnsured(const v1::EnsuredKernel& kernel) {
  Ensured out{.request = kernel.request(),
              .target = kernel.target(),
              .key = kernel.key(),
              .origin = static_cast<Origin>(kernel.origin()),
              .bytes = kernel.bytes(),
              .durable = kernel.durable(),
              .error = std::nullopt};
  if (!kernel.key().empty()) return out;
  Error& error = out.error.emplace();
  error.code = CodeOf(static_cast<grpc::StatusCode>(kernel.code()));
  error.message = kernel.message();
  error.reproducer = kernel.failure().reproducer();
  for (const v1::Diagnostic& diagnostic : kernel.failure().diagnostics()) error.diagnostics.push_back(FromProto(diagnostic));
  return out;
}

v1::CompileRequest RequestOf(const v1::EnsureRequest& manifest, const v1::EnsuredKernel& kernel) {
  v1::CompileRequest request = manifest.requests(static_cast<int>(kernel.request()));
  request.set_target(kernel.target());
  return request;
}

std::expected<std::shared_ptr<grpc::ChannelCredentials>, Error> Credentials(const ConnectOptions& options) {
  if (options.address.starts_with(kUnix)) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  for (const auto& [file, text] : {std::pair{options.tls_roots, &ssl.pem_root_certs}, std::pair{options.tls_certificate, &ssl.pem_cert_chain},
                                   std::pair{options.tls_key, &ssl.pem_private_key}}) {
    if (file.empty()) continue;
    auto read = CredentialFile(file);
    if (!read) return std::unexpected(std::move(read.error()));
    *text = std::move(*read);
  }
  return grpc::SslCredentials(ssl);
}

// What is not given comes from the environment.
std::expected<void, Error> Complete(ConnectOptions& options) {
  if (options.address.empty()) {
    auto address = DefaultAddress();
    if (!address) return std::unexpected(std::move(address.error()));
    options.address = std::move(*address);
  }
  if (options.address.starts_with('/')) options.address.insert(0, kUnix);
  if (options.address.starts_with(kUnix)) {
    std::string why = TooLongForASocket(std::string_view(options.address).substr(kUnix.size()));
    if (!why.empty()) return std::unexpected(Error{.code = ErrorCode::kInvalid, .message = std::move(why)});
    if (!options.tls_roots.empty() || !options.tls_certificate.empty() || !options.tls_key.empty()) {
      return std::unexpected(Error{.code = ErrorCode::kInvalid,
                                   .message = "--tls-roots, --tls-cert and --tls-key (ConnectOptions::tls_roots and so on) are for TCP, and " +
                                              options.address + " is a Unix socket; leave them out"});
    }
  }
  for (const auto& [name, value] : {std::pair{"KILN_TLS_ROOTS", &options.tls_roots}, std::pair{"KILN_TLS_CERT", &options.tls_certificate},
                                    std::pair{"KILN_TLS_KEY", &options.tls_key}, std::pair{"KILN_TOKEN", &options.token}}) {
    if (value->empty()) *value = Environment(name);
  }
  if (const std::string folders = Environment("KILN_RECORD"); !folders.empty()) options.record += ":" + folders;
  const std::string file = Environment("KILN_TOKEN_FILE");
  if (!options.token.empty() || file.empty()) return {};
  auto token = CredentialFile(file);
  if (!token) return std::unexpected(std::move(token.error()));
  token->erase(std::find_if(token->begin(), token->end(), [](unsigned char c) { return std::isspace(c) != 0; }), token->end());
  options.token = std::move(*token);
  return {};
}

}  // namespace

std::expected<void, Error> Client::Impl::Try(const std::function<grpc::Status(grpc::ClientContext&)>& call, const CallTerms& terms) const {
  const auto end = system_clock::now() + std::clamp(std::max(options.timeout, terms.at_least), milliseconds(-1000), milliseconds(kLongest));
  const std::string parent(terms.trace_parent.empty() ? options.trace_parent : terms.trace_parent);
  for (int attempt = 0;; ++attempt) {
    grpc::ClientContext context;
    context.set_deadline(end);
    context.AddMetadata("kiln-details-bytes", kDetailsBytes);
    if (!parent.empty() && IsHeaderText(parent)) context.AddMetadata("traceparent", parent);
    if (!options.token.empty()) context.AddMetadata("authorization", "Bearer " + options.token);
    const grpc::Status status = call(context);
    if (status.ok()) return {};
    Error error = ToError(status, context, options.address);
    const auto pause = PauseAfter(status, error, attempt);
    if (!pause || *pause >= end - system_clock::now() || (terms.again && !terms.again())) return std::unexpected(std::move(error));
    std::this_thread::sleep_for(*pause);
  }
}

Client::Client(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;
Client::Client(Client&&) noexcept = default;
Client& Client::operator=(Client&&) noexcept = default;

Client::Result<Client> Client::Connect(ConnectOptions options) {
  if (auto completed = Complete(options); !completed) return std::unexpected(std::move(completed.error()));
  if (const char* parent = std::getenv("TRACEPARENT"); options.trace_parent.empty() && parent != nullptr) options.trace_parent = parent;
  auto credentials = Credentials(options);
  if (!credentials) return std::unexpected(std::move(credentials.error()));
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  auto impl = std::make_unique<Impl>(std::move(options));
  impl->channel = grpc::CreateCustomChannel(impl->options.address, *credentials, arguments);
  impl->stub = v1::Kiln::NewStub(impl->channel);
  return Client(std::move(impl));
}

const std::string& Client::address() const { return impl_->options.address; }

Client::Result<Compiled> Client::Compile(const CompileRequest& request, const OnStage& on_stage) {
  const v1::CompileRequest wanted = ToProto(request);
  return impl_->recorder.Around(wanted, [&] {
    if (on_stage) return impl_->CompileStreaming(wanted, on_stage, request.trace_parent);
    return impl_->CallForArtifact("/kiln.v1.Kiln/Compile", wanted, {.request = &wanted}, request.trace_parent);
  });
}

Client::Result<Compiled> Client::Lookup(const CompileRequest& request) {
  v1::LookupRequest lookup;
  *lookup.mutable_request() = ToProto(request);
  return impl_->recorder.Around(
      lookup.request(), [&] { return impl_->CallForArtifact("/kiln.v1.Kiln/Lookup", lookup, {.request = &lookup.request()}, request.trace_parent); });
}

Client::Result<Compiled> Client::LookupKey(std::string_view key) {
  v1::LookupRequest lookup;
  lookup.set_key(std::string(key));
  return impl_->CallForArtifact("/kiln.v1.Kiln/Lookup", lookup, {.key = key});
}

Client::Result<std::vector<Ensured>> Client::Ensure(const Manifest& manifest, const OnProgress& on_progress) {
  std::vector<v1::CompileRequest> requests;
  std::vector<std::size_t> bytes;
  for (const CompileRequest& request : manifest.requests) {
    requests.push_back(ToProto(request));
    bytes.push_back(requests.back().ByteSizeLong());
    if (auto noted = impl_->recorder.NoteFor(manifest.targets, requests.back()); !noted) return std::unexpected(std::move(noted.error()));
  }
  ProgressOfParts progress(requests.size());
  std::vector<Ensured> ensured;
  for (const std::vector<std::uint32_t>& indices : SplitManifest(bytes, manifest.targets.size())) {
    v1::EnsureRequest part;
    for (const std::uint32_t index : indices) part.add_requests()->Swap(&requests[index]);
    for (const std::string& target : manifest.targets) part.add_targets(target);
    progress.Begin(indices.size());
    std::expected<void, Error> noted;
    const auto done = impl_->Ensure(part, [&](const v1::EnsureProgress& news) {
      for (const v1::EnsuredKernel& kernel : news.kernels()) {
        ensured.push_back(ToEnsured(kernel));
        ensured.back().request = indices.at(kernel.request());
        if (noted && ensured.back().error) noted = impl_->recorder.NoteEnd(RequestOf(part, kernel), *ensured.back().error);
      }
      const EnsureProgress all = progress.Note(FromProto(news));
      if (on_progress) on_progress(all);
    });
    if (!done) return std::unexpected(done.error());
    if (!noted) return std::unexpected(std::move(noted.error()));
  }
  return ensured;
}

Client::Result<std::string> Client::Put(const CompileRequest& request, std::string_view artifact) {
  v1::PutRequest put;
  *put.mutable_request() = ToProto(request);
  if (!put.mutable_artifact()->ParseFromArray(artifact.data(), static_cast<int>(artifact.size()))) {
    return std::unexpected(Error{.code = ErrorCode::kInvalid, .message = "these bytes are no kiln.v1.Artifact"});
  }
  auto reply = impl_->Call(&v1::Kiln::Stub::Put, put);
  if (!reply) return std::unexpected(std::move(reply.error()));
  return reply->key();
}

Client::Result<kiln::Stats> Client::Stats(bool device_states) {
  v1::StatsRequest request;
  request.set_device_states(device_states);
  auto reply = impl_->Call(&v1::Kiln::Stub::Stats, request);
  if (!reply) return std::unexpected(std::move(reply.error()));
  return FromProto(*reply);
}

Client::Result<kiln::Capabilities> Client::Capabilities() {
  auto reply = impl_->Call(&v1::Kiln::Stub::Capabilities, v1::CapabilitiesRequest());
  if (!reply) return std::unexpected(std::move(reply.error()));
  return FromProto(*reply);
}

Client::Result<std::vector<CacheEntry>> Client::CacheList(std::string_view key_prefix, std::string_view target, std::uint32_t limit) {
  constexpr std::size_t kPage = 10'000;  // fewer than a kilnd lists at once
  v1::CacheListRequest request;
  request.set_key_prefix(std::string(key_prefix));
  request.set_target(std::string(target));
  std::vector<CacheEntry> entries;
  for (std::size_t left = limit == 0 ? SIZE_MAX : limit; left > 0;) {
    const std::size_t wanted = std::min(kPage, left);
    request.set_limit(static_cast<std::uint32_t>(wanted));
    const auto page = impl_->List(request);
    if (!page) return std::unexpected(page.error());
    for (const v1::CacheEntry& entry : *page) entries.push_back(FromProto(entry));
    if (page->size() < wanted) break;
    left -= wanted;
    request.set_after(page->back().key());
  }
  return entries;
}

Client::Result<std::vector<CompileRequest>> Client::CacheHot(std::uint32_t limit) {
  v1::CacheHotRequest request;
  request.set_limit(limit);
  std::vector<CompileRequest> programs;
  auto listed = impl_->Try([&](grpc::ClientContext& context) {
    const auto reader = impl_->stub->CacheHot(&context, request);
    programs.clear();
    for (v1::ManifestEntry entry; reader->Read(&entry);) programs.push_back(FromProto(entry.request()));
    return reader->Finish();
  });
  if (!listed) return std::unexpected(std::move(listed.error()));
  return programs;
}

Client::Result<Client::VerifyReport> Client::CacheVerify() {
  auto reply = impl_->Call(&v1::Kiln::Stub::CacheVerify, v1::CacheVerifyRequest());
  if (!reply) return std::unexpected(std::move(reply.error()));
  return VerifyReport{reply->checked(), reply->corrupt(), reply->forged(), reply->store_damaged()};
}

Client::Result<Client::GcReport> Client::CacheGc(std::uint64_t target_bytes) {
  v1::CacheGcRequest request;
  request.set_target_bytes(target_bytes);
  auto reply = impl_->Call(&v1::Kiln::Stub::CacheGc, request);
  if (!reply) return std::unexpected(std::move(reply.error()));
  return GcReport{reply->evicted(), reply->bytes_freed()};
}

Client::Result<std::uint64_t> Client::CacheExport(const std::filesystem::path& file, const std::vector<std::string>& keys) {
  v1::CacheExportRequest request;
  for (const std::string& key : keys) request.add_keys(key);
  ReplacedFile out(file);
  if (auto opened = out.Open(); !opened) return std::unexpected(std::move(opened.error()));
  std::uint64_t bytes = 0;
  auto exported = impl_->Try(
      [&](grpc::ClientContext& context) {
        const auto reader = impl_->stub->CacheExport(&context, request);
        for (v1::CacheChunk chunk; reader->Read(&chunk); bytes += chunk.data().size()) out.Write(chunk.data());
        return reader->Finish();
      },
      {.again = [&] { return bytes == 0; }});
  if (!exported) return std::unexpected(std::move(exported.error()));
  if (auto kept = out.Keep(); !kept) return std::unexpected(std::move(kept.error()));
  return bytes;
}

Client::Result<Client::ImportReport> Client::CacheImport(const std::filesystem::path& file) {
  PiecesOfFile in(file);
  v1::CacheChunk chunk;
  auto read = in.Next(*chunk.mutable_data());
  if (!read) return std::unexpected(std::move(read.error()));
  v1::CacheImportReply reply;
  auto imported = impl_->Try(
      [&](grpc::ClientContext& context) {
        const auto writer = impl_->stub->CacheImport(&context, &reply);
        while (read && !chunk.data().empty() && writer->Write(chunk)) read = in.Next(*chunk.mutable_data());
        // kilnd keeps nothing of an import that does not reach its end.
        read ? static_cast<void>(writer->WritesDone()) : context.TryCancel();
        return writer->Finish();
      },
      {.again = [&] { return read && in.Rewind() && (read = in.Next(*chunk.mutable_data())); }});
  if (!read) return std::unexpected(std::move(read.error()));
  if (!imported) return std::unexpected(std::move(imported.error()));
  return ImportReport{reply.imported(), reply.rejected()};
}

}  // namespace kiln
