// SPDX-License-Identifier: Apache-2.0
//
// One client of the soak: draws what to call next, calls it, and knows what it must be answered.
#pragma once

#include <atomic>
#include <cstddef>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/bench/figures.h"
#include "tests/bench/programs.h"
#include "tests/bench/soak_roles.h"

namespace kiln::bench {

// Of programs that are asked for again and again: there is one key and one artifact for each, whoever asks, wherever it comes from.
class KnownPrograms {
 public:
  Wrong Compare(unsigned number, const v1::CompileReply& reply);

 private:
  std::mutex mutex_;
  std::map<unsigned, std::pair<std::string, std::string>> seen_;  // guarded by mutex_; key, digest of the artifact
};

// What all clients share.
struct SoakWorld {
  SoakWorld(const Setup& setup, const Daemon& kilnd, unsigned short port)
      : daemon(kilnd), variant(setup), metrics_port(port), build_id(kilnd.build_id()) {}

  const Daemon& daemon;
  const Variants variant;
  const unsigned short metrics_port;
  const std::string build_id;
  KnownPrograms known;
  std::atomic<unsigned> fresh = 1'000'000;  // programs that nobody has asked for have the numbers from here on
};

class SoakClient {
 public:
  struct Kind {
    const char* name;
    unsigned share;  // of 10,000
    Wrong (SoakClient::*call)();
  };
  static std::span<const Kind> Kinds();

  SoakClient(SoakWorld& world, unsigned number, const Role& role, std::string secret);

  // The place in Kinds of what comes next.
  std::size_t Draw();
  Wrong Call(std::size_t kind) { return (this->*Kinds()[kind].call)(); }

 private:
  using Code = grpc::StatusCode;
  using Scope = server::Scope;
  struct Tensors {
    grpc::Status status;
    v1::RunResult result;
    std::string bytes;
  };

  // soak_client.cc
  Wrong Hit();
  Wrong Miss();
  Wrong Nonsense();
  Wrong LosePatience();
  Wrong ComeAndGo();
  Wrong Stats();
  Wrong Capabilities();
  Wrong Metrics();
  grpc::Status Compile(const std::string& module, v1::CompileReply& reply);
  Wrong JudgeKnown(unsigned number, const grpc::Status& status, const v1::CompileReply& reply) const;

  // soak_store_calls.cc
  Wrong LookUp();
  Wrong LookUpKnown();
  Wrong LookUpUnknown();
  Wrong Put();
  Wrong Ensure();
  Wrong EnsureAndCancel();
  Wrong List();
  Wrong ExportAndImport();
  Wrong Verify();
  Wrong Gc();
  grpc::Status LookUp(const v1::LookupRequest& request, v1::CompileReply& reply);
  grpc::Status ListSome(unsigned limit, std::vector<v1::CacheEntry>& entries);
  grpc::Status Export(const std::vector<v1::CacheEntry>& entries, std::string& bundle);
  grpc::Status Import(const std::string& bundle, v1::CacheImportReply& reply);
  v1::EnsureRequest Manifest(unsigned known, unsigned fresh);

  // soak_runs.cc
  Wrong Run();
  Wrong RunByKey();
  Wrong RunAndCancel();
  Wrong RunTooLong();
  Tensors RunNow(const v1::RunRequest& start, std::size_t rows);
  Wrong JudgeRun(const Tensors& answer, std::size_t rows, unsigned added) const;

  unsigned Below(unsigned count) { return static_cast<unsigned>(random_() % count); }
  unsigned Popular();
  std::string RandomKey();
  v1::CompileRequest RequestOf(std::string module) const;
  void Prepare(grpc::ClientContext& context) const;
  Wrong Judge(const grpc::Status& status, Scope needed, std::initializer_list<Code> expected) const { return role_.Judge(status, needed, expected); }

  SoakWorld& world_;
  std::mt19937 random_;
  const Role& role_;
  const std::string secret_;
  std::shared_ptr<v1::Kiln::Stub> stub_;
  double uptime_ = 0;  // of kilnd when it was last asked
};

}  // namespace kiln::bench
