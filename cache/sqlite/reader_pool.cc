// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/reader_pool.h"

#include <utility>

namespace kiln::cache {

ReaderPool::Lease::Lease(Lease&& other) noexcept : pool_(other.pool_), reader_(std::move(other.reader_)), discard_(other.discard_) {}

ReaderPool::Lease::~Lease() {
  if (reader_) pool_->Return(std::move(reader_), discard_);
}

void ReaderPool::Lease::Failed(const Error& error) {
  discard_ = true;
  if (error.code == ErrorCode::kDamaged) pool_->on_damage_(error);
}

std::expected<std::optional<ReaderPool::Lease>, Error> ReaderPool::Acquire(Work work) {
  std::unique_ptr<Reader> reader;
  {
    MutexLock lock(mutex_);
    if (suspended_) return std::nullopt;
    ++leased_;
    if (!idle_.empty()) {
      reader = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!reader) {
    auto opened = Reader::Open(database_, options_, writable_);
    if (!opened) {
      if (opened.error().code == ErrorCode::kDamaged) on_damage_(opened.error());
      Return(nullptr, true);
      return std::unexpected(std::move(opened.error()));
    }
    reader = std::make_unique<Reader>(std::move(*opened));
  }
  if (work == Work::kLong) {
    MutexLock lock(mutex_);
    long_work_.push_back(reader.get());
    if (suspended_) reader->Interrupt();
  }
  return Lease(*this, std::move(reader));
}

void ReaderPool::Return(std::unique_ptr<Reader> reader, bool discard) {
  MutexLock lock(mutex_);
  std::erase(long_work_, reader.get());
  // What is closed must be closed before the lease counts as returned, for Suspend promises that nothing is open.
  if (discard) reader.reset();
  if (reader) idle_.push_back(std::move(reader));
  if (--leased_ == 0) returned_.NotifyAll();
}

void ReaderPool::Suspend() {
  MutexLock lock(mutex_);
  suspended_ = true;
  for (Reader* reader : long_work_) reader->Interrupt();
  while (leased_ > 0) returned_.Wait(mutex_);
  idle_.clear();
}

void ReaderPool::Resume() {
  MutexLock lock(mutex_);
  suspended_ = false;
}

}  // namespace kiln::cache
