// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite_slot.h"

#include <string>
#include <utility>

#include "cache/try.h"

namespace kiln::cache {
namespace {

std::unexpected<Error> NotOpen() { return Fail(ErrorCode::kUnreachable, "the store is not open"); }

}  // namespace

SqliteSlot::~SqliteSlot() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  stopped_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::expected<void, Error> SqliteSlot::Open() {
  KILN_ASSIGN_OR_RETURN(store_, SqliteTier::Open(options_.store, clock_));
  open_.store(store_.get(), std::memory_order_release);
  return {};
}

void SqliteSlot::Close() {
  open_ = nullptr;
  store_.reset();
}

void SqliteSlot::KeepTrying() {
  if (!available()) thread_ = std::thread([this] { Try(); });
}

// False when the slot goes.
bool SqliteSlot::WaitForNextTry() {
  MutexLock lock(mutex_);
  while (!stopping_) {
    if (!stopped_.WaitFor(mutex_, options_.between_tries)) return !stopping_;
  }
  return false;
}

void SqliteSlot::Try() {
  std::string last;
  while (WaitForNextTry()) {
    const auto opened = OpenLate();
    if (opened) {
      if (options_.on_open) options_.on_open();
      return;
    }
    const Error& error = opened.error();
    if (error.message != last && options_.store.on_event) options_.store.on_event(error);
    last = error.message;
  }
}

std::expected<void, Error> SqliteSlot::OpenLate() {
  KILN_ASSIGN_OR_RETURN(auto store, SqliteTier::Open(options_.store, clock_));
  if (options_.may_use) KILN_RETURN_IF_ERROR(options_.may_use());
  store_ = std::move(store);
  open_.store(store_.get(), std::memory_order_release);
  return {};
}

std::expected<std::optional<Entry>, Error> SqliteSlot::Get(const Digest& key) {
  SqliteTier* const store = this->store();
  if (store == nullptr) return NotOpen();
  return store->Get(key);
}

void SqliteSlot::Touch(const Digest& key) {
  if (SqliteTier* const store = this->store()) store->Touch(key);
}

void SqliteSlot::Put(Entry entry, PutDone done) {
  if (SqliteTier* const store = this->store()) return store->Put(std::move(entry), std::move(done));
  if (done) done(NotOpen());
}

std::expected<bool, Error> SqliteSlot::Erase(const Digest& key) {
  SqliteTier* const store = this->store();
  if (store == nullptr) return NotOpen();
  return store->Erase(key);
}

TierStats SqliteSlot::Stats() const {
  const SqliteTier* const store = this->store();
  return store == nullptr ? TierStats{.capacity = options_.store.capacity} : store->Stats();
}

std::uint64_t SqliteSlot::losses() const {
  const SqliteTier* const store = this->store();
  return store == nullptr ? 0 : store->losses();
}

}  // namespace kiln::cache
