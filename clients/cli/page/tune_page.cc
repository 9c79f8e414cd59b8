// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/page/tune_page.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "clients/cli/page/markup.h"
#include "clients/cli/page/template.h"

namespace kiln::cli {
namespace {

constexpr double kMostShown = 4;  // times the fastest's time: a longer bar is cut

constexpr std::string_view kOwnStyle = R"(table { border-collapse: collapse; }
th, td { padding: 2px 8px; text-align: left; border-top: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
tr.winner { background: var(--chosen); }
.bars { width: 34%; min-width: 180px; }
.bar { position: relative; height: 12px; background: var(--line); }
.bar i { position: absolute; left: 0; top: 0; bottom: 0; background: var(--copy); }
.bar b { position: absolute; top: -2px; bottom: -2px; width: 2px; background: var(--product); }
td.most { font-weight: 700; }
svg text { fill: var(--dim); font-size: 11px; }
)";

bool HasTime(const TuneMeasurement& said) { return !said.microseconds.empty(); }

std::string_view Name(TuneOutcome outcome) {
  switch (outcome) {
    case TuneOutcome::kNotReached: return "not reached";
    case TuneOutcome::kMeasured: return "measured";
    case TuneOutcome::kDropped: return "dropped";
    case TuneOutcome::kRefused: return "refused";
    case TuneOutcome::kFaulted: return "faulted";
    case TuneOutcome::kTimedOut: return "timed out";
    case TuneOutcome::kWrong: return "wrong";
  }
  return "";
}

// The fastest first; those without a time by what was expected of them.
std::vector<const TuneMeasurement*> ByTime(const Tuned& tuned) {
  std::vector<const TuneMeasurement*> order;
  for (const TuneMeasurement& said : tuned.measurements) order.push_back(&said);
  std::ranges::stable_sort(order, {}, [](const TuneMeasurement* said) {
    return std::tuple(!HasTime(*said), said->median, !said->estimate, said->estimate ? said->estimate->microseconds : 0);
  });
  return order;
}

std::vector<const TuneMeasurement*> Judged(const Tuned& tuned) {
  std::vector<const TuneMeasurement*> both;
  for (const TuneMeasurement& said : tuned.measurements) {
    if (HasTime(said) && said.estimate && said.median > 0 && said.estimate->microseconds > 0) both.push_back(&said);
  }
  return both;
}

std::string Number(double value) { return fmt::format("<td class=\"number\">{:.2f}</td>", value); }
std::string NoNumber() { return "<td class=\"number\">–</td>"; }

std::string Bar(const TuneMeasurement& said, double best) {
  const auto percent = [&](double time) { return best > 0 ? 100 * std::min(time / best, kMostShown) / kMostShown : 0.0; };
  std::string bar = "<td class=\"bars\"><div class=\"bar\">";
  if (HasTime(said)) bar += fmt::format("<i style=\"width:{:.1f}%\"></i>", percent(said.median));
  if (said.estimate) bar += fmt::format("<b style=\"left:{:.1f}%\"></b>", percent(said.estimate->microseconds));
  return bar + "</div></td>";
}

std::string Times(const Tuned& tuned) {
  std::string rows;
  const TuneMeasurement& winner = tuned.measurements[tuned.winner];
  for (const TuneMeasurement* said : ByTime(tuned)) {
    rows += fmt::format("<tr{}><td>{}</td>{}", said == &winner ? " class=\"winner\"" : "", Escaped(said->label), Bar(*said, winner.median));
    rows += HasTime(*said) ? Number(said->median) + Number(said->noise) : NoNumber() + NoNumber();
    rows += said->estimate ? Number(said->estimate->microseconds) : NoNumber();
    rows += HasTime(*said) && said->estimate && said->median > 0 ? Number(said->estimate->microseconds / said->median) : NoNumber();
    rows += fmt::format("<td>{}</td></tr>\n", Name(said->outcome));
  }
  return fmt::format(
      "<section><h2>Time by candidate</h2><p>Bar: the median of its times, up to {} times the fastest's. Line: what the planner expected.</p>"
      "<div class=\"scroll\"><table><tr><th>candidate</th><th class=\"bars\"></th><th class=\"number\">µs</th><th class=\"number\">noise</th>"
      "<th class=\"number\">expected</th><th class=\"number\">expected / measured</th><th>outcome</th></tr>\n{}</table></div></section>\n",
      kMostShown, rows);
}

// Both axes are logarithmic and alike, so that the diagonal is where the planner is right.
std::string Against(const Tuned& tuned) {
  const auto both = Judged(tuned);
  if (both.size() < 2) return "";
  double low = both.front()->median, high = low;
  for (const TuneMeasurement* said : both) {
    low = std::min({low, said->median, said->estimate->microseconds});
    high = std::max({high, said->median, said->estimate->microseconds});
  }
  constexpr double kSide = 420, kEdge = 40;
  const double span = std::max(std::log(high / low), 1e-6);
  const auto at = [&](double time) { return kEdge + (kSide - 2 * kEdge) * std::log(time / low) / span; };
  std::string dots;
  for (const TuneMeasurement* said : both) {
    const bool wins = said == &tuned.measurements[tuned.winner];
    dots += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"var({})\"><title>{}: {:.2f} µs, expected {:.2f}</title></circle>",
                        at(said->estimate->microseconds), kSide - at(said->median), wins ? 6 : 4, wins ? "--product" : "--copy", Escaped(said->label),
                        said->median, said->estimate->microseconds);
  }
  const PlannerScore score = ScoreOf(tuned);
  const std::string place =
      score.winners_place == 0 ? "" : fmt::format(" The fastest is number {} of {} in the planner's order.", score.winners_place, score.judged);
  return fmt::format(
      "<section><h2>Model against measurement</h2><p>The planner, which counts with the {}, has a first choice that reaches {:.3f} of the fastest.{} "
      "A point on the line took as long as "
      "was expected.</p><svg role=\"img\" aria-label=\"expected and measured times\" viewBox=\"0 0 {} {}\" width=\"{}\">"
      "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"var(--wait)\"/>{}<text x=\"{}\" y=\"{}\">expected, {:.1f} to {:.1f} µs →</text>"
      "<text x=\"4\" y=\"14\">↑ measured</text></svg></section>\n",
      Escaped(score.board), score.first_choice, place, kSide, kSide, kSide, kEdge, kSide - kEdge, kSide - kEdge, kEdge, dots, kEdge, kSide - 8, low,
      high);
}

// Of all kernels of a candidate together, in the order in which the planner names them.
std::vector<PlanTerm> TermsOf(const Estimate& estimate) {
  std::vector<PlanTerm> terms;
  const auto add = [&](const std::string& name, double microseconds) {
    const auto at = std::ranges::find(terms, name, &PlanTerm::name);
    if (at == terms.end()) terms.push_back({name, microseconds});
    else at->microseconds += microseconds;
  };
  for (const KernelEstimate& kernel : estimate.kernels) {
    for (const PlanTerm& term : kernel.units) add(term.name, term.microseconds);
    for (const PlanTerm& term : kernel.waits) add("wait: " + term.name, term.microseconds);
    add("launch", kernel.launch);
  }
  return terms;
}

std::string Terms(const Tuned& tuned) {
  std::string rows;
  std::vector<PlanTerm> names;
  for (const TuneMeasurement* said : ByTime(tuned)) {
    if (!said->estimate || said->estimate->kernels.empty()) continue;
    const std::vector<PlanTerm> terms = TermsOf(*said->estimate);
    if (names.empty()) names = terms;
    double most = 0;
    for (const PlanTerm& term : terms) most = std::max(most, term.microseconds);
    rows += fmt::format("<tr><td>{}</td>{}", Escaped(said->label), Number(said->estimate->microseconds));
    for (const PlanTerm& name : names) {
      const auto at = std::ranges::find(terms, name.name, &PlanTerm::name);
      const double value = at == terms.end() ? 0 : at->microseconds;
      rows += fmt::format("<td class=\"number{}\">{:.2f}</td>", value == most ? " most" : "", value);
    }
    rows += "</tr>\n";
  }
  if (rows.empty()) return "";
  std::string head;
  for (const PlanTerm& name : names) head += fmt::format("<th class=\"number\">{}</th>", Escaped(name.name));
  return fmt::format(
      "<section><h2>Terms of the cost</h2><p>Microseconds that each unit is busy, and that a block's threads wait. They overlap and do not add up; "
      "the largest is bold.</p><div class=\"scroll\"><table><tr><th>candidate</th><th class=\"number\">expected</th>{}</tr>\n{}</table></div>"
      "</section>\n",
      head, rows);
}

// Of the device while it was measured, and what launches without a pause take of it.
std::string Energies(const Tuned& tuned) {
  std::string rows;
  for (const TuneMeasurement* said : ByTime(tuned)) {
    const auto [low, high] = ClocksOf(*said);
    if (high == 0 && !said->energy) continue;
    rows += fmt::format("<tr{}><td>{}</td>", said == &tuned.measurements[tuned.winner] ? " class=\"winner\"" : "", Escaped(said->label));
    rows += high == 0 ? NoNumber() : fmt::format("<td class=\"number\">{}</td>", low == high ? std::to_string(low) : fmt::format("{}–{}", low, high));
    rows += said->energy ? Number(said->energy->joules * 1000) + Number(said->energy->watts) + Number(said->energy->microseconds)
                         : NoNumber() + NoNumber() + NoNumber();
    rows += "</tr>\n";
  }
  const std::string why = tuned.energy_problem.empty() ? "" : fmt::format("<p>Energy: {}.</p>", Escaped(tuned.energy_problem));
  if (rows.empty() && why.empty()) return "";
  const std::string table =
      rows.empty() ? ""
                   : fmt::format(
                         "<div class=\"scroll\"><table><tr><th>candidate</th><th class=\"number\">MHz</th><th class=\"number\">mJ a launch</th>"
                         "<th class=\"number\">W</th><th class=\"number\">µs without a pause</th></tr>\n{}</table></div>",
                         rows);
  return fmt::format("<section><h2>Clock and energy</h2>{}{}</section>\n", table, why);
}

std::string Problems(const Tuned& tuned) {
  std::string items;
  for (const TuneMeasurement& said : tuned.measurements) {
    if (!said.problem.empty()) items += fmt::format("<li>{}: {}</li>\n", Escaped(said.label), Escaped(said.problem));
  }
  return items.empty() ? "" : fmt::format("<section><h2>What did not run</h2><ul>\n{}</ul></section>\n", items);
}

}  // namespace

PlannerScore ScoreOf(const Tuned& tuned) {
  const auto both = Judged(tuned);
  PlannerScore score{.judged = both.size()};
  if (both.empty()) return score;
  score.board = both.front()->estimate->board;
  const auto first = std::ranges::min_element(both, {}, [](const TuneMeasurement* said) { return said->estimate->microseconds; });
  const TuneMeasurement& winner = tuned.measurements[tuned.winner];
  score.first_choice = winner.median / (*first)->median;
  if (std::ranges::find(both, &winner) == both.end()) return score;
  score.winners_place = 1 + static_cast<std::size_t>(std::ranges::count_if(
                                both, [&](const TuneMeasurement* said) { return said->estimate->microseconds < winner.estimate->microseconds; }));
  return score;
}

std::string MakeTunePage(const Tuned& tuned) {
  const TuneMeasurement& winner = tuned.measurements[tuned.winner];
  const std::string title = fmt::format("{} candidates on the {}", tuned.measurements.size(), Escaped(tuned.device));
  const std::string about =
      fmt::format("{} is the fastest: {:.2f} µs, noise {:.2f} µs. {} rounds in {:.1f} s, {}, driver {}, compiler {}.", Escaped(winner.label),
                  winner.median, winner.noise, tuned.rounds, tuned.seconds, Escaped(tuned.target), Escaped(tuned.driver), Escaped(tuned.compiler));
  const std::string caution =
      tuned.caution.empty() ? "" : fmt::format("<p class=\"warning\">The check of its outputs says little: {}.</p>\n", Escaped(tuned.caution));
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n<title>{0}</title>\n"
      "<style>\n{1}{2}</style>\n</head>\n<body>\n<header><h1>{0}</h1><p id=\"about\">{3}</p></header>\n<main>\n{4}{5}{6}{7}{8}{9}</main>\n</body>\n"
      "</html>\n",
      title, kPageStyle, kOwnStyle, about, caution, Times(tuned), Against(tuned), Energies(tuned), Terms(tuned), Problems(tuned));
}

}  // namespace kiln::cli
