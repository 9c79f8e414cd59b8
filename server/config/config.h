// SPDX-License-Identifier: Apache-2.0
//
// What a person can set: flags over environment over a TOML file over defaults. The environment is read here and in the clients only
// (tests/layering/layering.py).
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "clients/common/endpoint.h"
#include "server/config/accept_unsigned.h"
#include "server/config/cluster_config.h"
#include "server/config/object_config.h"
#include "server/config/request_limits.h"
#include "server/config/upstream_config.h"
#include "server/system/service_manager.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

struct Config {
  Endpoint endpoint;
  unsigned socket_mode = 0600;
  std::string tls_certificate;  // PEM files; empty: no TLS
  std::string tls_key;
  std::string tls_client_ca;                                   // set: clients must present a certificate of it
  std::filesystem::path tokens;                                // of bearer tokens; need not exist
  std::filesystem::path access;                                // who is whom; empty: the defaults of authenticator.h
  std::string audit_log;                                       // empty: into the log
  bool accept_put = true;                                      // Put and CacheImport: results that were made elsewhere
  AcceptUnsigned accept_unsigned = AcceptUnsigned::kOfAdmins;  // Put of what no trusted key has sealed
  std::filesystem::path signing_key;                           // made where it does not exist
  std::filesystem::path trusted_keys;                          // of other hosts; empty: none

  std::filesystem::path state_directory;
  // The default store for this socket alone, used when another kilnd holds the one in `state_directory`.
  std::optional<std::filesystem::path> own_state_directory;
  std::uint64_t memory_cache_bytes = std::uint64_t{256} << 20;
  std::uint64_t disk_cache_bytes = std::uint64_t{8} << 30;
  std::vector<std::filesystem::path> bundles;  // served as they lie there
  ClusterConfig cluster;
  ObjectConfig object;
  UpstreamConfig upstream;

  std::filesystem::path worker_executable;
  unsigned workers = 1;  // 0: the upstream kilnd compiles
  std::uint64_t worker_memory_bytes = std::uint64_t{4} << 30;
  std::optional<unsigned> worker_user;  // whom the workers become when kilnd runs as root
  std::string library_path;             // LD_LIBRARY_PATH: where GPU drivers may be
  unsigned jobs_per_worker = 200;
  unsigned queue = 256;
  std::uint64_t max_message_bytes = std::uint64_t{16} << 20;         // gRPC's, of any call
  std::uint64_t connection_memory_bytes = std::uint64_t{192} << 20;  // of all that gRPC has received and nobody has read
  std::uint64_t manifest_memory_bytes = std::uint64_t{96} << 20;     // of all manifests under way
  std::uint64_t request_memory_bytes = std::uint64_t{64} << 20;      // of all requests under way; and again of what is being decoded
  std::size_t request_queue = 4096;                                  // requests that may wait for a thread at one time
  RequestLimits limits;
  std::chrono::milliseconds compile_limit{120'000};
  unsigned emulators = 2;                                       // emulated runs at one time
  std::uint64_t run_data_bytes = std::uint64_t{256} << 20;      // of the tensors of one run
  std::uint64_t run_data_total_bytes = std::uint64_t{1} << 30;  // of all that are under way
  unsigned run_calls = 256;                                     // under way
  unsigned run_arguments = 256;
  unsigned run_repeats = 10'000;
  std::chrono::milliseconds run_limit{60'000};
  std::chrono::milliseconds run_transfer{60'000};  // of a run's tensors, and of its outputs
  unsigned tunings = 4;                            // under way
  unsigned tune_candidates = 4096;
  std::chrono::milliseconds tune_limit{300'000};
  unsigned tune_workers = 75;  // percent of the workers, that may compile candidates at one time
  unsigned tune_device = 90;   // percent of the time, that tuning may keep a device busy
  std::chrono::milliseconds grace{20'000};
  std::chrono::milliseconds keepalive{60'000};  // of a silent connection, before the peer is asked whether it is there
  std::filesystem::path ptxas;                  // empty: none

  std::string metrics_address;  // HOST:PORT of /metrics, /healthz, /readyz; empty: none
  std::string trace_file;       // of spans; empty: none
  std::uint64_t trace_file_bytes = std::uint64_t{64} << 20;
  LogOptions log;

  ServiceManager service_manager;  // systemd, where it started us
  // What each setting is and where it comes from, as lines of TOML: --check-config was given and nothing shall be started.
  std::optional<std::string> effective;
};

// The error is what to print, and the status to exit with (0 for --help and --version).
struct ConfigEnd {
  int status;
  std::string text;
};
std::expected<Config, ConfigEnd> ReadConfig(int argc, char** argv);

// How many compiles run at one time by default. With four processors or more, one in eight is left to kilnd itself; with eight or more, at
// least two. A compile costs kilnd much less than its worker, but an answer that finds no processor free waits for the end of a worker's
// time slice. On eight processors a seventh worker adds no throughput under overload and delays refusals.
constexpr unsigned DefaultWorkers(unsigned processors) {
  if (processors < 4) return std::max(1u, processors);
  return processors - std::max(processors < 8 ? 1u : 2u, processors / 8);
}

// The pause between requests that are decoded although the queue is full, in order to look for their results. Decoding takes part of a
// processor, and workers may leave kilnd few.
constexpr std::chrono::microseconds BetweenDecodes(unsigned processors, unsigned workers) {
  return processors > workers ? std::chrono::microseconds(2'000) / (processors - workers) : std::chrono::microseconds(25'000);
}

// The default place of the store.
std::filesystem::path DefaultStateDirectory();

// Below the default directory: the place for a kilnd that listens at this address while another one holds the default store.
std::filesystem::path OwnStateDirectory(const std::filesystem::path& state_directory, std::string_view address);

}  // namespace kiln::server
