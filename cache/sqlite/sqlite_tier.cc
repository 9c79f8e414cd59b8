// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite_tier.h"

#include <fmt/format.h>

#include <future>
#include <utility>

#include "cache/sqlite/sqlite_tier_impl.h"
#include "cache/try.h"

namespace kiln::cache {
namespace {

std::unexpected<Error> OnlyReads() { return Fail(ErrorCode::kFull, "the store is on a file system that is mounted read-only"); }

}  // namespace

SqliteTier::Impl::Impl(SqliteOptions options, const Clock& clock, StoreDirectory directory)
    : options_(std::move(options)),
      clock_(clock),
      directory_(std::move(directory)),
      readers_(directory_.database(), options_, directory_.writable(), [this](const Error& error) { NoteDamage(error); }),
      context_{options_, clock_, directory_, counters_, uses_, readers_} {}

SqliteTier::Impl::~Impl() {
  if (!writer_) return;
  readers_.Suspend();
  const bool check_pending = checkpointer_->Stop();
  writer_.reset();
  if (!check_pending) directory_.MarkClosed();
}

void SqliteTier::Impl::NoteDamage(const Error& error) {
  if (writer_) return writer_->ReportDamage(error);
  ++counters_.errors;
  const bool serves = counters_.read_only;  // else who opens the store is told
  if (serves && !told_damage_.exchange(true)) {
    context_.Tell(ErrorCode::kDamaged, fmt::format("{}; it cannot be set aside on a read-only mount", error.message));
  }
}

std::expected<void, Error> SqliteTier::Impl::StartReading() {
  KILN_ASSIGN_OR_RETURN(auto lease, readers_.Acquire(ReaderPool::Work::kShort));
  const auto size = (*lease)->Measure();
  if (!size) {
    lease->Failed(size.error());
    return std::unexpected(size.error());
  }
  counters_.entries = size->entries;
  counters_.bytes = size->bytes;
  counters_.read_only = true;
  context_.Tell(ErrorCode::kFull,
                fmt::format("{} is mounted read-only: the store serves what it has and takes nothing new", options_.directory.string()));
  return {};
}

std::expected<void, Error> SqliteTier::Impl::Start() {
  if (!directory_.writable()) return StartReading();
  KILN_ASSIGN_OR_RETURN(const bool was_open, directory_.MarkOpen());
  auto connection = WriterConnection::Open(directory_.database(), options_);
  if (!connection && connection.error().code == ErrorCode::kDamaged) {
    KILN_ASSIGN_OR_RETURN(const auto aside, directory_.SetAside());
    ++counters_.set_aside;
    context_.Tell(ErrorCode::kDamaged, fmt::format("{}; set aside as {}, starting empty", connection.error().message, aside.string()));
    connection = WriterConnection::Open(directory_.database(), options_);
  }
  if (!connection) return std::unexpected(std::move(connection.error()));
  checkpointer_ = std::make_unique<Checkpointer>(context_, was_open);
  writer_ = std::make_unique<SqliteWriter>(context_, std::move(*connection), *checkpointer_);
  checkpointer_->Start();
  return {};
}

std::expected<std::optional<std::string>, Error> SqliteTier::Impl::Read(const Digest& key) {
  KILN_ASSIGN_OR_RETURN(auto lease, readers_.Acquire(ReaderPool::Work::kShort));
  if (!lease) return std::nullopt;
  auto sealed = (*lease)->Get(key);
  if (!sealed) lease->Failed(sealed.error());
  return sealed;
}

std::expected<std::optional<Entry>, Error> SqliteTier::Impl::Peek(const Digest& key) {
  auto sealed = Read(key);
  if (!sealed) {
    ++counters_.errors;
    return std::unexpected(std::move(sealed.error()));
  }
  if (!*sealed) return std::nullopt;
  auto entry = Unseal(std::move(**sealed));
  if (entry && entry->key() != key) entry = Fail(ErrorCode::kCorrupt, "the entry belongs to another key");
  if (!entry) {
    if (writer_) writer_->EvictIfCorrupt(key);
    return std::unexpected(std::move(entry.error()));
  }
  return std::move(*entry);
}

std::expected<std::optional<Entry>, Error> SqliteTier::Impl::Get(const Digest& key) {
  auto found = Peek(key);
  if (found && *found) {
    ++counters_.hits;
    Touch(key);
  } else {
    ++counters_.misses;
  }
  return found;
}

void SqliteTier::Impl::Touch(const Digest& key) {
  if (writer_) uses_.Add(key, clock_.WallNow());
}

TierStats SqliteTier::Impl::Stats() const {
  return {.entries = counters_.entries,
          .bytes = counters_.bytes,
          .capacity = options_.capacity,
          .hits = counters_.hits,
          .misses = counters_.misses,
          .puts = counters_.puts,
          .dropped_puts = counters_.dropped_puts,
          .evictions = counters_.evictions,
          .corrupt = counters_.corrupt,
          .errors = counters_.errors,
          .set_aside = counters_.set_aside,
          .wal_bytes = directory_.WalBytes(),
          .read_only = counters_.read_only};
}

SqliteTier::SqliteTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SqliteTier::~SqliteTier() = default;

std::expected<std::unique_ptr<SqliteTier>, Error> SqliteTier::Open(SqliteOptions options, const Clock& clock) {
  KILN_ASSIGN_OR_RETURN(auto directory, StoreDirectory::Hold(options.directory, options.filesystem_type));
  auto impl = std::make_unique<Impl>(std::move(options), clock, std::move(directory));
  KILN_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<SqliteTier>(new SqliteTier(std::move(impl)));
}

std::expected<std::optional<Entry>, Error> SqliteTier::Get(const Digest& key) { return impl_->Get(key); }

std::expected<std::optional<Entry>, Error> SqliteTier::Peek(const Digest& key) { return impl_->Peek(key); }

void SqliteTier::Touch(const Digest& key) { impl_->Touch(key); }
void SqliteTier::Put(Entry entry, PutDone done) {
  if (SqliteWriter* const writer = impl_->writer()) return writer->Put(std::move(entry), std::move(done));
  if (done) done(OnlyReads());
}

std::expected<bool, Error> SqliteTier::Erase(const Digest& key) {
  if (impl_->writer() == nullptr) return OnlyReads();
  std::promise<std::expected<bool, Error>> promise;
  auto outcome = promise.get_future();
  impl_->writer()->Erase(key, [&](auto erased) { promise.set_value(std::move(erased)); });
  return outcome.get();
}

TierStats SqliteTier::Stats() const { return impl_->Stats(); }

std::uint64_t SqliteTier::losses() const { return impl_->losses(); }

std::expected<std::vector<EntryInfo>, Error> SqliteTier::List(const ListOptions& options) const { return impl_->List(options); }

std::expected<VerifyReport, Error> SqliteTier::Verify() {
  KILN_ASSIGN_OR_RETURN(auto report, impl_->Verify());
  KILN_RETURN_IF_ERROR(Flush());
  return report;
}

std::expected<GcReport, Error> SqliteTier::Gc(std::uint64_t target) {
  if (impl_->writer() == nullptr) return OnlyReads();
  std::promise<std::expected<GcReport, Error>> promise;
  auto outcome = promise.get_future();
  impl_->writer()->Gc(target, [&](auto report) { promise.set_value(std::move(report)); });
  return outcome.get();
}

std::expected<void, Error> SqliteTier::Flush() {
  if (impl_->writer() == nullptr) return {};
  std::promise<std::expected<void, Error>> promise;
  auto outcome = promise.get_future();
  impl_->writer()->Flush([&](auto flushed) { promise.set_value(std::move(flushed)); });
  return outcome.get();
}

}  // namespace kiln::cache
