// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "clients/runtime/sensors/sensor.h"

namespace kiln::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class NvmlTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("KILN_FAKE_DRIVER_NVML_BROKEN");
    ::unsetenv("KILN_FAKE_DRIVER_NO_ENERGY");
  }
  SensorPlaces places_{.nvml = KILN_FAKE_NVML};
};

TEST_F(NvmlTest, TellsWhatTheGpuDoes) {
  const auto sensor = OpenSensor(DriverKind::kCuda, "0000:0B:00.0", places_);
  ASSERT_TRUE(sensor) << sensor.error();
  const GpuState state = (*sensor)->Read();
  EXPECT_EQ(state.clocks.compute_mhz, 1701u);
  EXPECT_EQ(state.clocks.memory_mhz, 2601u);
  EXPECT_EQ(state.most.compute_mhz, 1980u);
  EXPECT_EQ(state.celsius, 41);
  EXPECT_EQ(state.watts, 200);
  EXPECT_EQ(state.watts_limit, 700);
  EXPECT_EQ(state.memory_used_bytes, 1u << 28);
  EXPECT_EQ(state.busy_percent, 37u);
  EXPECT_GT(state.joules.value_or(0), 0);
  ASSERT_TRUE(state.processes);
  ASSERT_EQ(state.processes->size(), 20u) << "all, though there were more than room for at first";
  EXPECT_EQ((*state.processes)[0].memory_bytes, 1u << 20);
  EXPECT_FALSE((*state.processes)[1].memory_bytes) << "the driver does not tell it";
}

TEST_F(NvmlTest, AMachineWithoutItSaysSo) {
  places_.nvml = "libkiln-no-such-nvml.so.1";
  const auto sensor = OpenSensor(DriverKind::kCuda, "0000:0A:00.0", places_);
  ASSERT_FALSE(sensor);
  EXPECT_THAT(sensor.error(), HasSubstr("NVML is not here: libkiln-no-such-nvml.so.1"));
}

TEST_F(NvmlTest, SaysWhyItDoesNotWork) {
  EXPECT_THAT(OpenSensor(DriverKind::kCuda, "0000:0C:00.0", places_).error(), HasSubstr("0000:0C:00.0: Not Found"));
  EXPECT_THAT(OpenSensor(DriverKind::kCuda, "", places_).error(), HasSubstr("where on the bus"));
  ::setenv("KILN_FAKE_DRIVER_NVML_BROKEN", "1", 1);
  EXPECT_THAT(OpenSensor(DriverKind::kCuda, "0000:0A:00.0", places_).error(), HasSubstr("Driver Not Loaded"));
}

TEST_F(NvmlTest, WhatALibraryLacksIsAbsent) {
  const auto symbol = places_.loader.symbol;
  places_.loader.symbol = [symbol](void* library, const char* name) {
    const bool lacks = std::strcmp(name, "nvmlDeviceGetTotalEnergyConsumption") == 0 || std::strcmp(name, "nvmlDeviceGetClockInfo") == 0;
    return lacks ? nullptr : symbol(library, name);
  };
  const auto sensor = OpenSensor(DriverKind::kCuda, "0000:0A:00.0", places_);
  ASSERT_TRUE(sensor) << sensor.error();
  EXPECT_FALSE((*sensor)->Clocks().compute_mhz);
  EXPECT_FALSE((*sensor)->Read().joules);
  EXPECT_THAT((*sensor)->Millijoules().error(), HasSubstr("no counter of energy"));
  places_.loader.symbol = [symbol](void* library, const char* name) {
    return std::strcmp(name, "nvmlInit_v2") == 0 ? nullptr : symbol(library, name);
  };
  EXPECT_THAT(OpenSensor(DriverKind::kCuda, "0000:0A:00.0", places_).error(), HasSubstr("lacks nvmlInit_v2"));
}

TEST_F(NvmlTest, AGpuWithoutTheCounterSaysSo) {
  ::setenv("KILN_FAKE_DRIVER_NO_ENERGY", "1", 1);
  const auto sensor = OpenSensor(DriverKind::kCuda, "0000:0A:00.0", places_);
  ASSERT_TRUE(sensor);
  EXPECT_THAT((*sensor)->Millijoules().error(), HasSubstr("Not Supported"));
  EXPECT_FALSE((*sensor)->Read().joules);
}

class AmdTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "kiln-sensors-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    places_.pci = folder_ / "pci";
    places_.kfd = folder_ / "kfd";
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const fs::path& file, const std::string& text) {
    fs::create_directories((folder_ / file).parent_path());
    std::ofstream(folder_ / file) << text << "\n";
  }

  fs::path folder_;
  SensorPlaces places_;
};

TEST_F(AmdTest, TheKernelsFilesTellWhatTheyHave) {
  Write("pci/0000:c3:00.0/hwmon/hwmon4/temp1_input", "51000");
  Write("pci/0000:c3:00.0/hwmon/hwmon4/power1_average", "213000000");
  Write("pci/0000:c3:00.0/hwmon/hwmon4/freq1_input", "1700000000");
  Write("pci/0000:c3:00.0/mem_info_vram_used", "4096");
  Write("kfd/topology/nodes/0/properties", "location_id 0");
  Write("kfd/topology/nodes/1/properties", "simd_count 304\nlocation_id 49920");  // 0xc3 << 8
  Write("kfd/topology/nodes/1/gpu_id", "777");
  Write("kfd/proc/4242/vram_777", "1024");
  Write("kfd/proc/4243/vram_778", "1024");  // of another GPU
  const auto sensor = OpenSensor(DriverKind::kHip, "0000:C3:00.0", places_);
  ASSERT_TRUE(sensor) << sensor.error();
  const GpuState state = (*sensor)->Read();
  EXPECT_EQ(state.celsius, 51);
  EXPECT_EQ(state.watts, 213);
  EXPECT_EQ(state.clocks.compute_mhz, 1700u);
  EXPECT_FALSE(state.clocks.memory_mhz);
  EXPECT_EQ(state.memory_used_bytes, 4096u);
  EXPECT_FALSE(state.busy_percent);
  ASSERT_TRUE(state.processes);
  ASSERT_EQ(state.processes->size(), 1u);
  EXPECT_EQ(state.processes->front().pid, 4242u);
  EXPECT_EQ(state.processes->front().memory_bytes, 1024u);
  EXPECT_THAT((*sensor)->Millijoules().error(), HasSubstr("tells no energy"));
}

TEST_F(AmdTest, AGpuOfWhichTheKernelTellsNothingSaysSo) {
  EXPECT_THAT(OpenSensor(DriverKind::kHip, "0000:c3:00.0", places_).error(), HasSubstr("tells nothing of the GPU"));
}

}  // namespace
}  // namespace kiln::runtime
