// SPDX-License-Identifier: Apache-2.0
//
// Compiles modules by grammar, in many processes, and says what became of them:
//   compile_modules --seeds 0-199999 --processes 16          exits with 1 where the compiler failed on one
//   compile_modules --show 1234                              the module of a seed, its target and its options
//   compile_modules --one 1234 [--target hip:gfx942] [--llvm FILE]    compiled in this process, for a debugger; FILE gets its LLVM code
// Each process has a compile worker's limit of memory (--memory), each module --seconds of processor time; a module that takes more is a fault. After
// --budget seconds processes end, with the module they are at, and the report says so.
#include <poll.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "compiler/compile.h"
#include "tests/fuzz/module_request.h"
#include "tests/fuzz/module_worker.h"

namespace kiln::fuzz {
namespace {

constexpr uint64_t kBatch = 100;  // modules that a process compiles before another takes its place
constexpr size_t kSlowest = 10;   // modules that the report names with the stages that took their time

struct Arguments {
  uint64_t first = 0, last = 0;
  size_t processes = 1;
  std::optional<uint64_t> show, one;
  double budget = std::numeric_limits<double>::infinity();
  std::string save;  // a folder for the requests that failed
  std::string llvm;
  Limits limits;
};

[[noreturn]] void Usage(std::string_view why) {
  fmt::print(stderr,
             "compile_modules: {}\nuse: compile_modules --seeds FIRST-LAST [--processes N] [--budget S] [--seconds S] [--memory BYTES] [--target "
             "NAME] [--among hip:gfx] [--save FOLDER]\n"
             "     compile_modules --show SEED\n     compile_modules --one SEED [--target NAME] [--llvm FILE]\n",
             why);
  std::exit(2);
}

template <typename Number>
Number NumberOf(std::string_view text) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) Usage(fmt::format("'{}' is no number", text));
  return number;
}

Arguments Parse(int argc, char** argv) {
  Arguments arguments;
  bool ranged = false;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    if (i + 1 >= argc) Usage(fmt::format("{} needs a value", name));
    const std::string_view value = argv[i + 1];
    if (name == "--seeds") {
      const size_t dash = value.find('-');
      if (dash == std::string_view::npos) Usage("--seeds takes FIRST-LAST");
      arguments.first = NumberOf<uint64_t>(value.substr(0, dash)), arguments.last = NumberOf<uint64_t>(value.substr(dash + 1));
      ranged = arguments.first <= arguments.last;
    } else if (name == "--processes") {
      arguments.processes = std::max<size_t>(1, NumberOf<size_t>(value));
    } else if (name == "--seconds") {
      arguments.limits.seconds = NumberOf<double>(value);
    } else if (name == "--budget") {
      arguments.budget = NumberOf<double>(value);
      if (!(arguments.budget > 0)) Usage("--budget takes seconds, more than 0");
    } else if (name == "--memory") {
      arguments.limits.memory = NumberOf<uint64_t>(value);
    } else if (name == "--among") {
      arguments.limits.among = value;
    } else if (name == "--target") {
      arguments.limits.target = value;
    } else if (name == "--save") {
      arguments.save = value;
    } else if (name == "--llvm") {
      arguments.llvm = value;
    } else if (name == "--show") {
      arguments.show = NumberOf<uint64_t>(value);
    } else if (name == "--one") {
      arguments.one = NumberOf<uint64_t>(value);
    } else {
      Usage(fmt::format("unknown argument '{}'", name));
    }
  }
  if (!ranged && !arguments.show && !arguments.one) Usage("which seeds?");
  if (!arguments.llvm.empty() && !arguments.one) Usage("--llvm needs --one");
  return arguments;
}

// A message without what differs from module to module: numbers, names, what is quoted or in parentheses, and what follows the first of a list.
std::string ClassOf(const std::string& text) {
  const auto is_word = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string out;
  for (size_t i = 0; i < text.size() && out.size() < 100;) {
    const char c = text[i];
    const size_t quoted = c == '\'' ? text.find('\'', i + 1) : c == '(' ? text.find(')', i + 1) : std::string::npos;
    const bool number = std::isdigit(static_cast<unsigned char>(c)) != 0 && (i == 0 || !is_word(text[i - 1]));
    if (quoted != std::string::npos) {
      out += c == '(' ? "(…)" : "'…'";
      i = quoted + 1;
    } else if (text.compare(i, 8, ", under ") == 0 || text.compare(i, 8, "writes %") == 0 || text.compare(i, 2, ": ") == 0) {
      break;
    } else if (c == '%' || c == '@' || number) {
      out += number ? '#' : c;
      for (++i; i < text.size() && (is_word(text[i]) || (number && text[i] == '.')); ++i) {
      }
    } else {
      out += c, ++i;
    }
  }
  return out;
}

class Campaign {
 public:
  explicit Campaign(const Arguments& arguments) : arguments_(arguments), next_(arguments.first), start_(std::chrono::steady_clock::now()) {}

  bool Run() {
    while (Fill()) Wait();
    Report();
    return faults_.empty();
  }

 private:
  // As many processes as there may be; false: none is left to do anything.
  bool Fill() {
    while (workers_.size() < arguments_.processes) {
      if (IsOver()) {
        break;
      } else if (!rest_.empty()) {
        workers_.emplace_back(rest_.back().first, rest_.back().second, arguments_.limits);
        rest_.pop_back();
      } else if (next_ <= arguments_.last) {
        const uint64_t end = std::min(next_ + kBatch, arguments_.last + 1);
        workers_.emplace_back(next_, end, arguments_.limits);
        next_ = end;
      } else {
        break;
      }
    }
    return !workers_.empty();
  }

  void Wait() {
    std::vector<pollfd> polled;
    for (const Worker& worker : workers_) polled.push_back({.fd = worker.descriptor(), .events = POLLIN, .revents = 0});
    ::poll(polled.data(), polled.size(), 100);
    std::deque<Worker> going;
    for (size_t i = 0; i < workers_.size(); ++i) {
      Worker& worker = workers_[i];
      worker.Watch();
      if (IsOver()) worker.Stop();
      const bool ended = polled[i].revents != 0 && !worker.Read([&](const Verdict& verdict) { Take(verdict); });
      ended ? End(worker) : void(going.push_back(std::move(worker)));
    }
    workers_.swap(going);
    Progress();
  }

  void End(Worker& worker) {
    if (const std::optional<Verdict> verdict = worker.Bury()) Take(*verdict);
    peak_kib_ = std::max(peak_kib_, worker.peak_kib());
    if (worker.next() < worker.end()) rest_.emplace_back(worker.next(), worker.end());
  }

  void Take(const Verdict& verdict) {
    ++counts_[verdict.status];
    seconds_.push_back(verdict.seconds);
    slowest_.insert(std::ranges::upper_bound(slowest_, verdict.seconds, std::greater(), &Verdict::seconds), verdict);
    if (slowest_.size() > kSlowest) slowest_.pop_back();
    if (verdict.status != "ok" && !verdict.IsFault()) ++refusals_[verdict.status + ": " + ClassOf(verdict.text)];
    if (!verdict.IsFault()) return;
    faults_.push_back(verdict);
    fmt::print("FAULT seed {} {}: {} ({:.1f} s)\n", verdict.seed, verdict.status, verdict.text, verdict.seconds);
    std::fflush(stdout);
    if (!arguments_.save.empty())
      std::ofstream(fmt::format("{}/{}.req", arguments_.save, verdict.seed)) << RequestOf(verdict.seed).SerializeAsString();
  }

  bool IsOver() const { return Elapsed() >= arguments_.budget; }
  double Elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

  void Progress() {
    if (Elapsed() < told_ + 15) return;
    told_ = Elapsed();
    fmt::print(stderr, "{:.0f} s: {} of {} modules, {} faults\n", told_, seconds_.size(), arguments_.last - arguments_.first + 1, faults_.size());
  }

  void Report() {
    const bool cut = IsOver() && seconds_.size() <= arguments_.last - arguments_.first;
    std::ranges::sort(seconds_);
    const auto share = [&](double part) {
      return seconds_.empty() ? 0 : seconds_[std::min(seconds_.size() - 1, size_t(part * double(seconds_.size())))];
    };
    fmt::print("\n{} modules in {:.0f} s{}\n", seconds_.size(), Elapsed(), cut ? ", ended by --budget" : "");
    for (const auto& [status, count] : counts_) fmt::print("  {:9} {}\n", count, status);
    std::vector<std::pair<int, std::string>> refusals;
    for (const auto& [what, count] : refusals_) refusals.emplace_back(count, what);
    std::ranges::sort(refusals, std::greater());
    fmt::print("refusals, {} kinds:\n", refusals.size());
    for (const auto& [count, what] : refusals) fmt::print("  {:9} {}\n", count, what);
    fmt::print("processor time of a module: p50 {:.3f} s, p99 {:.3f} s, max {:.2f} s, the longest of\n", share(0.5), share(0.99), share(1));
    for (const Verdict& slow : slowest_) fmt::print("  {:6.2f} s  seed {} {}: {}\n", slow.seconds, slow.seed, slow.status, slow.stages);
    fmt::print("peak memory of a process: {:.0f} MiB of {:.0f}\n", double(peak_kib_) / 1024, double(arguments_.limits.memory) / (1 << 20));
    std::map<std::string, std::string> seeds;
    for (const Verdict& fault : faults_) seeds[fault.status] += fmt::format(" {}", fault.seed);
    for (const auto& [status, list] : seeds) fmt::print("{}:{}\n", status, list);
    fmt::print("{} faults\n", faults_.size());
  }

  const Arguments& arguments_;
  uint64_t next_;
  std::vector<std::pair<uint64_t, uint64_t>> rest_;  // of ranges whose process ended early
  std::deque<Worker> workers_;
  std::map<std::string, int> counts_, refusals_;
  std::vector<double> seconds_;
  std::vector<Verdict> faults_;
  std::vector<Verdict> slowest_;
  long peak_kib_ = 0;
  const std::chrono::steady_clock::time_point start_;
  double told_ = 0;
};

int Show(uint64_t seed) {
  v1::CompileRequest request = RequestOf(seed);
  fmt::print("{}\n# target {}\n# options {}\n", TextOf(seed), request.target(), request.options().ShortDebugString());
  return 0;
}

int One(uint64_t seed, const Arguments& arguments) {
  const Verdict verdict = CompileOne(seed, arguments.limits, arguments.llvm);
  fmt::print("{} {:.2f} s ({}) {}\n", verdict.status, verdict.seconds, verdict.stages, verdict.text);
  return verdict.IsFault() ? 1 : 0;
}

}  // namespace
}  // namespace kiln::fuzz

int main(int argc, char** argv) {
  const kiln::fuzz::Arguments arguments = kiln::fuzz::Parse(argc, argv);
  if (arguments.show) return kiln::fuzz::Show(*arguments.show);
  kiln::compiler::Initialize();
  if (arguments.one) return kiln::fuzz::One(*arguments.one, arguments);
  return kiln::fuzz::Campaign(arguments).Run() ? 0 : 1;
}
