// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string_view>
#include <utility>

#include "clients/cpp/client_impl.h"
#include "clients/cpp/convert.h"

namespace kiln {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

// Beside the run itself: its tensors there and back, for each of which kilnd waits a minute (--run-transfer).
constexpr double kTransferSeconds = 120;

// A run's own time is no part of the connection's timeout.
std::chrono::milliseconds LeastTime(const RunRequest& request) {
  if (!(request.timeout_seconds > 0)) return std::chrono::milliseconds::min();
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::min(request.timeout_seconds, 1e6) + kTransferSeconds) * 1000);
}

Error ExplainRun(Error error, bool had_own) {
  if (error.code != ErrorCode::kDeadline) return error;
  error.message = "the run, with its transfers and what it waited for, had not ended in the time given; give ";
  error.message += had_own ? "it a longer limit of its own (RunRequest::timeout_seconds, --run-limit)"
                           : "the connection a longer timeout (ConnectOptions::timeout, --timeout), or the run a limit of its own, which may be "
                             "longer than that (RunRequest::timeout_seconds, --run-limit)";
  return error;
}

v1::RunStart ToStart(const RunRequest& request) {
  v1::RunStart start;
  if (request.key.empty()) {
    *start.mutable_program() = ToProto(request.program);
  } else {
    start.set_key(request.key);
  }
  start.set_device(request.device);
  for (const HostArgument& argument : request.arguments) {
    v1::RunArgument& to = *start.add_arguments();
    if (const auto* integer = std::get_if<std::int64_t>(&argument)) to.set_integer(*integer);
    if (const auto* real = std::get_if<double>(&argument)) to.set_real(*real);
    const auto* tensor = std::get_if<HostTensor>(&argument);
    if (tensor == nullptr) continue;
    v1::RunTensor& described = *to.mutable_tensor();
    described.set_dtype(static_cast<v1::DType>(tensor->dtype));
    described.mutable_shape()->Assign(tensor->shape.begin(), tensor->shape.end());
    described.mutable_strides()->Assign(tensor->strides.begin(), tensor->strides.end());
    described.set_offset(tensor->offset);
    described.set_bytes(tensor->bytes.size());
  }
  v1::RunOptions& options = *start.mutable_options();
  options.set_check(request.check);
  options.set_seed(request.seed);
  options.set_timeout_seconds(request.timeout_seconds);
  options.set_repeat(request.repeat);
  return start;
}

RunStatement FromProto(const v1::RunStatement& s) { return {s.number(), s.text(), s.file(), s.line()}; }

RunResult FromProto(const v1::RunResult& r) {
  RunResult out{.key = r.key(), .target = r.target(), .device = r.device(), .finished = r.finished()};
  for (const v1::RunFault& f : r.faults()) {
    out.faults.push_back({f.kind(), f.name(), f.message(), FromProto(f.statement()), FromProto(f.other()),
                          {f.block().begin(), f.block().end()}, f.thread(), f.buffer(), f.address(), f.element()});
  }
  for (const v1::RunOutput& o : r.outputs()) {
    out.outputs.push_back({o.param(), o.name(), static_cast<DType>(o.tensor().dtype()),
                           {o.tensor().shape().begin(), o.tensor().shape().end()}, {}});
  }
  out.microseconds.assign(r.microseconds().begin(), r.microseconds().end());
  out.origin = static_cast<Origin>(r.origin());
  for (const v1::Timing& timing : r.timings()) out.timings.push_back({timing.stage(), timing.milliseconds()});
  return out;
}

using Stream = grpc::ClientReaderWriter<v1::RunRequest, v1::RunReply>;

// False when the daemon takes no more; its status says why.
bool SendAll(Stream& stream, const RunRequest& request) {
  v1::RunRequest message;
  *message.mutable_start() = ToStart(request);
  if (!stream.Write(message)) return false;
  for (const HostArgument& argument : request.arguments) {
    const auto* tensor = std::get_if<HostTensor>(&argument);
    for (std::size_t at = 0; tensor != nullptr && at < tensor->bytes.size(); at += kPiece) {
      const auto piece = tensor->bytes.subspan(at, std::min(kPiece, tensor->bytes.size() - at));
      message.set_data(piece.data(), piece.size());
      if (!stream.Write(message)) return false;
    }
  }
  return true;
}

// `argument`: as in RunOutput.
void CopyBack(const RunRequest& request, std::uint32_t argument, std::string_view bytes) {
  if (argument == 0 || argument > request.arguments.size()) return;
  const auto* given = std::get_if<HostTensor>(&request.arguments[argument - 1]);
  if (given != nullptr) std::memcpy(given->bytes.data(), bytes.data(), std::min(given->bytes.size(), bytes.size()));
}

}  // namespace

std::string Describe(const RunFault& fault) {
  std::string text = fault.kind + ": " + fault.message;
  const auto add = [&](const char* word, const RunStatement& s) {
    const std::string place = s.line == 0 ? "" : (s.file.empty() ? "line " : s.file + ":") + std::to_string(s.line) + ": ";
    text += std::string("\n  ") + word + " " + place + (s.text.empty() ? "statement " + std::to_string(s.number) : s.text);
  };
  if (fault.block.size() == 3) {
    text += "\n  in thread " + std::to_string(fault.thread) + " of block (" + std::to_string(fault.block[0]) + ", " + std::to_string(fault.block[1]) +
            ", " + std::to_string(fault.block[2]) + ")";
  }
  if (fault.statement.number != 0) add("at", fault.statement);
  if (fault.other.number == fault.statement.number) {
    if (fault.other.number != 0) text += "\n  and the same statement";
  } else if (fault.other.number != 0) {
    add("and", fault.other);
  }
  return text;
}

Client::Result<RunResult> Client::Run(const RunRequest& request) {
  v1::RunResult result;
  std::string data;
  auto ran = impl_->Try(
      [&](grpc::ClientContext& context) {
        const auto stream = impl_->stub->Run(&context);
        if (SendAll(*stream, request)) stream->WritesDone();
        result.Clear();
        data.clear();
        for (v1::RunReply reply; stream->Read(&reply);) {
          if (reply.has_result()) result.Swap(reply.mutable_result());
          data += reply.data();
        }
        return stream->Finish();
      },
      {.trace_parent = request.program.trace_parent, .at_least = LeastTime(request)});
  const bool had_own = request.timeout_seconds > 0 && LeastTime(request) >= impl_->options.timeout;
  if (!ran) return std::unexpected(ExplainRun(std::move(ran.error()), had_own));
  RunResult out = FromProto(result);
  std::size_t at = 0;
  for (std::size_t i = 0; i < out.outputs.size(); ++i) {
    out.outputs[i].bytes = data.substr(std::min(at, data.size()), result.outputs(static_cast<int>(i)).tensor().bytes());
    at += out.outputs[i].bytes.size();
    CopyBack(request, result.outputs(static_cast<int>(i)).argument(), out.outputs[i].bytes);
  }
  return out;
}

}  // namespace kiln
