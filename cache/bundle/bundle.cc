// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle/bundle.h"

#include <fmt/format.h>

#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "cache/bundle/bundle_format.h"
#include "cache/digest.h"
#include "cache/little_endian.h"
#include "cache/mutex.h"
#include "cache/try.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPage = 256;
constexpr std::uint64_t kMaxUnacknowledged = std::uint64_t{16} << 20;

// A file that appears under its name only when it is whole.
class BundleWriter {
 public:
  explicit BundleWriter(fs::path path) : path_(std::move(path)), partial_(path_.string() + ".partial") {
    file_.open(partial_, std::ios::binary | std::ios::trunc);
    Write(BundleStart());
  }
  ~BundleWriter() {
    std::error_code ignored;
    if (!published_) fs::remove(partial_, ignored);
  }

  void Append(const Entry& entry) {
    std::string size;
    AppendLittleEndian(size, std::uint64_t{entry.sealed().size()});
    Write(size);
    Write(entry.sealed());
    ++entries_;
  }

  std::expected<void, Error> Publish() {
    std::string end;
    AppendLittleEndian(end, std::uint64_t{0});
    AppendLittleEndian(end, entries_);
    Write(end);
    const Digest digest = hasher_.Finish();
    file_.write(digest.view().data(), Digest::kSize);
    file_.close();
    if (!file_) return Fail(ErrorCode::kUnreachable, fmt::format("cannot write {}", partial_.string()));
    std::error_code error;
    fs::rename(partial_, path_, error);
    if (error) return Fail(ErrorCode::kUnreachable, fmt::format("cannot create {}: {}", path_.string(), error.message()));
    published_ = true;
    return {};
  }

  bool failed() const { return !file_; }

 private:
  void Write(std::string_view bytes) {
    hasher_.Update(bytes);
    file_.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  }

  const fs::path path_;
  const fs::path partial_;
  std::ofstream file_;
  Hasher hasher_;
  std::uint64_t entries_ = 0;
  bool published_ = false;
};

class BundleReader {
 public:
  static std::expected<BundleReader, Error> Open(const fs::path& path) {
    std::error_code error;
    const std::uint64_t size = fs::file_size(path, error);
    BundleReader reader;
    if (!error) reader.file_.open(path, std::ios::binary);
    if (error || !reader.file_) return Fail(ErrorCode::kUnreachable, fmt::format("cannot read {}", path.string()));
    reader.left_ = size;
    KILN_ASSIGN_OR_RETURN(const std::string start, reader.Read(kBundleStartSize));
    KILN_RETURN_IF_ERROR(CheckBundleStart(start));
    return reader;
  }

  // The next entry; nothing after the last, when the end of the file has been verified too.
  std::expected<std::optional<Entry>, Error> Next() {
    KILN_ASSIGN_OR_RETURN(const std::string size_bytes, Read(8));
    const auto size = LoadLittleEndian<std::uint64_t>(size_bytes);
    if (size == 0) {
      KILN_RETURN_IF_ERROR(VerifyEnd());
      return std::nullopt;
    }
    if (size > Entry::kMaxSize) return Corrupt(fmt::format("it claims an entry of {} bytes", size));
    KILN_ASSIGN_OR_RETURN(std::string sealed, Read(size));
    KILN_ASSIGN_OR_RETURN(Entry entry, Unseal(std::move(sealed)));
    ++entries_;
    return entry;
  }

 private:
  static std::unexpected<Error> Corrupt(std::string what) { return Fail(ErrorCode::kCorrupt, "bundle: " + what); }

  // Compares the size with the rest of the file before allocating: it may be wrong.
  std::expected<std::string, Error> Read(std::uint64_t size, bool hash = true) {
    if (size > left_) return Corrupt(fmt::format("it ends where {} more bytes should follow", size - left_));
    std::string bytes(size, '\0');
    file_.read(bytes.data(), static_cast<std::streamsize>(size));
    if (!file_) return Fail(ErrorCode::kUnreachable, "bundle: read failed");
    left_ -= size;
    if (hash) hasher_.Update(bytes);
    return bytes;
  }

  std::expected<void, Error> VerifyEnd() {
    KILN_ASSIGN_OR_RETURN(const std::string count, Read(8));
    const Digest digest = hasher_.Finish();
    KILN_ASSIGN_OR_RETURN(const std::string stored, Read(Digest::kSize, false));
    if (LoadLittleEndian<std::uint64_t>(count) != entries_) return Corrupt("its number of entries disagrees");
    if (stored != digest.view()) return Corrupt("its digest disagrees");
    if (left_ != 0) return Corrupt(fmt::format("{} bytes follow its end", left_));
    return {};
  }

  std::ifstream file_;
  std::uint64_t left_ = 0;
  std::uint64_t entries_ = 0;
  Hasher hasher_;
};

// Puts entries, with a bound on those not yet committed. Remembers the first failure.
class ThrottledPuts {
 public:
  explicit ThrottledPuts(Tier& into) : into_(into) {}
  ~ThrottledPuts() { (void)Wait(0); }

  std::expected<void, Error> Put(Entry entry) {
    const std::uint64_t size = entry.sealed().size();
    KILN_RETURN_IF_ERROR(Wait(kMaxUnacknowledged));
    {
      MutexLock lock(mutex_);
      unacknowledged_ += size;
    }
    into_.Put(std::move(entry), [this, size](std::expected<void, Error> outcome) {
      MutexLock lock(mutex_);
      unacknowledged_ -= size;
      if (!outcome && outcome_) outcome_ = std::move(outcome);
      acknowledged_.NotifyAll();
    });
    return {};
  }

  // Until at most so many bytes are not acknowledged.
  std::expected<void, Error> Wait(std::uint64_t at_most) {
    MutexLock lock(mutex_);
    while (unacknowledged_ > at_most) acknowledged_.Wait(mutex_);
    return outcome_;
  }

 private:
  Tier& into_;
  Mutex mutex_;
  CondVar acknowledged_;
  std::uint64_t unacknowledged_ KILN_GUARDED_BY(mutex_) = 0;
  std::expected<void, Error> outcome_ KILN_GUARDED_BY(mutex_);
};

std::expected<void, Error> ExportPage(SqliteTier& from, const std::vector<EntryInfo>& page, BundleWriter& writer, BundleReport& report) {
  for (const EntryInfo& info : page) {
    auto entry = from.Peek(info.key);
    if (!entry && entry.error().code != ErrorCode::kCorrupt) return std::unexpected(std::move(entry.error()));
    if (!entry || !*entry) {
      ++report.skipped;
      continue;
    }
    writer.Append(**entry);
    if (writer.failed()) return Fail(ErrorCode::kUnreachable, "the bundle cannot be written: is the disk full?");
    ++report.entries;
    report.bytes += (*entry)->sealed().size();
  }
  return {};
}

std::expected<void, Error> ImportAll(BundleReader& reader, ThrottledPuts& puts, const ImportFilter& filter, BundleReport& report) {
  for (;;) {
    KILN_ASSIGN_OR_RETURN(auto entry, reader.Next());
    if (!entry) return {};
    if (filter) entry = filter(*entry);
    if (!entry) {
      ++report.skipped;
      continue;
    }
    const std::uint64_t size = entry->sealed().size();
    KILN_RETURN_IF_ERROR(puts.Put(std::move(*entry)));
    ++report.entries;
    report.bytes += size;
  }
}

}  // namespace

std::string BundleStart() {
  std::string start(kBundleMagic);
  AppendLittleEndian(start, kBundleVersion);
  return start;
}

std::expected<void, Error> CheckBundleStart(std::string_view start) {
  if (start.size() < kBundleStartSize || !start.starts_with(kBundleMagic)) return Fail(ErrorCode::kCorrupt, "it is no bundle of results");
  if (const auto version = LoadLittleEndian<std::uint32_t>(start.substr(kBundleMagic.size())); version != kBundleVersion) {
    return Fail(ErrorCode::kInvalid, fmt::format("a bundle of version {}; this program reads {}", version, kBundleVersion));
  }
  return {};
}

std::expected<BundleReport, Error> ExportBundle(SqliteTier& from, const fs::path& path, std::function<bool(const EntryInfo&)> accept) {
  BundleReport report;
  BundleWriter writer(path);
  ListOptions options{.after = std::nullopt, .limit = kPage, .accept = std::move(accept)};
  for (;;) {
    KILN_ASSIGN_OR_RETURN(const auto page, from.List(options));
    KILN_RETURN_IF_ERROR(ExportPage(from, page, writer, report));
    if (page.size() < kPage) break;
    options.after = page.back().key;
  }
  KILN_RETURN_IF_ERROR(writer.Publish());
  return report;
}

std::expected<BundleReport, Error> ImportBundle(const fs::path& path, Tier& into, BundleReport* imported, const ImportFilter& filter) {
  BundleReport local;
  BundleReport& report = imported ? *imported : local;
  report = {};
  KILN_ASSIGN_OR_RETURN(auto reader, BundleReader::Open(path));
  ThrottledPuts puts(into);
  const auto read = ImportAll(reader, puts, filter, report);
  KILN_RETURN_IF_ERROR(puts.Wait(0));
  KILN_RETURN_IF_ERROR(read);
  return report;
}

}  // namespace kiln::cache
