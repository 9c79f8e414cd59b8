// SPDX-License-Identifier: Apache-2.0
//
// What emulator_test.py drives: one job a line on standard input, its answer as a line of JSON on standard output.
//   MODULE TARGET key=value … TENSOR …     TARGET: of the emulator, or cuda:ARCH, whose PTX tests/ptx runs
//                                          keys: seed, seeds (how many, from that one), check, threads, mutant (one of `mutants` ways to weaken the
//                                          synchronisation), lost (one of `writes` to memory, left out), fast, wgmma, alignment
//   TENSOR: dtype:FILE:3x4[:strides][@byte of the first element], a file that is read and written back; strides as 8x1.
//   Tensors of one file share its bytes.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <set>
#include <sstream>

#include "compiler/emulator/mutate.h"
#include "compiler/emulator/names.h"
#include "ir/codec/decode.h"
#include "tests/emulator/jobs/emulate.h"

namespace kiln::emulator::testing {
namespace {

using Clock = std::chrono::steady_clock;

std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<int64_t> Numbers(const std::string& text) {
  std::vector<int64_t> numbers;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, 'x');) numbers.push_back(std::atoll(part.c_str()));
  return numbers;
}

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else if (uint8_t(c) >= 32) {
      out += c;
    }
  }
  return out + "\"";
}

struct File {
  std::string path;
  std::vector<std::byte> bytes;
};

struct Job {
  std::string module, target;
  std::map<std::string, uint64_t> keys;
  std::vector<std::string> tensors;
  uint64_t Get(const char* key, uint64_t otherwise) const {
    const auto it = keys.find(key);
    return it == keys.end() ? otherwise : it->second;
  }
};

Job ParseJob(const std::string& line) {
  std::stringstream stream(line);
  Job job;
  stream >> job.module >> job.target;
  for (std::string word; stream >> word;) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      job.tensors.push_back(word);
    } else {
      job.keys[word.substr(0, equals)] = std::strtoull(word.c_str() + equals + 1, nullptr, 10);
    }
  }
  return job;
}

// `files`: those of the tensors before, which it adds to; they do not move.
TensorArg ParseTensor(std::string text, std::deque<File>& files) {
  TensorArg tensor;
  if (const size_t at = text.find('@'); at != std::string::npos) {
    tensor.first = std::strtoull(text.c_str() + at + 1, nullptr, 10);
    text.resize(at);
  }
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ':');) parts.push_back(part);
  const auto* info = runtime::FindDType(parts.at(0));
  if (info == nullptr) throw std::runtime_error("no dtype " + parts[0]);
  tensor.dtype = info->dtype;
  auto file = std::ranges::find(files, parts.at(1), &File::path);
  if (file == files.end()) {
    const std::string data = ReadFile(parts[1]);
    const auto* bytes = reinterpret_cast<const std::byte*>(data.data());
    files.push_back({parts[1], {bytes, bytes + data.size()}});
    file = files.end() - 1;
  }
  tensor.bytes = &file->bytes;
  if (parts.size() > 2) tensor.shape = Numbers(parts[2]);
  if (parts.size() > 3) tensor.strides = Numbers(parts[3]);
  return tensor;
}

class Server {
 public:
  std::string Answer(const std::string& line) {
    const Job job = ParseJob(line);
    const auto start = Clock::now();
    const auto program = Find(job);
    if (!program) return "{\"error\": " + Quoted(program.error()) + "}";
    const auto compiled = Clock::now();
    std::deque<File> files;
    std::vector<TensorArg> tensors;
    for (const std::string& tensor : job.tensors) tensors.push_back(ParseTensor(tensor, files));
    const auto loaded = Clock::now();
    const std::clock_t busy = std::clock();
    const auto report = RunSeeds(**program, tensors, files, job);
    if (!report) return "{\"error\": " + Quoted(report.error()) + "}";
    const auto ran = Clock::now();
    cpu_ms_ = double(std::clock() - busy) * 1000 / CLOCKS_PER_SEC;
    for (const File& file : files) {
      std::ofstream(file.path, std::ios::binary).write(reinterpret_cast<const char*>(file.bytes.data()), std::streamsize(file.bytes.size()));
    }
    return Json(*report, compiled - start, ran - loaded);
  }

 private:
  // Each seed on the same data; the files keep the last one's results.
  std::expected<Report, std::string> RunSeeds(Emulated& program, std::span<const TensorArg> tensors, std::deque<File>& files, const Job& job) {
    const std::deque<File> given = files;
    Report all{.findings = {}, .finished = true};
    std::set<std::string> results;
    for (uint64_t i = 0; i < job.Get("seeds", 1); ++i) {
      for (size_t f = 0; f < files.size(); ++f) std::ranges::copy(given[f].bytes, files[f].bytes.begin());
      auto report = program.Run(tensors, {.seed = job.Get("seed", 0) + i, .threads = uint32_t(job.Get("threads", 2))});
      if (!report) return report;
      all.finished &= report->finished;
      std::ranges::move(report->findings, std::back_inserter(all.findings));
      const std::vector<std::byte>& bytes = files.back().bytes;
      if (job.Get("seeds", 1) > 1) results.emplace(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    different_ = results.size();
    return all;
  }

  std::expected<Emulated*, std::string> Find(const Job& job) {
    const bool check = job.Get("check", 0) != 0;
    const std::string key = job.module + " " + job.target + " " + std::to_string(job.Get("fast", 0)) + std::to_string(job.Get("wgmma", 1)) +
                            std::to_string(job.Get("fast_accumulation", 0)) + " " + std::to_string(job.Get("alignment", 0)) + " " +
                            std::to_string(job.Get("stream_k", 0));
    auto artifact = artifacts_.find(key);
    if (artifact == artifacts_.end()) {
      v1::CompileOptions options;
      options.set_fast_math(job.Get("fast", 0) != 0);
      options.set_disable_wgmma(job.Get("wgmma", 1) == 0);
      options.set_fast_accumulation(job.Get("fast_accumulation", 0) != 0);
      options.set_pointer_alignment(uint32_t(job.Get("alignment", 0)));
      options.set_stream_k(v1::StreamK(job.Get("stream_k", v1::STREAM_K_AUTO)));
      auto compiled = CompileFor(job.target, ReadFile(job.module), options);
      if (!compiled) return std::unexpected(compiled.error());
      artifact = artifacts_.emplace(key, std::move(*compiled)).first;
    }
    v1::Artifact code = artifact->second;
    names_ = NamesOfFile(job.module);
    decisions_.clear();
    for (const v1::Decision& decision : code.report().decisions()) decisions_ += (decisions_.empty() ? "" : ", ") + Quoted(decision.decision());
    if (code.kind() == v1::EMULATOR) {
      Count(code.code());
    } else {
      CountInPtx(code.code());
    }
    const std::string loaded =
        key + (check ? " check " : " ") + std::to_string(job.Get("mutant", ~uint64_t{0})) + " " + std::to_string(job.Get("lost", ~uint64_t{0}));
    if (loaded == loaded_) return program_.get();
    mutated_.clear();
    if (job.keys.contains("mutant") || job.keys.contains("lost")) {
      const Mutant mutant =
          job.keys.contains("lost") ? LoseWrite(code.code(), uint32_t(job.Get("lost", 0))) : MakeMutant(code.code(), uint32_t(job.Get("mutant", 0)));
      code.set_code(mutant.code);
      mutated_ = mutant.what;
      if (mutant.statement < names_.statements.size()) mutated_ += " of " + names_.statements[mutant.statement].Place();
    }
    auto program = Emulated::Load(code, check);
    if (!program) return std::unexpected(program.error());
    program_ = std::move(*program);
    loaded_ = loaded;
    return program_.get();
  }

  void Count(const std::string& bitcode) {
    mutants_ = CountMutants(bitcode);
    writes_ = CountWrites(bitcode);
    wgmma_ = CountCalls(bitcode, "kiln_emu_wgmma_step");
    tensor_loads_ = CountCalls(bitcode, "kiln_emu_tensor_load");
    remote_arrivals_ = CountCalls(bitcode, "kiln_emu_phase_arrive_at");
    flags_ = CountCalls(bitcode, "kiln_emu_raise_flag");
  }

  void CountInPtx(const std::string& ptx) {
    const auto count = [&](std::string_view name) {
      uint32_t found = 0;
      for (size_t at = ptx.find(name); at != std::string::npos; at = ptx.find(name, at + 1)) ++found;
      return found;
    };
    mutants_ = writes_ = 0;
    wgmma_ = count("wgmma.mma_async.");
    tensor_loads_ = count(".global.mbarrier::complete_tx::bytes");
    remote_arrivals_ = count("mbarrier.arrive.shared::cluster.") + count("mbarrier.arrive.release.cluster.shared::cluster.");
    flags_ = count("st.release.gpu.global.u32");
  }

  static Names NamesOfFile(const std::string& module) {
    ir::Diagnostics diagnostics;
    const auto decoded = ir::DecodeModule(ReadFile(module), diagnostics);
    return decoded ? NamesOf(*decoded) : Names{};
  }

  std::string Json(const Report& report, Clock::duration compile, Clock::duration run) const {
    const auto ms = [](Clock::duration d) { return std::to_string(std::chrono::duration<double, std::milli>(d).count()); };
    std::string out = std::string("{\"finished\": ") + (report.finished ? "true" : "false") + ", \"compile_ms\": " + ms(compile) +
                      ", \"run_ms\": " + ms(run) + ", \"cpu_ms\": " + std::to_string(cpu_ms_) + ", \"different\": " + std::to_string(different_) +
                      ", \"wgmma\": " + std::to_string(wgmma_) + ", \"tensor_loads\": " + std::to_string(tensor_loads_) +
                      ", \"remote_arrivals\": " + std::to_string(remote_arrivals_) + ", \"flags\": " + std::to_string(flags_) +
                      ", \"mutants\": " + std::to_string(mutants_) + ", \"writes\": " + std::to_string(writes_) +
                      ", \"mutated\": " + Quoted(mutated_) + ", \"decisions\": [" + decisions_ + "], \"findings\": [";
    for (const Finding& finding : report.findings) {
      if (&finding != report.findings.data()) out += ", ";
      out += "{\"kind\": " + Quoted(Name(finding.kind)) + ", \"message\": " + Quoted(Describe(finding, names_)) +
             ", \"buffer\": " + Quoted(ElementOf(finding, names_).buffer) + ", \"element\": " + std::to_string(ElementOf(finding, names_).number) +
             ", \"address\": " + std::to_string(finding.place.address) + ", \"statement\": " + std::to_string(finding.location) +
             ", \"other\": " + std::to_string(finding.other_location) + "}";
    }
    return out + "]}";
  }

  std::map<std::string, v1::Artifact> artifacts_;
  std::string loaded_, mutated_;
  std::string decisions_;  // of the report, as JSON
  std::unique_ptr<Emulated> program_;
  Names names_;
  uint32_t mutants_ = 0, writes_ = 0;
  uint32_t wgmma_ = 0, tensor_loads_ = 0, remote_arrivals_ = 0, flags_ = 0;  // calls of these instructions
  size_t different_ = 0;                                                     // results of the seeds of one job
  double cpu_ms_ = 0;                                                        // of all threads while it ran
};

}  // namespace
}  // namespace kiln::emulator::testing

int main() {
  kiln::emulator::testing::Server server;
  for (std::string line; std::getline(std::cin, line);) {
    std::string answer;
    try {
      answer = server.Answer(line);
    } catch (const std::exception& problem) {
      answer = std::string("{\"error\": \"") + problem.what() + "\"}";
    }
    std::cout << answer << std::endl;
  }
}
