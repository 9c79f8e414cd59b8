// SPDX-License-Identifier: Apache-2.0
//
// Devices of the fake driver, and its records.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>

#include "clients/runtime/device.h"
#include "clients/runtime/testing/fake_driver.h"

namespace kiln::runtime {

// The library that the runtime opened, asked for its records.
template <class Function>
Function* Fake(const char* name) {
  static void* library = dlopen(KILN_FAKE_DRIVER, RTLD_NOW);
  return reinterpret_cast<Function*>(dlsym(library, name));
}
inline uint32_t LaunchCount() { return Fake<uint32_t()>("kiln_fake_launch_count")(); }
inline const KilnFakeLaunch& LaunchAt(uint32_t i) { return *Fake<const KilnFakeLaunch*(uint32_t)>("kiln_fake_launch")(i); }
inline void FailNext(const char* symbol, int status) { Fake<void(const char*, int)>("kiln_fake_fail")(symbol, status); }

inline std::shared_ptr<Device> OpenFakeDevice(DriverKind kind, int index = 0, const Loader& loader = Loader::System()) {
  auto driver = Driver::Open(kind, loader, KILN_FAKE_DRIVER);
  EXPECT_TRUE(driver) << driver.error().message;
  auto device = Device::Open(*driver, index);
  EXPECT_TRUE(device) << device.error().message;
  return *device;
}

}  // namespace kiln::runtime
