// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "cache/try.h"

namespace kiln::cache {
namespace {

// What one transaction of a collection removes at most, so that puts get their turn in between.
constexpr int kEvictionsPerSlice = 64;
constexpr int kShrinkPagesPerSlice = 256;

// Room that eviction makes beyond what is needed, so that not every batch has to evict.
std::uint64_t Slack(std::uint64_t capacity) { return std::min<std::uint64_t>(capacity / 64, std::uint64_t{8} << 20); }

// An operation's bookkeeping in the queue, beside the bytes of an entry.
constexpr std::uint64_t kOperationSize = 256;

template <class Done, class Outcome>
void Call(Done& done, Outcome&& outcome) {
  if (done) done(std::forward<Outcome>(outcome));
}

}  // namespace

SqliteWriter::SqliteWriter(StoreContext context, WriterConnection connection, Checkpointer& checkpointer)
    : context_(context), checkpointer_(checkpointer), db_(std::move(connection)), uses_written_(context_.clock.SteadyNow()), thread_([this] {
        Run();
      }) {}

SqliteWriter::~SqliteWriter() {
  {
    MutexLock lock(mutex_);
    closing_ = true;
  }
  work_.NotifyAll();
  thread_.join();
}

void SqliteWriter::Put(Entry entry, PutDone done) {
  if (entry.sealed().size() > context_.options.capacity / 2) {
    Call(done, Fail(ErrorCode::kInvalid, fmt::format("an entry of {} bytes in a store of {}; at most half is accepted", entry.sealed().size(),
                                                     context_.options.capacity)));
    return;
  }
  Operation operation = PutOperation{std::move(entry), std::move(done)};
  if (!Enqueue(operation)) ++context_.counters.dropped_puts;
}

void SqliteWriter::Erase(const Digest& key, EraseDone done) {
  Operation operation = EraseOperation{key, std::move(done)};
  Enqueue(operation);
}

void SqliteWriter::Gc(std::uint64_t target, GcDone done) {
  Operation operation = GcOperation{.target = target, .done = std::move(done), .bytes_before = {}, .report = {}};
  Enqueue(operation);
}

void SqliteWriter::Flush(PutDone done) {
  Operation operation = FlushOperation{std::move(done)};
  Enqueue(operation);
}

void SqliteWriter::EvictIfCorrupt(const Digest& key) {
  Operation operation = EvictCorruptOperation{key};
  Enqueue(operation);
}

void SqliteWriter::ReportDamage(const Error& error) {
  {
    MutexLock lock(mutex_);
    if (!damage_) damage_ = error;
  }
  work_.NotifyOne();
}

std::uint64_t SqliteWriter::SizeOf(const Operation& operation) {
  const auto* put = std::get_if<PutOperation>(&operation);
  return kOperationSize + (put ? put->entry.sealed().size() : 0);
}

// Completes the operation with an error when it cannot be taken.
bool SqliteWriter::Enqueue(Operation& operation) {
  const std::uint64_t size = SizeOf(operation);
  std::expected<void, Error> accepted;
  {
    MutexLock lock(mutex_);
    if (closing_) {
      accepted = Fail(ErrorCode::kClosed, "the store is closing");
    } else if (!queue_.empty() && queued_bytes_ + size > context_.options.max_queued_bytes) {
      accepted = Fail(ErrorCode::kOverloaded, fmt::format("{} bytes wait to be written to the store", queued_bytes_));
    } else {
      queued_bytes_ += size;
      queue_.push_back(std::move(operation));
    }
  }
  if (accepted) {
    work_.NotifyOne();
    return true;
  }
  Complete(operation, accepted);
  return false;
}

void SqliteWriter::Complete(Operation& operation, const std::expected<void, Error>& outcome) {
  std::visit(
      [&]<class T>(T& op) {
        if constexpr (std::is_same_v<T, EraseOperation>) {
          if (outcome) Call(op.done, std::expected<bool, Error>(op.existed));
          else Call(op.done, std::unexpected(outcome.error()));
        } else if constexpr (std::is_same_v<T, GcOperation>) {
          if (outcome) Call(op.done, std::expected<GcReport, Error>(op.report));
          else Call(op.done, std::unexpected(outcome.error()));
        } else if constexpr (!std::is_same_v<T, EvictCorruptOperation>) {
          Call(op.done, outcome);
        }
      },
      operation);
}

bool SqliteWriter::UsesAreDue() const { return context_.clock.SteadyNow() - uses_written_ >= context_.options.touch_interval; }

void SqliteWriter::Run() {
  CountEntries();
  while (auto batch = NextBatch()) Execute(std::move(*batch));
  if (db_) Execute({});  // the last uses
}

// Waits for operations, or for the time to write the uses (an empty batch). nullopt when it is time to end.
std::optional<std::vector<SqliteWriter::Operation>> SqliteWriter::NextBatch() {
  std::vector<Operation> batch;
  bool damaged = false;
  {
    MutexLock lock(mutex_);
    bool in_time = true;
    while (queue_.empty() && !damage_ && !closing_ && in_time) {
      in_time = work_.WaitFor(mutex_, context_.options.touch_interval);
    }
    damaged = damage_.has_value();
    if (!damaged && queue_.empty() && closing_) return std::nullopt;
    std::uint64_t bytes = 0;
    while (!damaged && !queue_.empty() && bytes < context_.options.max_batch_bytes) {
      const std::uint64_t size = SizeOf(queue_.front());
      bytes += size;
      queued_bytes_ -= size;
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  if (damaged) ReplaceStore();
  return batch;
}

void SqliteWriter::Execute(std::vector<Operation> batch) {
  if (context_.counters.read_only && context_.clock.SteadyNow() < retry_at_) RefusePuts(batch);
  auto changes = Transact(batch);
  if (!changes) {
    if (db_) db_->Rollback();
    Recognize(changes.error());
    for (Operation& operation : batch) Complete(operation, std::unexpected(changes.error()));
    return;
  }
  Publish(*changes);
  for (Operation& operation : batch) {
    const auto* gc = std::get_if<GcOperation>(&operation);
    if (gc && !gc->finished) Requeue(std::move(operation));
    else Complete(operation, {});
  }
}

// The rest of the collection goes behind operations that arrived meanwhile. Closing a store does not wait for a collection.
void SqliteWriter::Requeue(Operation operation) {
  {
    MutexLock lock(mutex_);
    if (!closing_) {
      queued_bytes_ += SizeOf(operation);
      queue_.push_back(std::move(operation));
      return;
    }
  }
  Complete(operation, Fail(ErrorCode::kClosed, "the store closed before the collection was finished"));
}

void SqliteWriter::RefusePuts(std::vector<Operation>& batch) {
  std::erase_if(batch, [&](Operation& operation) {
    if (!std::holds_alternative<PutOperation>(operation)) return false;
    ++context_.counters.dropped_puts;
    Complete(operation, Fail(ErrorCode::kFull, "the store is read-only for a while: its disk is full"));
    return true;
  });
}

std::expected<SqliteWriter::Changes, Error> SqliteWriter::Transact(std::vector<Operation>& batch) {
  KILN_RETURN_IF_ERROR(Reopen());
  const bool uses_due = UsesAreDue() || std::ranges::any_of(batch, [](const Operation& operation) {
                          return std::holds_alternative<FlushOperation>(operation) || std::holds_alternative<GcOperation>(operation);
                        });
  UseLog::Uses uses;
  if (uses_due || batch.empty()) {
    uses = context_.uses.Take();
    uses_written_ = context_.clock.SteadyNow();
  }
  Changes changes;
  changes.used_bytes = context_.counters.bytes;
  if (batch.empty() && uses.empty()) return changes;
  checkpointer_.AwaitTruncation();
  const auto outcome = [&]() -> std::expected<void, Error> {
    KILN_RETURN_IF_ERROR(db_->Begin());
    KILN_RETURN_IF_ERROR(WriteUses(uses));
    for (Operation& operation : batch) KILN_RETURN_IF_ERROR(Apply(operation, changes));
    KILN_RETURN_IF_ERROR(MakeRoom(uses, changes));
    return db_->Commit();
  }();
  if (!outcome) {
    context_.uses.Restore(uses);
    return std::unexpected(outcome.error());
  }
  return changes;
}

std::expected<void, Error> SqliteWriter::Apply(Operation& operation, Changes& changes) {
  if (auto* put = std::get_if<PutOperation>(&operation)) {
    KILN_ASSIGN_OR_RETURN(const bool is_new, db_->Put(put->entry, context_.clock.WallNow()));
    changes.entries += is_new ? 1 : 0;
    changes.written += put->entry.sealed().size();
    ++changes.puts;
  } else if (auto* erase = std::get_if<EraseOperation>(&operation)) {
    KILN_ASSIGN_OR_RETURN(erase->existed, db_->Erase(erase->key));
    changes.entries -= erase->existed ? 1 : 0;
  } else if (auto* evict = std::get_if<EvictCorruptOperation>(&operation)) {
    KILN_ASSIGN_OR_RETURN(auto sealed, db_->Get(evict->key));
    if (!sealed) return {};
    const auto entry = Unseal(std::move(*sealed));
    if (entry && entry->key() == evict->key) return {};
    KILN_ASSIGN_OR_RETURN(const std::uint64_t evicted, db_->EraseWithBody(evict->key));
    changes.entries -= static_cast<std::int64_t>(evicted);
    changes.corrupt += evicted;
  } else if (auto* gc = std::get_if<GcOperation>(&operation)) {
    return CollectSlice(*gc, changes);
  }
  return {};
}

std::expected<void, Error> SqliteWriter::CollectSlice(GcOperation& gc, Changes& changes) {
  KILN_ASSIGN_OR_RETURN(std::uint64_t used, db_->UsedBytes());
  if (!gc.bytes_before) gc.bytes_before = gc.report.bytes_before = used;
  for (int i = 0; i < kEvictionsPerSlice && used > gc.target; ++i) {
    KILN_ASSIGN_OR_RETURN(const bool evicted, db_->EvictOne());
    if (!evicted) {
      gc.target = used;  // an empty store has pages too
      break;
    }
    ++gc.report.evicted;
    ++changes.evictions;
    --changes.entries;
    KILN_ASSIGN_OR_RETURN(used, db_->UsedBytes());
  }
  gc.report.bytes_after = used;
  KILN_ASSIGN_OR_RETURN(const bool more_free, db_->Shrink(kShrinkPagesPerSlice));
  gc.finished = used <= gc.target && !more_free;
  return {};
}

std::expected<void, Error> SqliteWriter::WriteUses(UseLog::Uses& uses) {
  std::vector<const UseLog::Uses::value_type*> in_order;
  for (const auto& use : uses) in_order.push_back(&use);
  std::ranges::sort(in_order, {}, [](const auto* use) { return use->second.order; });  // the order of eviction
  for (const auto* use : in_order) KILN_RETURN_IF_ERROR(db_->Touch(use->first, use->second.last, use->second.count));
  return {};
}

// `uses`: the uses that this transaction has written; they must be written again if it fails.
std::expected<void, Error> SqliteWriter::MakeRoom(UseLog::Uses& uses, Changes& changes) {
  KILN_ASSIGN_OR_RETURN(changes.used_bytes, db_->UsedBytes());
  const std::uint64_t capacity = context_.options.capacity;
  if (changes.used_bytes <= capacity) return {};
  UseLog::Uses newest = context_.uses.Take();
  const auto written = WriteUses(newest);
  UseLog::Merge(newest, uses);
  KILN_RETURN_IF_ERROR(written);
  while (changes.used_bytes > capacity - Slack(capacity)) {
    KILN_ASSIGN_OR_RETURN(const bool evicted, db_->EvictOne());
    if (!evicted) break;
    ++changes.evictions;
    --changes.entries;
    KILN_ASSIGN_OR_RETURN(changes.used_bytes, db_->UsedBytes());
  }
  return {};
}

void SqliteWriter::Publish(const Changes& changes) {
  StoreCounters& counters = context_.counters;
  counters.entries += static_cast<std::uint64_t>(changes.entries);
  counters.puts += changes.puts;
  counters.evictions += changes.evictions;
  counters.corrupt += changes.corrupt;
  counters.bytes = changes.used_bytes;
  if (changes.puts > 0 && counters.read_only.exchange(false)) {
    context_.Tell(ErrorCode::kFull, "the store takes writes again");
  }
  checkpointer_.Committed(changes.written);
}

void SqliteWriter::Recognize(const Error& error) {
  ++context_.counters.errors;
  if (error.code == ErrorCode::kDamaged) {
    ReportDamage(error);
  } else if (error.code == ErrorCode::kFull) {
    retry_at_ = context_.clock.SteadyNow() + context_.options.retry_after;
    if (!context_.counters.read_only.exchange(true)) context_.Tell(ErrorCode::kFull, "the store is read-only: " + error.message);
  }
}

void SqliteWriter::CountEntries() {
  if (!db_) return;
  const auto used = db_->UsedBytes();
  const auto entries = used ? db_->CountEntries() : std::unexpected(used.error());
  if (!entries) {
    Recognize(entries.error());
    return;
  }
  context_.counters.bytes = *used;
  context_.counters.entries = *entries;
}

// A store whose directory cannot be renamed or opened stays without a connection: lookups find nothing, writes get the
// error, and Reopen tries again.
void SqliteWriter::ReplaceStore() {
  context_.readers.Suspend();
  std::string reason;
  {
    MutexLock lock(mutex_);
    reason = damage_->message;
    damage_.reset();
  }
  db_.reset();
  auto aside = context_.directory.SetAside();
  if (!aside) {
    context_.Tell(aside.error().code, fmt::format("damaged store ({}): {}", reason, aside.error().message));
  } else {
    ++context_.counters.set_aside;
    context_.Tell(ErrorCode::kDamaged, fmt::format("{}; set aside as {}, starting empty", reason, aside->string()));
  }
  context_.uses.Take();
  context_.counters.entries = 0;
  context_.counters.bytes = 0;
  retry_at_ = {};
  (void)Reopen();
}

std::expected<void, Error> SqliteWriter::Reopen() {
  if (db_) return {};
  if (context_.clock.SteadyNow() < retry_at_) return Fail(ErrorCode::kUnreachable, "the store could not be opened");
  auto opened = WriterConnection::Open(context_.directory.database(), context_.options);
  if (!opened) {
    retry_at_ = context_.clock.SteadyNow() + context_.options.retry_after;
    return std::unexpected(std::move(opened.error()));
  }
  db_ = std::move(*opened);
  context_.readers.Resume();
  return {};
}

}  // namespace kiln::cache
