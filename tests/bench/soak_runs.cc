// SPDX-License-Identifier: Apache-2.0
//
// The soak's runs, all on the emulator.
#include <chrono>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "tests/bench/soak_client.h"

namespace kiln::bench {
namespace {

constexpr std::size_t kColumns = 16;
constexpr unsigned kRunPrograms = 20;  // that are run again and again

// Its output is twice the input and the number.
std::string Program(unsigned added) {
  return fmt::format(R"(kiln 1
func @double[%m](%A: global f32[%m, 16], %B: global f32[%m, 16]) outputs(1) {{
  kernel @main grid((%m + 15) // 16) threads 32 blocks(%bx) {{
    %t = alloc fragment f32[16, 16]
    copy %A[%bx * 16, 0; 16, 16] -> %t[0, 0; 16, 16]
    for parallel %i, %j in 16, 16 {{
      store %t[%i, %j] = %t[%i, %j] + %t[%i, %j] + {}.0
    }}
    copy %t[0, 0; 16, 16] -> %B[%bx * 16, 0; 16, 16]
  }}
}}
)",
                     added);
}

constexpr const char* kForever = R"(kiln 1
func @forever(%A: global f32[1, 16], %B: global f32[1, 16]) outputs(1) {
  kernel @main grid(1) threads 32 blocks(%bx) {
    while %A[0, 0] < 1.0 {
      store %B[0, 0] = %A[0, 0] + 1.0
    }
  }
}
)";

v1::RunRequest StartOf(std::size_t rows) {
  v1::RunRequest request;
  v1::RunStart& start = *request.mutable_start();
  start.set_device("emu:sm_80");
  v1::RunTensor& tensor = *start.add_arguments()->mutable_tensor();
  tensor.set_dtype(v1::F32);
  tensor.add_shape(static_cast<std::int64_t>(rows));
  tensor.add_shape(kColumns);
  tensor.set_bytes(rows * kColumns * sizeof(float));
  return request;
}

v1::RunRequest StartOf(const std::string& program, std::size_t rows) {
  v1::RunRequest request = StartOf(rows);
  request.mutable_start()->mutable_program()->set_module(program);
  return request;
}

std::vector<float> Counting(std::size_t rows) {
  std::vector<float> values(rows * kColumns);
  std::iota(values.begin(), values.end(), 0.0f);
  return values;
}

v1::RunRequest DataOf(std::size_t rows) {
  const std::vector<float> values = Counting(rows);
  v1::RunRequest request;
  request.set_data(values.data(), values.size() * sizeof(float));
  return request;
}

// The answer is read to its end.
template <class Stream>
void Read(Stream& stream, v1::RunResult& result, std::string& bytes) {
  for (v1::RunReply reply; stream.Read(&reply);) {
    if (reply.has_result()) result = reply.result();
    if (reply.part_case() == v1::RunReply::kData) bytes += reply.data();
  }
}

}  // namespace

SoakClient::Tensors SoakClient::RunNow(const v1::RunRequest& start, std::size_t rows) {
  Tensors answer;
  grpc::ClientContext context;
  Prepare(context);
  const auto stream = stub_->Run(&context);
  if (stream->Write(start)) stream->Write(DataOf(rows));
  stream->WritesDone();
  Read(*stream, answer.result, answer.bytes);
  answer.status = stream->Finish();
  return answer;
}

Wrong SoakClient::JudgeRun(const Tensors& answer, std::size_t rows, unsigned added) const {
  if (!answer.status.ok() || !role_.May(Scope::kRun)) return Judge(answer.status, Scope::kRun, {Code::OK});
  std::vector<float> expected = Counting(rows);
  for (float& value : expected) value = value + value + static_cast<float>(added);
  const bool whole = answer.result.finished() && answer.result.faults_size() == 0 && answer.result.outputs_size() == 1;
  const std::size_t size = expected.size() * sizeof(float);
  const bool right = answer.bytes.size() == size && std::memcmp(answer.bytes.data(), expected.data(), size) == 0;
  return whole && right ? "" : fmt::format("a run's {} bytes are not its result: {}", answer.bytes.size(), answer.result.ShortDebugString());
}

Wrong SoakClient::Run() {
  const std::size_t rows = 1 + Below(64);
  const unsigned added = Below(4) == 0 ? world_.fresh++ : Below(kRunPrograms);
  v1::RunRequest start = StartOf(Program(added), rows);
  start.mutable_start()->mutable_options()->set_check(Below(4) == 0);
  return JudgeRun(RunNow(start, rows), rows, added);
}

// Of what has run just before, and of what nobody has.
Wrong SoakClient::RunByKey() {
  const std::size_t rows = 1 + Below(64);
  const unsigned added = world_.fresh++;
  const Tensors first = RunNow(StartOf(Program(added), rows), rows);
  if (Wrong wrong = JudgeRun(first, rows, added); !wrong.empty() || !first.status.ok()) return wrong;
  v1::RunRequest start = StartOf(rows);
  start.mutable_start()->set_key(first.result.key());
  if (Wrong wrong = JudgeRun(RunNow(start, rows), rows, added); !wrong.empty()) return wrong;
  start.mutable_start()->set_key(RandomKey());
  return Judge(RunNow(start, rows).status, Scope::kRun, {Code::NOT_FOUND});
}

// While it runs, or while its tensors are still to come. Who may not run is told so.
Wrong SoakClient::RunAndCancel() {
  grpc::ClientContext context;
  Prepare(context);
  const auto stream = stub_->Run(&context);
  const bool sends_all = Below(2) == 0;
  if (stream->Write(StartOf(kForever, 1)) && sends_all) stream->Write(DataOf(1));
  if (sends_all) stream->WritesDone();
  if (role_.May(Scope::kRun)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(Below(100)));
    context.TryCancel();
  }
  v1::RunResult result;
  std::string bytes;
  Read(*stream, result, bytes);
  return Judge(stream->Finish(), Scope::kRun, {Code::CANCELLED});
}

Wrong SoakClient::RunTooLong() {
  v1::RunRequest start = StartOf(kForever, 1);
  start.mutable_start()->mutable_options()->set_timeout_seconds(0.1);
  const Tensors answer = RunNow(start, 1);
  if (!answer.status.ok() || !role_.May(Scope::kRun)) return Judge(answer.status, Scope::kRun, {Code::OK});
  const bool told = answer.result.faults_size() == 1 && answer.result.faults(0).kind() == "timeout" && !answer.result.finished();
  return told ? "" : "a run without an end ends with " + answer.result.ShortDebugString();
}

}  // namespace kiln::bench
