// SPDX-License-Identifier: Apache-2.0
#include "server/pool/device_pool.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "compiler/target/target.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kListLimit{30};  // a driver that starts, with many GPUs

bool IsGpu(std::string_view name) { return name.starts_with("cuda:") || name.starts_with("hip:"); }

// Why the worker that listed the GPUs could not use them, or could not list them; empty if it could.
std::string TroubleOf(const DeviceOutcome& outcome) {
  if (outcome.end == DeviceOutcome::End::kResult) return outcome.event.devices().trouble();
  return outcome.said.empty() ? outcome.cause : outcome.cause + " " + outcome.said;
}

v1::DeviceInfo Emulated(const target::Target& target) {
  v1::DeviceInfo info;
  info.set_name(std::string(target.name));
  info.set_target(std::string(target.name));
  info.set_description("emulator");
  return info;
}

}  // namespace

DevicePool::DevicePool(Options options, Zygote& zygote, const cache::Clock& clock)
    : options_(std::move(options)),
      zygote_(zygote),
      clock_(clock),
      emulators_(options_.emulators == 0
                     ? nullptr
                     : std::make_unique<DeviceLine>(LineOptions("emu", WorkerRole::kEmulator, options_.emulators), zygote, clock)),
      senses_(options_.on_replaced, zygote, clock),
      loose_lister_(ListerOptions(WorkerRole::kLooseGpu), zygote, clock),
      lister_(ListerOptions(WorkerRole::kGpu), zygote, clock) {
  ListGpus(WorkerRole::kGpu, {});
}

DevicePool::~DevicePool() { Close(); }

DeviceLine::Options DevicePool::LineOptions(std::string name, WorkerRole role, unsigned workers) const {
  return {.name = std::move(name),
          .role = role,
          .workers = workers,
          .jobs_per_worker = options_.jobs_per_worker,
          .queue = options_.queue,
          .on_replaced = options_.on_replaced};
}

DeviceLine::Options DevicePool::ListerOptions(WorkerRole role) const {
  return {.name = "list", .role = role, .workers = 1, .jobs_per_worker = 1, .on_replaced = options_.on_replaced};
}

// Uses a worker that ends afterwards, so that a driver which crashes or hangs takes nothing else along.
void DevicePool::ListGpus(WorkerRole role, Listing so_far) {
  auto task = std::make_unique<DeviceTask>();
  task->request_id = "devices";
  task->job.set_list(true);
  task->limit = kListLimit;
  task->done = [this, role, so_far = std::move(so_far)](DeviceOutcome outcome) mutable { Listed(role, std::move(so_far), std::move(outcome)); };
  cache::MutexLock lock(mutex_);  // one lister asks the other, which a pool that is closed may be about to destroy
  if (!closed_) (role == WorkerRole::kGpu ? lister_ : loose_lister_).Submit(task);
}

void DevicePool::Listed(WorkerRole role, Listing so_far, DeviceOutcome outcome) {
  using End = DeviceOutcome::End;
  if (outcome.end == End::kCancelled) return AddGpus({}, WorkerRole::kGpu);
  std::string trouble = TroubleOf(outcome);
  v1::DeviceList& list = *outcome.event.mutable_devices();
  if (role == WorkerRole::kLooseGpu) {
    if (trouble.empty()) {
      so_far.loose = std::move(list);
      return ListGpus(WorkerRole::kGpu, std::move(so_far));
    }
    list.clear_protections();
    return Settle(list, so_far.trouble, WorkerRole::kGpu);  // what fails is not the sandbox's doing
  }
  if (trouble.empty() || outcome.end == End::kNoWorker) return Settle(list, trouble, WorkerRole::kGpu);  // without one, nothing was tried
  so_far.trouble = std::move(trouble);
  const bool again = outcome.end == End::kTimeout && !std::exchange(so_far.late, true);
  if (again || !so_far.loose) return ListGpus(again ? WorkerRole::kGpu : WorkerRole::kLooseGpu, std::move(so_far));
  Settle(*so_far.loose, so_far.trouble, WorkerRole::kLooseGpu);
}

void DevicePool::Settle(const v1::DeviceList& list, std::string_view trouble, WorkerRole role) {
  if (options_.on_listed) options_.on_listed(list, trouble);  // before anything runs there
  AddGpus(list, role);
}

void DevicePool::AddGpus(const v1::DeviceList& list, WorkerRole role) {
  {
    cache::MutexLock lock(mutex_);
    for (const v1::DeviceInfo& info : list.devices()) {
      if (closed_) break;
      DeviceLine::Options line = LineOptions(info.name(), info.name().starts_with("hip:") ? WorkerRole::kLooseGpu : role, 1);
      line.device = info.name();
      gpus_.push_back({info, std::make_unique<DeviceLine>(std::move(line), zygote_, clock_)});
    }
    problems_.assign(list.problems().begin(), list.problems().end());
    listed_ = true;
  }
  changed_.NotifyAll();
  Unpark();
}

bool DevicePool::Park(std::string_view name, std::move_only_function<void()>& task) {
  cache::MutexLock lock(mutex_);
  if (!IsGpu(name) || listed_ || closed_) return false;
  parked_.push_back(std::move(task));
  return true;
}

void DevicePool::Unpark() {
  std::vector<std::move_only_function<void()>> parked;
  {
    cache::MutexLock lock(mutex_);
    parked.swap(parked_);
  }
  for (auto& task : parked) task();
}

std::expected<DevicePool::Found, Failure> DevicePool::Find(std::string_view name) {
  if (name.starts_with("emu:") && emulators_) {
    const auto target = target::Find(name);
    if (!target) return std::unexpected(Failure{.kind = Failure::Kind::kNotFound, .message = target.error()});
    return Found{Emulated(**target), emulators_.get(), std::max(1u, options_.threads)};
  }
  cache::MutexLock lock(mutex_);
  std::string there;
  for (const Gpu& gpu : gpus_) {
    if (gpu.info.name() == name) return Found{gpu.info, gpu.line.get(), 0};
    there += (there.empty() ? "" : ", ") + gpu.info.name();
  }
  if (emulators_) there += std::string(there.empty() ? "" : ", ") + "emu:sm_90a and the like";
  return std::unexpected(Failure{.kind = Failure::Kind::kNotFound,
                                 .message = fmt::format("there is no device \"{}\" on this daemon's host; there is {}. `kiln devices` "
                                                        "lists all",
                                                        name, there.empty() ? "none" : there)});
}

std::vector<DevicePool::Found> DevicePool::Like(const v1::DeviceInfo& device) {
  const auto model = [](const v1::DeviceInfo& info) {
    return std::tuple(info.description(), info.target(), info.memory_bytes(), info.driver_version());
  };
  std::vector<Found> alike;
  cache::MutexLock lock(mutex_);
  for (const Gpu& gpu : gpus_) {
    if (gpu.info.name() != device.name() && model(gpu.info) == model(device)) alike.push_back({gpu.info, gpu.line.get(), 0});
  }
  return alike;
}

std::vector<v1::DeviceInfo> DevicePool::Devices(std::chrono::seconds patience) {
  std::vector<v1::DeviceInfo> devices;
  {
    cache::MutexLock lock(mutex_);
    changed_.WaitFor(mutex_, patience, [this]() KILN_REQUIRES(mutex_) { return listed_ || closed_; });
    for (const Gpu& gpu : gpus_) devices.push_back(gpu.info);
  }
  if (!emulators_) return devices;
  for (const target::Target& target : target::Emulated()) devices.push_back(Emulated(target));
  return devices;
}

bool DevicePool::listed() {
  cache::MutexLock lock(mutex_);
  return listed_ || closed_;
}

std::vector<std::string> DevicePool::Problems() {
  cache::MutexLock lock(mutex_);
  return gpus_.empty() ? problems_ : std::vector<std::string>();
}

std::vector<v1::DeviceStats> DevicePool::Stats() {
  std::vector<v1::DeviceStats> stats;
  if (emulators_) stats.push_back(emulators_->Stats());
  cache::MutexLock lock(mutex_);
  for (const Gpu& gpu : gpus_) stats.push_back(gpu.line->Stats());
  return stats;
}

void DevicePool::Sense(std::function<void(std::vector<v1::DeviceStats>)> done) {
  std::vector<v1::DeviceStats> stats = Stats();
  std::vector<v1::DeviceInfo> gpus;
  {
    cache::MutexLock lock(mutex_);
    for (const Gpu& gpu : gpus_) gpus.push_back(gpu.info);
  }
  senses_.Ask(gpus, [gpus, stats = std::move(stats), done = std::move(done)](std::vector<v1::DeviceState> states) mutable {
    for (std::size_t i = 0; i < gpus.size(); ++i) {
      const auto at = std::ranges::find(stats, gpus[i].name(), &v1::DeviceStats::name);
      if (at != stats.end()) *at->mutable_state() = std::move(states[i]);
    }
    done(std::move(stats));
  });
}

void DevicePool::Close() {
  {
    cache::MutexLock lock(mutex_);
    closed_ = true;
  }
  changed_.NotifyAll();
  Unpark();
  lister_.Close();
  loose_lister_.Close();
  senses_.Close();
  if (emulators_) emulators_->Close();
  cache::MutexLock lock(mutex_);
  for (const Gpu& gpu : gpus_) gpu.line->Close();
}

}  // namespace kiln::server
