// SPDX-License-Identifier: Apache-2.0
//
// A Run as a client makes it, for tests.
#pragma once

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "server/testing/daemon_fixture.h"

namespace kiln::server::testing {

struct RunAnswer {
  grpc::Status status;
  v1::RunResult result;
  std::vector<std::string> outputs;
  milliseconds took{0};

  std::vector<float> Floats(std::size_t output = 0) const {
    std::vector<float> values(outputs.at(output).size() / sizeof(float));
    std::memcpy(values.data(), outputs[output].data(), outputs[output].size());
    return values;
  }
  std::string FaultKind() const { return result.faults_size() == 0 ? "" : result.faults(0).kind(); }
};

inline std::string BytesOf(const std::vector<float>& values) { return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)}; }

class RunClient {
 public:
  RunClient(std::string program, std::string device) {
    start_.mutable_program()->set_module(std::move(program));
    start_.set_device(std::move(device));
  }

  RunClient& Tensor(const std::vector<float>& values, std::vector<std::int64_t> shape, std::vector<std::int64_t> strides = {},
                    std::uint64_t offset = 0) {
    data_ += BytesOf(values);
    v1::RunTensor& tensor = *start_.add_arguments()->mutable_tensor();
    tensor.set_dtype(v1::F32);
    tensor.mutable_shape()->Assign(shape.begin(), shape.end());
    tensor.mutable_strides()->Assign(strides.begin(), strides.end());
    tensor.set_offset(offset);
    tensor.set_bytes(values.size() * sizeof(float));
    return *this;
  }
  RunClient& As(const std::string& secret) {
    secret_ = secret;
    return *this;
  }
  RunClient& Scalar(double value) {
    start_.add_arguments()->set_real(value);
    return *this;
  }

  v1::RunStart& start() { return start_; }
  const v1::RunStart& start() const { return start_; }
  v1::RunOptions& options() { return *start_.mutable_options(); }
  std::string& data() { return data_; }
  const std::string& data() const { return data_; }

  RunAnswer Run(Daemon& daemon, milliseconds deadline = std::chrono::seconds(60), std::size_t piece = 1 << 20) const {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    return Run(daemon, context, piece);
  }

  // As one who may cancel it.
  RunAnswer Run(Daemon& daemon, grpc::ClientContext& context, std::size_t piece = 1 << 20) const {
    RunAnswer answer;
    if (!secret_.empty()) context.AddMetadata("authorization", "Bearer " + secret_);
    const auto began = std::chrono::steady_clock::now();
    const auto stream = daemon.stub().Run(&context);
    v1::RunRequest request;
    *request.mutable_start() = start_;
    bool open = stream->Write(request);
    for (std::size_t at = 0; open && at < data_.size(); at += piece) {
      request.set_data(data_.substr(at, piece));
      open = stream->Write(request);
    }
    stream->WritesDone();
    std::string outputs;
    for (v1::RunReply reply; stream->Read(&reply);) {
      if (reply.has_result()) answer.result = reply.result();
      if (reply.part_case() == v1::RunReply::kData) outputs += reply.data();
    }
    answer.status = stream->Finish();
    std::size_t at = 0;
    for (const v1::RunOutput& output : answer.result.outputs()) {
      answer.outputs.push_back(outputs.substr(std::min(at, outputs.size()), output.tensor().bytes()));
      at += output.tensor().bytes();
    }
    answer.took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - began);
    return answer;
  }

 private:
  v1::RunStart start_;
  std::string data_;
  std::string secret_;  // a bearer token; empty: whoever owns the socket
};

}  // namespace kiln::server::testing
