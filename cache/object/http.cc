// SPDX-License-Identifier: Apache-2.0
#include "cache/object/http.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <mutex>
#include <new>

namespace kiln::cache::object {
namespace {

constexpr std::size_t kMostIdle = 16;
constexpr std::size_t kMostHeaders = std::size_t{64} << 10;      // bytes of all of a reply
constexpr std::size_t kMostOfAnError = std::size_t{64} << 10;    // bytes of its body that are read, so that the connection can be used again
constexpr std::size_t kBeginningOfError = std::size_t{4} << 10;  // and that are kept
constexpr std::size_t kMostAddresses = 8;
constexpr std::chrono::milliseconds kLongestWait{50};   // until the end of it all is looked for (EndBy)
constexpr std::chrono::milliseconds kOtherFamily{10};   // until IPv4 is tried beside IPv6
constexpr std::chrono::milliseconds kForContinue{100};  // so that a large body is not sent where it is not wanted
constexpr const char* kOfNoBytes = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";  // their SHA-256

void InitializeOnce() {
  static std::once_flag once;
  std::call_once(once, [] {
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) throw std::bad_alloc();  // for lack of memory alone
  });
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using List = std::unique_ptr<curl_slist, FreeList>;

void Append(List& list, const std::string& text) {
  curl_slist* const longer = curl_slist_append(list.get(), text.c_str());
  if (longer == nullptr) throw std::bad_alloc();
  static_cast<void>(list.release());
  list.reset(longer);
}

// What a server that cannot be spoken to at all says; anything else may be different the next time.
bool IsUseless(CURLcode code) {
  constexpr std::array kUseless = {CURLE_COULDNT_RESOLVE_HOST,     CURLE_COULDNT_CONNECT,      CURLE_SSL_CONNECT_ERROR,
                                   CURLE_PEER_FAILED_VERIFICATION, CURLE_UNSUPPORTED_PROTOCOL, CURLE_SSL_CERTPROBLEM};
  return std::ranges::find(kUseless, code) != kUseless.end();
}

bool SaysThatItIsChunked(std::string_view header) {
  std::string lower(header);
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.starts_with("transfer-encoding:") && lower.contains("chunked");
}

std::string AddressText(const addrinfo& info) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* const bytes = info.ai_family == AF_INET6 ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(info.ai_addr)->sin6_addr)
                                                       : &reinterpret_cast<const sockaddr_in*>(info.ai_addr)->sin_addr;
  if (inet_ntop(info.ai_family, bytes, text.data(), text.size()) == nullptr) return {};
  return text.data();
}

}  // namespace

std::expected<std::shared_ptr<const Roots>, std::string> Roots::Load(const std::filesystem::path& ca) {
  std::shared_ptr<void> store(X509_STORE_new(), [](void* x) { X509_STORE_free(static_cast<X509_STORE*>(x)); });
  auto* const x509 = static_cast<X509_STORE*>(store.get());
  if (x509 == nullptr) throw std::bad_alloc();
  const bool loaded = ca.empty() ? X509_STORE_set_default_paths(x509) == 1 : X509_STORE_load_file(x509, ca.c_str()) == 1;
  if (loaded) return std::shared_ptr<const Roots>(new Roots(std::move(store)));
  std::array<char, 256> why{};
  ERR_error_string_n(ERR_get_error(), why.data(), why.size());
  ERR_clear_error();
  return std::unexpected(fmt::format("no certificates can be read from {}: {}", ca.empty() ? "the system" : ca.string(), why.data()));
}

// A connection, and what is under way on it. Of one thread at a time.
class Http::Line {
 public:
  Line() : multi_(curl_multi_init()), easy_(curl_easy_init()) {
    if (multi_ == nullptr || easy_ == nullptr) throw std::bad_alloc();
  }
  ~Line() {
    curl_easy_cleanup(easy_);
    curl_multi_cleanup(multi_);
  }
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;

  void Prepare(const Options& options, const Request& request, const Route& route);
  // Until it ends, or there is no time left.
  template <class Left>
  std::expected<Response, Failure> Run(const Left& left);

 private:
  template <class Value>
  void Set(CURLoption option, Value value) {
    if (const CURLcode code = curl_easy_setopt(easy_, option, value); code != CURLE_OK && failed_ == CURLE_OK) failed_ = code;
  }
  void Prove(const Options& options, const Request& request, const std::optional<Credentials>& credentials);
  std::expected<Response, Failure> Outcome();
  Failure FailureOf(CURLcode code) const;
  static std::size_t OnBody(char* bytes, std::size_t one, std::size_t size, void* line);
  static std::size_t OnHeader(char* bytes, std::size_t one, std::size_t size, void* line);
  static CURLcode OnTls(CURL* easy, void* context, void* roots);

  CURLM* const multi_;
  CURL* const easy_;
  CURLcode failed_ = CURLE_OK;  // to prepare
  std::string origin_;
  std::array<char, CURL_ERROR_SIZE> why_{};
  List headers_, resolved_;
  Response response_;
  std::uint64_t most_ = 0;
  std::size_t header_bytes_ = 0, error_bytes_ = 0;
  bool chunked_ = false;
};

void Http::Line::Prepare(const Options& options, const Request& request, const Route& route) {
  curl_easy_reset(easy_);  // connections stay
  failed_ = CURLE_OK;
  response_ = {};
  header_bytes_ = error_bytes_ = 0;
  chunked_ = false;
  most_ = options.most;
  why_.fill('\0');
  headers_.reset();
  resolved_.reset();
  origin_ = options.address.Origin();
  const HostPort& at = options.address.at;
  std::string addresses = fmt::format("{}:{}:", at.host, at.port);
  for (const std::string& address : route.addresses) {
    if (!addresses.ends_with(':')) addresses += ',';
    addresses += address.contains(':') ? "[" + address + "]" : address;
  }
  if (!route.addresses.empty() && !at.host.contains(':')) Append(resolved_, addresses);

  Set(CURLOPT_URL, (origin_ + request.path).c_str());
  Set(CURLOPT_PATH_AS_IS, 1L);
  Set(CURLOPT_PROTOCOLS_STR, options.address.tls ? "https" : "http");
  Set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  Set(CURLOPT_NOSIGNAL, 1L);
  Set(CURLOPT_FOLLOWLOCATION, 0L);
  Set(CURLOPT_PROXY, "");
  Set(CURLOPT_NETRC, static_cast<long>(CURL_NETRC_IGNORED));
  Set(CURLOPT_QUICK_EXIT, 1L);
  Set(CURLOPT_RESOLVE, resolved_.get());
  Set(CURLOPT_HAPPY_EYEBALLS_TIMEOUT_MS, static_cast<long>(kOtherFamily.count()));
  Set(CURLOPT_TCP_KEEPALIVE, 1L);
  Set(CURLOPT_EXPECT_100_TIMEOUT_MS, static_cast<long>(kForContinue.count()));
  Set(CURLOPT_BUFFERSIZE, 128L << 10);
  Set(CURLOPT_USERAGENT, "kilnd");
  Set(CURLOPT_ERRORBUFFER, why_.data());
  Set(CURLOPT_WRITEFUNCTION, &OnBody);
  Set(CURLOPT_WRITEDATA, this);
  Set(CURLOPT_HEADERFUNCTION, &OnHeader);
  Set(CURLOPT_HEADERDATA, this);
  if (options.address.tls) {
    Set(CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
    Set(CURLOPT_CAINFO, nullptr);
    Set(CURLOPT_CAPATH, nullptr);
    Set(CURLOPT_SSL_CTX_FUNCTION, &OnTls);
    Set(CURLOPT_SSL_CTX_DATA, options.roots->handle());
  }
  switch (request.method) {
    case Method::kGet: Set(CURLOPT_HTTPGET, 1L); break;
    case Method::kHead: Set(CURLOPT_NOBODY, 1L); break;
    case Method::kDelete: Set(CURLOPT_CUSTOMREQUEST, "DELETE"); break;
    case Method::kPut:
      Set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
      Set(CURLOPT_POSTFIELDS, request.body.data());  // not copied
      Set(CURLOPT_CUSTOMREQUEST, "PUT");
      Append(headers_, "Content-Type: application/octet-stream");
      if (request.only_if_absent) Append(headers_, "If-None-Match: *");
      break;
  }
  Prove(options, request, route.credentials);
  Set(CURLOPT_HTTPHEADER, headers_.get());
}

// Who we are. libcurl signs all headers of ours for S3; which bytes are sent it is to be told by the header that S3 wants.
void Http::Line::Prove(const Options& options, const Request& request, const std::optional<Credentials>& credentials) {
  if (options.address.region && credentials) {
    Append(headers_, "x-amz-content-sha256: " + (request.body.empty() ? std::string(kOfNoBytes) : Sha256(request.body).ToHex()));
    if (!credentials->token.empty()) Append(headers_, "x-amz-security-token: " + credentials->token);
    Set(CURLOPT_AWS_SIGV4, fmt::format("aws:amz:{}:s3", *options.address.region).c_str());
    Set(CURLOPT_USERNAME, credentials->user.c_str());
    Set(CURLOPT_PASSWORD, credentials->secret.c_str());
  } else if (credentials && credentials->user.empty()) {
    Set(CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
    Set(CURLOPT_XOAUTH2_BEARER, credentials->token.c_str());
  } else if (credentials) {
    Set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    Set(CURLOPT_USERNAME, credentials->user.c_str());
    Set(CURLOPT_PASSWORD, credentials->secret.c_str());
  }
}

CURLcode Http::Line::OnTls(CURL*, void* context, void* roots) {
  SSL_CTX_set1_cert_store(static_cast<SSL_CTX*>(context), static_cast<X509_STORE*>(roots));
  return CURLE_OK;
}

std::size_t Http::Line::OnHeader(char* bytes, std::size_t, std::size_t size, void* line) {
  auto& self = *static_cast<Line*>(line);
  self.header_bytes_ += size;
  if (self.header_bytes_ > kMostHeaders) return 0;
  const std::string_view header(bytes, size);
  if (header.starts_with("HTTP/")) self.chunked_ = false;  // of an answer before it
  else if (SaysThatItIsChunked(header)) self.chunked_ = true;
  return size;
}

std::size_t Http::Line::OnBody(char* bytes, std::size_t, std::size_t size, void* line) {
  auto& self = *static_cast<Line*>(line);
  Response& response = self.response_;
  curl_easy_getinfo(self.easy_, CURLINFO_RESPONSE_CODE, &response.status);
  if (response.status != 200) {
    self.error_bytes_ += size;
    response.body.append(bytes, std::min(size, kBeginningOfError - std::min(kBeginningOfError, response.body.size())));
    return self.error_bytes_ > kMostOfAnError ? 0 : size;
  }
  curl_off_t said = -1;
  curl_easy_getinfo(self.easy_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &said);
  if (response.body.size() + size > self.most_ || (said > 0 && static_cast<std::uint64_t>(said) > self.most_)) {
    response.large = true;
    return 0;
  }
  response.body.append(bytes, size);
  return size;
}

Failure Http::Line::FailureOf(CURLcode code) const {
  std::string why = why_[0] != '\0' ? why_.data() : curl_easy_strerror(code);
  if (header_bytes_ > kMostHeaders) why = fmt::format("more than {} bytes of headers", kMostHeaders);
  if (code == CURLE_PEER_FAILED_VERIFICATION) why += " (--object-ca names whom to trust)";
  return {{ErrorCode::kUnreachable, fmt::format("{}: {}", origin_, why)}, IsUseless(code)};
}

std::expected<Response, Failure> Http::Line::Outcome() {
  int left = 0;
  const CURLMsg* const message = curl_multi_info_read(multi_, &left);
  const CURLcode code = message != nullptr && message->msg == CURLMSG_DONE ? message->data.result : CURLE_FAILED_INIT;
  curl_easy_getinfo(easy_, CURLINFO_RESPONSE_CODE, &response_.status);
  if (response_.large || error_bytes_ > kMostOfAnError) return std::move(response_);
  if (code != CURLE_OK) return std::unexpected(FailureOf(code));
  curl_off_t said = -1;
  curl_easy_getinfo(easy_, CURLINFO_CONTENT_LENGTH_DOWNLOAD_T, &said);
  response_.whole = said >= 0 || chunked_;
  return std::move(response_);
}

template <class Left>
std::expected<Response, Failure> Http::Line::Run(const Left& left) {
  if (failed_ != CURLE_OK) return std::unexpected(FailureOf(failed_));
  if (curl_multi_add_handle(multi_, easy_) != CURLM_OK) throw std::bad_alloc();
  std::expected<Response, Failure> outcome = std::unexpected(Failure{{ErrorCode::kUnreachable, origin_ + ": no answer in time"}});
  for (;;) {
    int running = 0;
    if (curl_multi_perform(multi_, &running) != CURLM_OK || running == 0) {
      outcome = Outcome();
      break;
    }
    const SteadyTime::duration time = left();
    if (time <= SteadyTime::duration(0)) break;
    const auto wait = std::min<std::chrono::milliseconds>(std::chrono::ceil<std::chrono::milliseconds>(time), kLongestWait);
    curl_multi_poll(multi_, nullptr, 0, static_cast<int>(wait.count()), nullptr);
  }
  curl_multi_remove_handle(multi_, easy_);
  return outcome;
}

Http::Http(Options options, const Clock& clock) : options_(std::move(options)), clock_(clock) { InitializeOnce(); }

Http::~Http() = default;

std::unique_ptr<Http::Line> Http::Take() {
  {
    MutexLock lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Line> line = std::move(idle_.back());
      idle_.pop_back();
      return line;
    }
  }
  return std::make_unique<Line>();
}

void Http::GiveBack(std::unique_ptr<Line> line) {
  MutexLock lock(mutex_);
  if (idle_.size() < kMostIdle) idle_.push_back(std::move(line));
}

void Http::Forget() {
  std::vector<std::unique_ptr<Line>> closed;
  MutexLock lock(mutex_);
  closed.swap(idle_);
}

SteadyTime::duration Http::LeftUntil(SteadyTime deadline) const {
  return std::min(deadline, SteadyTime(SteadyTime::duration(latest_.load()))) - clock_.SteadyNow();
}

std::expected<Response, Failure> Http::Ask(const Request& request, const Route& route, SteadyTime deadline) {
  const auto left = [&] { return LeftUntil(deadline); };
  if (left() <= SteadyTime::duration(0)) {
    return std::unexpected(Failure{{ErrorCode::kUnreachable, options_.address.Origin() + ": there is no time left"}});
  }
  std::unique_ptr<Line> line = Take();
  line->Prepare(options_, request, route);
  auto outcome = line->Run(left);
  if (outcome) GiveBack(std::move(line));
  return outcome;
}

std::expected<std::vector<std::string>, Error> AddressesOf(const std::string& host) {
  if (host.contains(':')) return std::vector{host};  // an address of IPv6
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found); code != 0) {
    return Fail(ErrorCode::kUnreachable, fmt::format("{}: {}", host, ::gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  std::vector<std::string> addresses;
  for (const addrinfo* info = found; info != nullptr && addresses.size() < kMostAddresses; info = info->ai_next) {
    if (std::string text = AddressText(*info); !text.empty()) addresses.push_back(std::move(text));
  }
  if (addresses.empty()) return Fail(ErrorCode::kUnreachable, host + " has no address");
  return addresses;
}

}  // namespace kiln::cache::object
