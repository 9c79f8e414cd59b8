// SPDX-License-Identifier: Apache-2.0
//
// For the client's tests only.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include "cache/testing.h"
#include "clients/cpp/client.h"
#include "kiln/v1/service.grpc.pb.h"

namespace kiln::testing {

using cache::testing::TemporaryDirectory;

// A service of this process, at a socket of its own.
class Served {
 public:
  explicit Served(v1::Kiln::Service& service) : address_("unix:" + (folder_ / "kiln.sock").string()) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address_, grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    server_ = builder.BuildAndStart();
  }

  bool listens() const { return server_ != nullptr; }
  const std::string& address() const { return address_; }

 private:
  const TemporaryDirectory folder_;
  const std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

// Clients of a service of this process.
template <class Service>
class ServedTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(served_.listens()) << served_.address(); }

  Client Connect(std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
    return *Client::Connect({.address = served_.address(), .timeout = timeout});
  }

  const TemporaryDirectory folder_;
  Service service_;
  Served served_{service_};
};

}  // namespace kiln::testing
