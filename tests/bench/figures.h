// SPDX-License-Identifier: Apache-2.0
//
// What the benchmark measures, and its harness: a kilnd of its own, and a peer that answers every call with so many bytes.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "kiln/v1/service.grpc.pb.h"
#include "tests/bench/processors.h"

namespace kiln::bench {

using Clock = std::chrono::steady_clock;

struct Figure {
  std::string name;
  std::optional<double> value;  // absent: could not be measured
  std::string unit;
  double bar = 0;
  bool at_most = true;  // else at least
  std::string note;

  bool holds() const { return value && (at_most ? *value <= bar : *value >= bar); }
};

struct Setup {
  std::filesystem::path bin;       // where kilnd and kiln-worker are
  std::filesystem::path programs;  // *.kiln
  std::filesystem::path scratch;
  bool quick = false;          // fewer rounds, for a look
  double minutes = 5;          // of the soak
  std::optional<Split> split;  // absent: all use all processors

  unsigned workers() const;  // of kilnd: one for each of its processors
};

double Milliseconds(Clock::duration time);
double Median(std::vector<double> values);

// kilnd on a socket in the scratch folder.
class Daemon {
 public:
  Daemon(const Setup& setup, const std::string& state, const std::vector<std::string>& options = {});
  ~Daemon();
  Daemon(const Daemon&) = delete;
  Daemon& operator=(const Daemon&) = delete;

  std::unique_ptr<v1::Kiln::Stub> Connect() const;
  v1::StatsReply Stats() const;
  double start_milliseconds() const { return start_ms_; }  // from the start of the process to its first answer
  double ResidentMiB() const;
  std::size_t Descriptors() const;
  std::size_t Processes() const;  // kilnd, its zygote, the workers
  double CpuSeconds() const;      // of kilnd, not of its workers
  std::string build_id() const;

 private:
  std::string address_;
  pid_t pid_ = 0;
  double start_ms_ = 0;
};

// A process with a gRPC server that answers any unary call with the bytes whose number the request asks for. Start it before
// this process has used gRPC.
class Peer {
 public:
  explicit Peer(const Setup& setup);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  std::shared_ptr<grpc::Channel> Connect() const;
  // One empty unary call; the length of the reply.
  static std::size_t Call(grpc::Channel& channel, std::size_t bytes);

 private:
  std::string address_;
  pid_t pid_ = 0;
};

// A channel with a connection of its own.
std::shared_ptr<grpc::Channel> Dial(const std::string& address);

std::vector<Figure> MeasureHits(const Setup& setup, const Peer& peer);
std::vector<Figure> MeasureMisses(const Setup& setup);
std::vector<Figure> MeasureStart(const Setup& setup);
std::vector<Figure> MeasureTuning(const Setup& setup);

// What tests/bench/load prints: many at one time.
std::vector<Figure> MeasureOneKey(const Setup& setup);
std::vector<Figure> MeasureRanks(const Setup& setup);
std::vector<Figure> MeasureManifest(const Setup& setup);
std::vector<Figure> MeasureCrowd(const Setup& setup, const Peer& peer);
std::vector<Figure> MeasureOverload(const Setup& setup);
std::vector<Figure> MeasureSoak(const Setup& setup);

}  // namespace kiln::bench
