// SPDX-License-Identifier: Apache-2.0
//
// The upstream kilnd, as kilnd's settings name it.
#pragma once

#include <expected>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "cache/tier.h"
#include "server/config/upstream_config.h"
#include "server/reply/sealer.h"
#include "server/system/file_watch.h"
#include "server/telemetry/telemetry.h"
#include "server/upstream/peer.h"

namespace kiln::server {

class Upstream {
 public:
  // What else it needs to know of this kilnd.
  struct Host {
    std::string_view build_id;
    bool forwards = false;                  // it has no workers
    std::size_t max_artifact_bytes = 0;     // that it keeps
    std::filesystem::path remembered = {};  // file for the ptxas of the upstream kilnd, which is a part of keys; for a host without workers
  };

  // The error says which setting is wrong.
  static std::expected<std::unique_ptr<Upstream>, std::string> Open(const UpstreamConfig& config, Host host, const Telemetry& telemetry,
                                                                    const cache::Clock& clock);

  // Waits a moment for it, and then goes on without it for now.
  void Begin(const Sealer& sealer);

  void Reload();  // the file of tokens

  std::shared_ptr<cache::Tier> tier() const;
  Peer& peer() { return *peer_; }

  // Of the ptxas that it compiles with, by its last word, which a restart of this kilnd outlives. Empty: none, or nothing is known yet.
  std::string PtxasVersion() const;

 private:
  Upstream(Host host, const Telemetry& telemetry) : host_(std::move(host)), telemetry_(telemetry) {}

  void NoteDescription(const v1::CapabilitiesReply& said);
  void Remember(const std::string& ptxas);

  const Host host_;
  const Telemetry& telemetry_;
  const Sealer* sealer_ = nullptr;  // from Begin on
  mutable cache::Mutex mutex_;
  std::string ptxas_ KILN_GUARDED_BY(mutex_);
  std::shared_ptr<Peer> peer_;
  std::unique_ptr<FileWatch> tokens_;  // null: there is no such file; last: it uses the others
};

// What would keep it from being opened, that can be known without asking it.
std::expected<void, std::string> CheckUpstream(const UpstreamConfig& config);

}  // namespace kiln::server
