// SPDX-License-Identifier: Apache-2.0
//
// Which of several programs that do the same is the fastest on a device of the daemon's host:
//
//   auto tuned = client->Tune({.candidates = {{{.module = a}, "64 rows"}, {{.module = b}, "128 rows"}}, .device = "cuda:0",
//                              .arguments = {kiln::Recipe{.dtype = kiln::DType::kBF16, .shape = {4096, 4096}}, …}});
//   const kiln::CompileRequest& fastest = request.candidates[tuned->winner].program;
//
// With .mode = kiln::TuneMode::kBackground the answer comes at once: what the planner expects most of, or what is known. The tuning goes on, and
// Client::WatchTune waits for its record.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/cpp/expr.h"
#include "clients/cpp/rank.h"
#include "clients/cpp/run.h"

namespace kiln {

// A tensor, row-major, whose data the daemon makes up.
struct Recipe {
  enum class Fill : std::uint8_t { kRandom, kRange, kZeros };
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  Fill fill = Fill::kRandom;       // small values that every type holds
  std::int64_t low = 0, high = 0;  // kRange: random integers from `low` to below `high`
};
// The data of a HostTensor travel there; what a candidate writes does not come back.
using TuneArgument = std::variant<Recipe, HostTensor, std::int64_t, double>;

struct TuneCandidate {
  CompileRequest program;  // its target may be empty; its module too: the first candidate's, with these options
  std::string label;       // what the record calls it
};

// What to wait for. All but kWait are answered with the record where there is one; else Tuned has no measurements, and `choices`.
enum class TuneMode : std::uint8_t {
  kWait,       // for the record
  kOff,        // for nothing: the candidates as they come; no record is looked for
  kModel,      // for the planner's word; nothing is compiled or measured
  kBackground  // the same, and the tuning goes on behind it
};

// By what `choices` are in their order: as they came, by the planner, or by a record of another driver or compiler.
enum class TuneBasis : std::uint8_t { kNone, kCaller, kPlanner, kNearRecord };

struct TuneRequest {
  std::vector<TuneCandidate> candidates;
  std::string device;                    // "cuda:0"
  std::vector<TuneArgument> arguments;   // one for each parameter, or for each that is no output
  std::optional<std::size_t> reference;  // the candidate whose outputs are right; nothing: the first that runs
  double budget_seconds = 0;             // for compiling and measuring; 0: what the daemon allows
  std::uint32_t budget_candidates = 0;   // so many, of which the planner expects most; 0: all
  double candidate_seconds = 0;          // that one measurement may take; 0: the daemon's choice
  bool measure_on_emulator = false;      // where the time says nothing of any GPU
  bool refresh = false;                  // measure even if there is a record
  bool known_only = false;               // kNotFound where there is no record; nothing is compiled or measured
  std::uint64_t seed = 0;                // of random data
  TuneMode mode = TuneMode::kWait;
  std::uint32_t devices = 0;                       // GPUs of the host, of the same model, that measure the first round together; 0: `device` alone
  std::optional<std::uint32_t> energy_candidates;  // of so many of the fastest it is measured too; nothing: the daemon's choice
};

struct TuneProgress {
  std::uint32_t candidates = 0, ranked = 0, compiled = 0, measured = 0, dropped = 0, failed = 0;
  std::optional<std::size_t> best;
  double best_microseconds = 0;
  double elapsed_seconds = 0, left_seconds = 0;
};

enum class TuneOutcome : std::uint8_t { kNotReached, kMeasured, kDropped, kRefused, kFaulted, kTimedOut, kWrong };

// What launches that follow one another without a pause take.
struct LaunchEnergy {
  double joules = 0;  // of one launch
  double watts = 0;
  double microseconds = 0;  // of one launch
  std::uint32_t launches = 0;
  std::uint32_t compute_mhz = 0;  // in their midst; 0: unknown
};

// A device of the same model that measured as well. Its times are divided by its scale before they are compared.
struct TuneDevice {
  std::string name;            // "cuda:1"
  double scale = 0;            // its time of a candidate that all of them measured, by the first one's
  std::uint32_t measured = 0;  // candidates
  std::string left;            // why it measured no more: it was not of the same speed, or could not be used
};

struct TuneMeasurement {
  std::string label;
  std::string key;  // of the compiled program; empty: it does not compile
  TuneOutcome outcome = TuneOutcome::kNotReached;
  std::vector<double> microseconds;  // each, in the order in which they were measured
  double median = 0, noise = 0;      // the median of the distances from the median
  std::string problem;               // what the compiler, the device or the comparison said
  std::optional<Estimate> estimate;  // what the planner expected on this device; nothing: it did not say
  // The device's clocks while each of `microseconds` was measured; 0: its driver does not tell.
  std::vector<std::uint32_t> compute_mhz, memory_mhz;
  std::optional<LaunchEnergy> energy;  // nothing: it is not among the fastest, or Tuned::energy_problem
};

// The least and the most of compute_mhz; zeros where the driver does not tell.
std::pair<std::uint32_t, std::uint32_t> ClocksOf(const TuneMeasurement& said);

struct Tuned {
  std::size_t winner = 0;     // among the candidates; without a record the first choice
  std::size_t reference = 0;  // whose outputs the winner's agree with
  std::vector<TuneMeasurement> measurements;
  std::string key;     // of the record
  std::string device;  // "NVIDIA H200"
  std::string target, driver, compiler;
  double seconds = 0;  // that the tuning took
  std::uint32_t rounds = 0;
  std::vector<TuneDevice> devices;   // that measured together, the one that was asked for first; empty: that one alone
  std::string energy_problem;        // why the energy of fewer is known than was asked for
  std::string caution;               // why it says little that the winner's outputs agree with the reference's; empty: it says enough
  Origin origin = Origin::kUnknown;  // of the record; kCompiled: it was made for this call

  // Where there is no record. The first of them that compiles is to be run.
  std::vector<std::size_t> choices;
  TuneBasis basis = TuneBasis::kNone;
  std::string watch;    // kBackground: for Client::WatchTune
  std::string untuned;  // kBackground without `watch`: why nothing is tuned now

  bool has_record() const { return !measurements.empty(); }
};

// What Client::CompileSpace finds.
struct Chosen {
  Compiled compiled;
  std::size_t candidate = 0;  // that it is
  Tuned tuned;                // why it is this one
};

using OnTuneProgress = std::function<void(const TuneProgress&)>;

}  // namespace kiln
