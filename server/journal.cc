// SPDX-License-Identifier: Apache-2.0
#include "server/journal.h"

#include <chrono>
#include <utility>

#include "server/thread_niceness.h"

namespace kiln::server {
namespace {

// A record costs its line, 2 µs; what gathers is read at one go, and whoever answers calls on that processor waits until it is.
constexpr std::chrono::milliseconds kGather{1};

}  // namespace

Journal::Journal(Reader reader, std::size_t capacity)
    : reader_(std::move(reader)), capacity_(capacity), thread_([this] { Run(); }) {}

Journal::~Journal() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Journal::Add(CallRecord record) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    if (waiting_.size() >= capacity_) {
      ++dropped_;
      return;
    }
    first = waiting_.empty();
    waiting_.push_back(std::move(record));
    ++added_;
  }
  if (first) changed_.notify_all();
}

bool Journal::Flush(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  const std::uint64_t until = added_;
  hurry_ = true;
  changed_.notify_all();
  return changed_.wait_for(lock, patience, [&] { return read_ >= until || stopping_; });
}

void Journal::Run() {
  YieldToAnswers();
  std::vector<CallRecord> batch;
  std::unique_lock lock(mutex_);
  while (!stopping_ || !waiting_.empty()) {
    changed_.wait(lock, [&] { return stopping_ || !waiting_.empty(); });
    changed_.wait_for(lock, kGather, [&] { return stopping_ || hurry_; });
    hurry_ = false;
    batch.swap(waiting_);
    lock.unlock();
    if (!batch.empty()) reader_(batch);
    const std::size_t done = batch.size();
    batch.clear();
    lock.lock();
    read_ += done;
    changed_.notify_all();
  }
}

}  // namespace kiln::server
