// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/run.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "clients/cpp/client_impl.h"
#include "clients/cpp/convert.h"

namespace kiln {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

// Time besides the run itself: kilnd waits a minute for its tensors to arrive, and another for its outputs to be read (--run-transfer).
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

// What is sent: the bytes of the tensors, those that overlap as one.
class Storages {
 public:
  explicit Storages(const RunRequest& request) {
    for (std::size_t i = 0; i < request.arguments.size(); ++i) {
      if (const auto* tensor = std::get_if<HostTensor>(&request.arguments[i])) Add(i, tensor->bytes);
    }
  }

  // How argument `index` is described: its own bytes where it is the first of its storage.
  void Describe(std::size_t index, const HostTensor& tensor, v1::RunTensor& described) const {
    const Storage& storage = Of(index);
    described.set_offset(tensor.offset + static_cast<std::uint64_t>(tensor.bytes.data() - storage.bytes.data()));
    if (storage.arguments.front() == index) {
      described.set_bytes(storage.bytes.size());
    } else {
      described.set_storage(static_cast<std::uint32_t>(storage.arguments.front()) + 1);
    }
  }

  // The bytes that are sent with argument `index`; none if they are sent with another argument.
  std::span<std::byte> SentWith(std::size_t index) const {
    const Storage& storage = Of(index);
    return storage.arguments.front() == index ? storage.bytes : std::span<std::byte>();
  }

  std::span<std::byte> BytesOf(std::size_t index) const { return Of(index).bytes; }

 private:
  struct Storage {
    std::span<std::byte> bytes;
    std::vector<std::size_t> arguments;  // in order
  };

  const Storage& Of(std::size_t index) const {
    return *std::ranges::find_if(storages_, [&](const Storage& s) { return std::ranges::binary_search(s.arguments, index); });
  }

  void Add(std::size_t index, std::span<std::byte> bytes) {
    Storage all{bytes, {index}};
    for (auto other = storages_.begin(); other != storages_.end();) {
      const auto begin = std::max(all.bytes.data(), other->bytes.data(), std::less<>());
      const auto end = std::min(all.bytes.data() + all.bytes.size(), other->bytes.data() + other->bytes.size(), std::less<>());
      if (!std::less<>()(begin, end)) {
        ++other;
        continue;
      }
      const auto first = std::min(all.bytes.data(), other->bytes.data(), std::less<>());
      const auto last = std::max(all.bytes.data() + all.bytes.size(), other->bytes.data() + other->bytes.size(), std::less<>());
      all.bytes = {first, last};
      all.arguments.insert(all.arguments.end(), other->arguments.begin(), other->arguments.end());
      other = storages_.erase(other);
    }
    std::ranges::sort(all.arguments);
    storages_.push_back(std::move(all));
  }

  std::vector<Storage> storages_;
};

v1::RunStart ToStart(const RunRequest& request, const Storages& storages) {
  v1::RunStart start;
  if (request.key.empty()) {
    *start.mutable_program() = ToProto(request.program);
  } else {
    start.set_key(request.key);
  }
  start.set_device(request.device);
  for (std::size_t i = 0; i < request.arguments.size(); ++i) {
    const HostArgument& argument = request.arguments[i];
    v1::RunArgument& to = *start.add_arguments();
    if (const auto* integer = std::get_if<std::int64_t>(&argument)) to.set_integer(*integer);
    if (const auto* real = std::get_if<double>(&argument)) to.set_real(*real);
    const auto* tensor = std::get_if<HostTensor>(&argument);
    if (tensor == nullptr) continue;
    v1::RunTensor& described = *to.mutable_tensor();
    described.set_dtype(static_cast<v1::DType>(tensor->dtype));
    described.mutable_shape()->Assign(tensor->shape.begin(), tensor->shape.end());
    described.mutable_strides()->Assign(tensor->strides.begin(), tensor->strides.end());
    storages.Describe(i, *tensor, described);
  }
  v1::RunOptions& options = *start.mutable_options();
  options.set_check(request.check);
  options.set_seed(request.seed);
  options.set_timeout_seconds(request.timeout_seconds);
  options.set_repeat(request.repeat);
  return start;
}

// As kilnd compiles it: for the device, where it names no target. Of a device that kilnd does not tell of, the target stays open.
v1::CompileRequest ProgramOf(const RunRequest& request, Client& client) {
  v1::CompileRequest program = ToProto(request.program);
  if (program.target().empty() && request.device.starts_with("emu:")) program.set_target(request.device);
  if (!program.target().empty()) return program;
  const auto known = client.Capabilities();
  if (!known) return program;
  for (const RemoteDevice& device : known->devices) {
    if (device.name == request.device) program.set_target(device.target);
  }
  return program;
}

RunStatement FromProto(const v1::RunStatement& s) { return {s.number(), s.text(), s.file(), s.line()}; }

RunResult FromProto(const v1::RunResult& r) {
  RunResult out{.key = r.key(), .target = r.target(), .device = r.device(), .finished = r.finished()};
  for (const v1::RunFault& f : r.faults()) {
    out.faults.push_back({f.kind(),
                          f.name(),
                          f.message(),
                          FromProto(f.statement()),
                          FromProto(f.other()),
                          {f.block().begin(), f.block().end()},
                          f.thread(),
                          f.buffer(),
                          f.address(),
                          f.element()});
  }
  for (const v1::RunOutput& o : r.outputs()) {
    out.outputs.push_back({o.param(), o.name(), static_cast<DType>(o.tensor().dtype()), {o.tensor().shape().begin(), o.tensor().shape().end()}, {}});
  }
  out.microseconds.assign(r.microseconds().begin(), r.microseconds().end());
  out.origin = static_cast<Origin>(r.origin());
  for (const v1::Timing& timing : r.timings()) out.timings.push_back({timing.stage(), timing.milliseconds()});
  return out;
}

using Stream = grpc::ClientReaderWriter<v1::RunRequest, v1::RunReply>;

// False when the daemon takes no more; its status says why.
bool SendAll(Stream& stream, const RunRequest& request, const Storages& storages) {
  v1::RunRequest message;
  *message.mutable_start() = ToStart(request, storages);
  if (!stream.Write(message)) return false;
  for (std::size_t i = 0; i < request.arguments.size(); ++i) {
    if (!std::holds_alternative<HostTensor>(request.arguments[i])) continue;
    const std::span<std::byte> bytes = storages.SentWith(i);
    for (std::size_t at = 0; at < bytes.size(); at += kPiece) {
      const auto piece = bytes.subspan(at, std::min(kPiece, bytes.size() - at));
      message.set_data(piece.data(), piece.size());
      if (!stream.Write(message)) return false;
    }
  }
  return true;
}

// `argument`: as in RunOutput.
bool IsTensor(const RunRequest& request, std::uint32_t argument) {
  return argument != 0 && argument <= request.arguments.size() && std::holds_alternative<HostTensor>(request.arguments[argument - 1]);
}

// The outputs' bytes, each where its argument lies in this process.
void TakeOutputs(const RunRequest& request, const Storages& storages, const v1::RunResult& result, std::string_view data, RunResult& out) {
  std::size_t at = 0;
  std::vector<std::string_view> came;  // with each output
  for (std::size_t i = 0; i < out.outputs.size(); ++i) {
    const v1::RunOutput& output = result.outputs(static_cast<int>(i));
    const std::uint32_t storage = output.tensor().storage(), argument = output.argument();
    came.push_back(storage == 0   ? data.substr(std::min(at, data.size()), output.tensor().bytes())
                   : storage <= i ? came[storage - 1]
                                  : std::string_view());
    if (storage == 0) at += came.back().size();
    if (!IsTensor(request, argument)) {
      out.outputs[i].bytes = came.back();
      continue;
    }
    const std::span<std::byte> all = storages.BytesOf(argument - 1), own = std::get<HostTensor>(request.arguments[argument - 1]).bytes;
    if (storage == 0 && !all.empty()) std::memcpy(all.data(), came.back().data(), std::min(all.size(), came.back().size()));
    const auto first = static_cast<std::size_t>(own.data() - all.data());
    out.outputs[i].bytes = came.back().substr(std::min(first, came.back().size()), own.size());
  }
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
  if (!impl_->recorder.active() || !request.key.empty()) return impl_->Run(request);
  return impl_->recorder.Around(ProgramOf(request, *this), [&] { return impl_->Run(request); });
}

Client::Result<RunResult> Client::Impl::Run(const RunRequest& request) const {
  const Storages storages(request);
  v1::RunResult result;
  std::string data;
  auto ran = Try(
      [&](grpc::ClientContext& context) {
        const auto stream = stub->Run(&context);
        if (SendAll(*stream, request, storages)) stream->WritesDone();
        result.Clear();
        data.clear();
        for (v1::RunReply reply; stream->Read(&reply);) {
          if (reply.has_result()) result.Swap(reply.mutable_result());
          data += reply.data();
        }
        return stream->Finish();
      },
      {.trace_parent = request.program.trace_parent, .at_least = LeastTime(request)});
  const bool had_own = request.timeout_seconds > 0 && LeastTime(request) >= options.timeout;
  if (!ran) return std::unexpected(ExplainRun(std::move(ran.error()), had_own));
  RunResult out = FromProto(result);
  TakeOutputs(request, storages, result, data, out);
  return out;
}

}  // namespace kiln
