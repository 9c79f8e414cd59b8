// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "clients/runtime/device.h"

namespace kiln::runtime {
namespace {

using ::testing::HasSubstr;

TEST(Driver, AnAbsentDriverIsExplained) {
  std::vector<std::string> asked;
  Loader loader{.open = [&](const std::string& name) -> std::expected<void*, std::string> {
                  asked.push_back(name);
                  return std::unexpected(name + ": cannot open shared object file");
                },
                .symbol = [](void*, const char*) -> void* { return nullptr; }};
  auto driver = Driver::Open(DriverKind::kCuda, loader);
  ASSERT_FALSE(driver);
  EXPECT_EQ(asked.front(), "libcuda.so.1");
  EXPECT_EQ(driver.error().kind, Error::Kind::kDriver);
  EXPECT_EQ(driver.error().name, "");
  EXPECT_THAT(driver.error().message, HasSubstr("libcuda.so.1: cannot open shared object file"));
  EXPECT_THAT(driver.error().message, HasSubstr("install NVIDIA's driver"));
}

TEST(Driver, MissingSymbolsAreNamed) {
  Loader loader = Loader::System();
  const auto symbol = loader.symbol;
  loader.symbol = [&](void* library, const char* name) {
    return std::strcmp(name, "cuEventQuery") == 0 || std::strcmp(name, "cuLaunchKernelEx") == 0 ? nullptr : symbol(library, name);
  };
  auto driver = Driver::Open(DriverKind::kCuda, loader, KILN_FAKE_DRIVER);
  ASSERT_FALSE(driver);
  EXPECT_THAT(driver.error().message, HasSubstr("lacks cuEventQuery:"));  // and not the one that may be missing
}

TEST(Driver, ErrorsCarryTheDriversNameAndAHint) {
  auto driver = Driver::Open(DriverKind::kCuda, Loader::System(), KILN_FAKE_DRIVER);
  ASSERT_TRUE(driver) << driver.error().message;
  EXPECT_TRUE((*driver)->Check(0, "nothing"));
  const Error known = (*driver)->MakeError(2, "allocate 10 bytes");
  EXPECT_EQ(known.name, "CUDA_ERROR_OUT_OF_MEMORY");
  EXPECT_EQ(known.operation, "allocate 10 bytes");
  EXPECT_EQ(known.message, "allocate 10 bytes: CUDA_ERROR_OUT_OF_MEMORY; free device memory or use smaller tensors");
  EXPECT_EQ((*driver)->MakeError(12345, "x").name, "cuda error 12345");
}

TEST(Driver, DevicesAreListed) {
  auto cuda = Driver::Open(DriverKind::kCuda, Loader::System(), KILN_FAKE_DRIVER);
  auto devices = ListDevices(**cuda);
  ASSERT_TRUE(devices) << devices.error().message;
  ASSERT_EQ(devices->size(), 2u);
  EXPECT_EQ((*devices)[1].index, 1);
  EXPECT_EQ((*devices)[0].arch, "cuda:sm_90a");
  EXPECT_EQ((*devices)[0].driver_version, "13.0");
  EXPECT_EQ((*devices)[0].memory_bytes, uint64_t(1) << 30);
  auto hip = Driver::Open(DriverKind::kHip, Loader::System(), KILN_FAKE_DRIVER);
  ASSERT_TRUE(hip) << hip.error().message;
  auto amd = ListDevices(**hip);
  ASSERT_TRUE(amd) << amd.error().message;
  EXPECT_EQ((*amd)[0].arch, "hip:gfx942");
  EXPECT_EQ((*amd)[0].driver_version, "6.3");
}

TEST(Driver, TargetsRunWhereTheyCan) {
  const DeviceInfo hopper{.kind = DriverKind::kCuda, .index = 0, .name = "H", .arch = "cuda:sm_90a"};
  const DeviceInfo ada{.kind = DriverKind::kCuda, .index = 0, .name = "L", .arch = "cuda:sm_89"};
  const DeviceInfo mi300{.kind = DriverKind::kHip, .index = 0, .name = "MI", .arch = "hip:gfx942"};
  for (const char* target : {"cuda:sm_80", "cuda:sm_90", "cuda:sm_90a"}) EXPECT_TRUE(CheckTarget(target, hopper)) << target;
  for (const char* target : {"cuda:sm_100a", "cuda:sm_120", "hip:gfx942", "cuda:", "junk"}) EXPECT_FALSE(CheckTarget(target, hopper)) << target;
  EXPECT_FALSE(CheckTarget("cuda:sm_90a", ada));
  EXPECT_TRUE(CheckTarget("cuda:sm_75", ada));
  EXPECT_TRUE(CheckTarget("hip:gfx942", mi300));
  EXPECT_FALSE(CheckTarget("hip:gfx90a", mi300));
  EXPECT_THAT(CheckTarget("cuda:sm_90a", ada).error().message, HasSubstr("compile it for cuda:sm_89"));
}

}  // namespace
}  // namespace kiln::runtime
