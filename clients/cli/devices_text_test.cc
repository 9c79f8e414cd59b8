// SPDX-License-Identifier: Apache-2.0
//
// What `kiln devices`, `kiln stats` and the page of a tuning show of GPUs.
#include "clients/cli/devices_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "clients/cli/page/tune_page.h"
#include "clients/cli/stats_text.h"

namespace kiln::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::vector<DeviceStats> Devices() {
  DeviceState state{.compute_mhz = 1755,
                    .memory_mhz = 2619,
                    .most_compute_mhz = 1980,
                    .celsius = 41,
                    .watts = 312.4,
                    .memory_used_bytes = std::uint64_t{3} << 30,
                    .processes = std::vector<DeviceProcess>{{.pid = 4242, .name = "python3", .memory_bytes = std::uint64_t{1} << 30}, {.pid = 7}}};
  return {{.name = "emu", .workers = 2},
          {.name = "cuda:0", .workers = 1, .busy = 1, .queued = 3, .state = state},
          {.name = "cuda:1", .workers = 1, .state = DeviceState{.problem = "NVML is not here: no file"}}};
}

TEST(DevicesText, ShowsWhatIsKnownAndWhyTheRestIsNot) {
  const std::string text = StatesText(Devices(), false);
  EXPECT_THAT(text, HasSubstr("1755 MHz"));
  EXPECT_THAT(text, HasSubstr("41 °C"));
  EXPECT_THAT(text, HasSubstr("312 W"));
  EXPECT_THAT(text, HasSubstr("4242"));
  EXPECT_THAT(text, HasSubstr("python3"));
  EXPECT_THAT(text, HasSubstr("what cuda:1 does now is not known: NVML is not here: no file"));
  EXPECT_THAT(text, Not(HasSubstr("emu")));
  EXPECT_EQ(StatesText({{.name = "emu"}}, false), "");
}

TEST(DevicesText, AsJsonWhatIsNotKnownIsNull) {
  const std::string text = StateJson(*Devices()[1].state).text();
  EXPECT_THAT(text, HasSubstr("\"watts\": 312.4"));
  EXPECT_THAT(text, HasSubstr("\"joules\": null"));
  EXPECT_THAT(text, HasSubstr("{\"pid\": 7, \"name\": \"\", \"memory_bytes\": null}"));
  EXPECT_THAT(StateJson(*Devices()[2].state).text(), HasSubstr("\"processes\": null"));
}

TEST(StatsText, CountsTunings) {
  Stats stats;
  stats.tunings = {.running = 2, .in_background = 1, .queued = 1, .most = 4, .finished = 17, .cancelled = 3, .device_seconds = 12.34};
  EXPECT_THAT(StatsText(stats, "here", false),
              HasSubstr("tunings: 2 of 4 run, 1 of them in the background, 1 wait for a device; 17 finished, 0 failed, "
                        "3 cancelled, 0 refused"));
  EXPECT_THAT(StatsText(stats, "here", false), HasSubstr("busy for 12.3 s"));
  EXPECT_THAT(ToJson(stats).text(), HasSubstr("\"in_background\": 1"));
}

TEST(TunePage, ShowsClocksAndEnergyOrWhyThereIsNone) {
  Tuned tuned{.winner = 0,
              .measurements = {{.label = "one", .microseconds = {2, 2}, .median = 2}, {.label = "two", .microseconds = {3}, .median = 3}}};
  EXPECT_THAT(MakeTunePage(tuned), Not(HasSubstr("Clock and energy")));
  tuned.measurements[0].compute_mhz = {1755, 1980};
  tuned.measurements[0].energy = LaunchEnergy{.joules = 0.0125, .watts = 640, .microseconds = 19.5, .launches = 6000};
  const std::string page = MakeTunePage(tuned);
  EXPECT_THAT(page, HasSubstr("Clock and energy"));
  EXPECT_THAT(page, HasSubstr("1755–1980"));
  EXPECT_THAT(page, HasSubstr("12.50"));
  EXPECT_THAT(page, HasSubstr("640.00"));
  tuned.energy_problem = "no <counter>";
  EXPECT_THAT(MakeTunePage(tuned), HasSubstr("Energy: no &lt;counter&gt;."));
}

}  // namespace
}  // namespace kiln::cli
