// SPDX-License-Identifier: Apache-2.0
#include "server/telemetry/journal.h"

#include <chrono>
#include <utility>

#include "server/system/thread_niceness.h"

namespace kiln::server {
namespace {

// Records are read in batches. A batch must be short: a thread that answers calls on the same processor waits until it is read.
constexpr std::chrono::milliseconds kGather{1};

}  // namespace

Journal::Journal(Reader reader, std::size_t capacity) : reader_(std::move(reader)), capacity_(capacity), thread_([this] { Run(); }) {}

Journal::~Journal() {
  {
    cache::MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  thread_.join();
}

void Journal::Add(CallRecord record) {
  bool first = false;
  {
    cache::MutexLock lock(mutex_);
    if (waiting_.size() >= capacity_) {
      ++dropped_;
      return;
    }
    first = waiting_.empty();
    waiting_.push_back(std::move(record));
    ++added_;
  }
  if (first) changed_.NotifyAll();
}

bool Journal::Flush(std::chrono::milliseconds patience) {
  cache::MutexLock lock(mutex_);
  const std::uint64_t until = added_;
  hurry_ = true;
  changed_.NotifyAll();
  return changed_.WaitFor(mutex_, patience, [&]() KILN_REQUIRES(mutex_) { return read_ >= until || stopping_; });
}

void Journal::Run() {
  YieldToAnswers();
  std::vector<CallRecord> batch;
  cache::MutexLock lock(mutex_);
  while (!stopping_ || !waiting_.empty()) {
    changed_.Wait(mutex_, [&]() KILN_REQUIRES(mutex_) { return stopping_ || !waiting_.empty(); });
    changed_.WaitFor(mutex_, kGather, [&]() KILN_REQUIRES(mutex_) { return stopping_ || hurry_; });
    hurry_ = false;
    batch.swap(waiting_);
    lock.Unlock();
    if (!batch.empty()) reader_(batch);
    const std::size_t done = batch.size();
    batch.clear();
    lock.Lock();
    read_ += done;
    changed_.NotifyAll();
  }
}

}  // namespace kiln::server
