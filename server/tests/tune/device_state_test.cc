// SPDX-License-Identifier: Apache-2.0
//
// What the GPUs do, as Stats tells it, and what of it a tuning records: with a fake driver and a fake NVML.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/testing/tune_client.h"

namespace kiln::server {
namespace {

using namespace testing;
using ::testing::HasSubstr;

class DeviceStateTest : public RunTest {
 protected:
  void TearDown() override {
    for (const char* name : {"LD_LIBRARY_PATH", "KILN_FAKE_DRIVER_NO_ENERGY", "KILN_FAKE_DRIVER_ENERGY_FALLS", "KILN_FAKE_DRIVER_NVML_BROKEN",
                             "KILN_FAKE_DRIVER_MODELS"})
      ::unsetenv(name);
    RunTest::TearDown();
  }
  // Once the GPUs are known.
  v1::StatsReply States() {
    v1::CapabilitiesReply known;
    {
      grpc::ClientContext context;
      EXPECT_TRUE(daemon_->stub().Capabilities(&context, {}, &known).ok());
    }
    grpc::ClientContext context;
    v1::StatsRequest request;
    request.set_device_states(true);
    v1::StatsReply reply;
    const grpc::Status status = daemon_->stub().Stats(&context, request, &reply);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return reply;
  }
  static const v1::DeviceStats* Find(const v1::StatsReply& stats, const std::string& name) {
    for (const v1::DeviceStats& device : stats.devices()) {
      if (device.name() == name) return &device;
    }
    return nullptr;
  }
  TuneAnswer TuneOnGpu(const std::vector<std::string>& programs, std::uint32_t energy) {
    TuneClient client(programs, "cuda:1");
    client.start().set_measure_on_emulator(false);
    client.start().set_energy_candidates(energy);
    return client.Run(*daemon_);
  }
};

TEST_F(DeviceStateTest, StatsTellsWhatEachGpuDoesWhereItIsAsked) {
  UseFakeNvml();
  Start();
  const v1::StatsReply stats = States();
  const v1::DeviceStats* first = Find(stats, "cuda:0");
  const v1::DeviceStats* second = Find(stats, "cuda:1");
  ASSERT_TRUE(first != nullptr && second != nullptr) << stats.ShortDebugString();
  EXPECT_EQ(first->state().problem(), "");
  EXPECT_EQ(first->state().compute_mhz(), 1700u);
  EXPECT_EQ(second->state().compute_mhz(), 1701u) << "each has its own place on the bus";
  EXPECT_EQ(second->state().watts(), 200);
  EXPECT_EQ(second->state().memory_used_bytes(), 1u << 28);
  EXPECT_TRUE(second->state().knows_processes());
  ASSERT_EQ(second->state().processes_size(), 20);
  EXPECT_FALSE(second->state().processes(0).name().empty()) << "the host tells of process 1";
  EXPECT_FALSE(second->state().processes(1).has_memory_bytes());
  EXPECT_FALSE(Find(stats, "emu")->has_state());
  const v1::StatsReply unasked = daemon_->Stats();
  for (const v1::DeviceStats& device : unasked.devices()) EXPECT_FALSE(device.has_state()) << "nobody asked for it";
  EXPECT_EQ(Find(States(), "cuda:0")->state().compute_mhz(), 1700u) << "asked again";
}

TEST_F(DeviceStateTest, AMachineWithoutNvmlSaysSo) {
  UseFakeDriver();
  Start();
  const v1::StatsReply stats = States();
  ASSERT_NE(Find(stats, "cuda:0"), nullptr);
  const v1::DeviceState& state = Find(stats, "cuda:0")->state();
  EXPECT_THAT(state.problem(), HasSubstr("NVML is not here"));
  EXPECT_FALSE(state.has_watts());
}

TEST_F(DeviceStateTest, ATuningRecordsClocksAndEnergy) {
  UseFakeNvml();
  Start();
  const TuneAnswer answer = TuneOnGpu({Scale(64), Scale(128), Scale(32)}, 1);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.record().energy_problem(), "");
  int known = 0;
  for (const v1::TuneMeasurement& said : answer.record().measurements()) {
    ASSERT_GT(said.compute_mhz_size(), 0) << said.problem();
    EXPECT_EQ(said.compute_mhz(0), 1701u);
    EXPECT_EQ(said.memory_mhz(0), 2601u);
    if (!said.has_energy()) continue;
    ++known;
    EXPECT_GT(said.energy().launches(), 0u);
    EXPECT_GT(said.energy().joules(), 0);
    EXPECT_NEAR(said.energy().joules(), said.energy().watts() * said.energy().microseconds() * 1e-6, said.energy().joules() * 1e-6);
    EXPECT_EQ(said.energy().compute_mhz(), 1701u);
  }
  EXPECT_EQ(known, 1);
}

TEST_F(DeviceStateTest, ACounterThatStepsBackCostsNobodyHisPlace) {
  UseFakeNvml();
  ::setenv("KILN_FAKE_DRIVER_ENERGY_FALLS", "1", 1);
  Start();
  const TuneAnswer answer = TuneOnGpu({Scale(64), Scale(128)}, 2);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.record().energy_problem(), HasSubstr("was reset"));
  for (const v1::TuneMeasurement& said : answer.record().measurements()) {
    EXPECT_FALSE(said.has_energy());
    EXPECT_NE(said.outcome(), v1::TUNE_FAULTED);
  }
}

TEST_F(DeviceStateTest, GpusOfOneModelMeasureTogether) {
  UseFakeNvml();
  Start();
  TuneClient client({Scale(64), Scale(128), Scale(32), Scale(16)}, "cuda:1");
  client.start().set_measure_on_emulator(false);
  client.start().set_devices(5);
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  ASSERT_EQ(answer.record().devices_size(), 2) << "there are no more";
  EXPECT_EQ(answer.record().devices(0).name(), "cuda:1");
  EXPECT_EQ(answer.record().devices(1).name(), "cuda:0");
  EXPECT_EQ(answer.record().measurements(static_cast<int>(answer.record().winner()) - 1).device(), 1u);
}

TEST_F(DeviceStateTest, GpusOfOtherModelsAreLeftAlone) {
  UseFakeNvml();
  ::setenv("KILN_FAKE_DRIVER_MODELS", "2", 1);
  Start();
  TuneClient client({Scale(64), Scale(128)}, "cuda:1");
  client.start().set_measure_on_emulator(false);
  client.start().set_devices(2);
  const TuneAnswer answer = client.Run(*daemon_);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_EQ(answer.record().devices_size(), 0);
  EXPECT_EQ(Find(daemon_->Stats(), "cuda:0")->busy_seconds(), 0);
}

TEST_F(DeviceStateTest, WhereThereIsNoCounterARecordSaysWhyAndIsFound) {
  UseFakeNvml();
  ::setenv("KILN_FAKE_DRIVER_NO_ENERGY", "1", 1);
  Start();
  const std::vector<std::string> programs = {Scale(64), Scale(128)};
  const TuneAnswer answer = TuneOnGpu(programs, 2);
  ASSERT_TRUE(answer.status.ok()) << answer.status.error_message();
  EXPECT_THAT(answer.record().energy_problem(), HasSubstr("Not Supported"));
  for (const v1::TuneMeasurement& said : answer.record().measurements()) EXPECT_FALSE(said.has_energy());
  EXPECT_EQ(TuneOnGpu(programs, 2).origin(), v1::MEMORY) << "no other would find more";
  EXPECT_EQ(TuneOnGpu(programs, 3).origin(), v1::COMPILED) << "more was asked for";
}

}  // namespace
}  // namespace kiln::server
