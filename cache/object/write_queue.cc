// SPDX-License-Identifier: Apache-2.0
#include "cache/object/write_queue.h"

#include <utility>

#include "cache/outside/packed_entry.h"

namespace kiln::cache::object {
namespace {

constexpr std::uint64_t kItemBytes = 256;     // of memory, beside what it holds
constexpr std::size_t kMostUseless = 10'000;  // keys that are remembered

}  // namespace

WriteQueue::WriteQueue(Options options, Store& store) : store_(store) {
  for (auto& line : lines_) line = std::make_unique<WaitingLine<Item>>(options.max_bytes / kWriters);
  for (std::size_t i = 0; i < kWriters; ++i) writers_[i] = std::thread([this, i] { Run(*lines_[i]); });
}

WriteQueue::~WriteQueue() {
  for (auto& line : lines_) line->Close();
  for (std::thread& writer : writers_) writer.join();
}

WaitingLine<WriteQueue::Item>& WriteQueue::LineOf(const Digest& key) { return *lines_[key.bytes.back() % kWriters]; }

void WriteQueue::Put(Entry entry, PutDone done) {
  WaitingLine<Item>& line = LineOf(entry.key());
  const std::uint64_t bytes = kItemBytes + entry.sealed().size();
  Item item = PutItem{std::move(entry), std::move(done)};
  if (line.Add(item, bytes)) return;
  ++counters_.dropped;
  if (PutDone& told = std::get<PutItem>(item).done) told(Fail(ErrorCode::kOverloaded, "too many writes wait for the object store"));
}

void WriteQueue::NoteUseless(const Digest& key) {
  MutexLock lock(mutex_);
  if (useless_.size() < kMostUseless) useless_.insert(key);
}

void WriteQueue::ForgetUseless(const Digest& key) {
  MutexLock lock(mutex_);
  useless_.erase(key);
}

bool WriteQueue::IsOfNoUse(const Digest& key) const {
  MutexLock lock(mutex_);
  return useless_.contains(key);
}

void WriteQueue::ReplaceNext(const Digest& key) { NoteUseless(key); }

void WriteQueue::Evict(const Digest& key) {
  NoteUseless(key);
  Item item = EvictItem{key};
  LineOf(key).Add(item, kItemBytes);
}

void WriteQueue::Run(WaitingLine<Item>& line) {
  for (auto items = line.Take(1, 1); !items.empty(); items = line.Take(1, 1)) {
    if (auto* const put = std::get_if<PutItem>(&items[0])) Write(*put);
    else Remove(std::get<EvictItem>(items[0]).key);
  }
}

void WriteQueue::Write(PutItem& put) {
  const Digest& key = put.entry.key();
  auto written = store_.Write(key, Pack(put.entry), IsOfNoUse(key));
  ++(written ? counters_.puts : counters_.dropped);
  if (!written) ++counters_.errors;
  counters_.full = !written && written.error().code == ErrorCode::kFull;
  if (written) ForgetUseless(key);
  if (put.done) put.done(std::move(written));
}

void WriteQueue::Remove(const Digest& key) {
  if (const auto removed = store_.Remove(key); !removed) {
    ++counters_.errors;
    return;
  }
  ForgetUseless(key);
}

}  // namespace kiln::cache::object
