// SPDX-License-Identifier: Apache-2.0
//
// kiln top: on a terminal a screen that renews itself until Ctrl-C; elsewhere a line for each look, or a JSON object with --json.
#include <csignal>
#include <deque>
#include <memory>
#include <thread>

#include <fmt/format.h>

#include "clients/cli/commands.h"
#include "clients/cli/stats_text.h"

namespace kiln::cli {
namespace {

constexpr std::size_t kHistory = 60;
volatile std::sig_atomic_t interrupted = 0;

struct TopOptions {
  double interval = 1;
  unsigned count = 0;  // 0: until interrupted
  bool once = false;
};

// The terminal's other screen while this lives, without its cursor.
class Screen {
 public:
  explicit Screen(bool used) : used_(used) {
    if (used_) fmt::print("\x1b[?1049h\x1b[?25l");
  }
  ~Screen() {
    if (used_) fmt::print("\x1b[?25h\x1b[?1049l");
  }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;

  void Show(const std::string& frame) const {
    if (used_) fmt::print("\x1b[H\x1b[J");
    fmt::print("{}", frame);
    std::fflush(stdout);
  }

 private:
  const bool used_;
};

void Sleep(double seconds) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (interrupted == 0 && std::chrono::steady_clock::now() < until) {
    std::this_thread::sleep_for(std::min<std::chrono::duration<double>>(until - std::chrono::steady_clock::now(), std::chrono::milliseconds(50)));
  }
}

std::string Line(const Stats& s, const Rates& r, bool first) {
  std::string text;
  if (first) {
    text = fmt::format("{:>10} {:>10} {:>7} {:>9} {:>9} {:>9} {:>7} {:>7} {:>8}\n", "up s", "requests/s", "hits %", "compiles/s", "refused/s",
                       "failed/s", "busy", "queue", "flights");
  }
  return text + fmt::format("{:>10.0f} {:>10.1f} {:>7.1f} {:>9.1f} {:>9.1f} {:>9.1f} {:>7} {:>7} {:>8}\n", s.uptime_seconds, r.requests,
                            100 * r.hit_ratio, r.compiles, r.refused, r.failed, fmt::format("{}/{}", s.workers_busy, s.workers), s.queued, s.flights);
}

std::string Show(const Context& context, const Stats& stats, const Rates& rates, const std::deque<double>& history, std::string_view address,
                 bool framed) {
  if (context.json_wanted) return Json::Object({{"stats", ToJson(stats)}, {"per_second", ToJson(rates)}}).text() + "\n";
  if (framed) return TopFrame(stats, rates, history, address, context.colours());
  return Line(stats, rates, history.size() == 1);
}

void Top(Context& context, const TopOptions& options) {
  auto client = context.Connect();
  if (!client) return context.Fail(client.error());
  auto before = client->Stats();
  if (!before) return context.Fail(before.error());
  const bool terminal = context.terminal.out_is_terminal && !context.json_wanted;
  const bool framed = terminal || options.once;
  const unsigned count = options.once ? 1 : options.count;
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::deque<double> history;
  std::expected<kiln::Stats, Error> stats;
  {
    const Screen screen(terminal && !options.once);
    for (unsigned shown = 0; count == 0 || shown < count; ++shown) {
      Sleep(options.interval);
      if (interrupted != 0 || !(stats = client->Stats())) break;
      const Rates rates = RatesOf(*before, *stats);
      history.push_back(rates.requests);
      if (history.size() > kHistory) history.pop_front();
      screen.Show(Show(context, *stats, rates, history, client->address(), framed));
      before = stats;
    }
  }
  if (!stats) context.Fail(stats.error());
}

}  // namespace

void AddTop(CLI::App& app, Context& context) {
  CLI::App& sub = *app.add_subcommand("top", "Watch what the daemon does");
  const auto options = std::make_shared<TopOptions>();
  sub.add_option("-n,--interval", options->interval, "seconds between two looks")->check(Seconds(0.05, 3600))->capture_default_str();
  sub.add_option("-c,--count", options->count, "looks; 0: until Ctrl-C")->capture_default_str();
  sub.add_flag("--once", options->once, "print one full report without clearing the screen");
  sub.callback([options, &context] { Top(context, *options); });
}

}  // namespace kiln::cli
