// SPDX-License-Identifier: Apache-2.0
#include "clients/manifest/manifest.h"

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "cache/digest.h"
#include "compiler/key.h"
#include "compiler/target/target.h"
#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/text/print.h"

namespace kiln {
namespace {

constexpr std::string_view kFormat = "kiln manifest 1";
constexpr std::string_view kAnyFormat = "kiln manifest ";
constexpr std::string_view kRequest = "request", kRefused = "refused";
constexpr std::string_view kIndent = "  ";

std::expected<ir::Module, ir::Failed> DecodeProgram(std::string_view bytes) {
  ir::Diagnostics ignored;
  return ir::DecodeModule(bytes, ignored);
}

// Equal for two requests if one result answers both.
std::string Identity(const v1::CompileRequest& request) {
  const auto module = DecodeProgram(request.module());
  if (!module) return request.SerializeAsString();
  const auto known = target::Find(request.target());
  return std::string(cache::Digest{compiler::ComputeKey(*module, known ? (*known)->name : request.target(), request.options())}.view());
}

std::string LineOf(const v1::ManifestEntry& entry, bool with_module) {
  v1::CompileRequest request = entry.request();
  if (!with_module) request.clear_module();
  google::protobuf::TextFormat::Printer printer;
  printer.SetSingleLineMode(true);
  std::string fields;
  printer.PrintToString(request, &fields);
  while (fields.ends_with(' ')) fields.pop_back();
  return fmt::format("{}{}{}\n", entry.refused() ? kRefused : kRequest, fields.empty() ? "" : " ", fields);
}

// A program that no compiler can read, or whose text none can, stands in the line of its request, as a string.
std::string TextOf(const v1::ManifestEntry& entry) {
  const auto module = DecodeProgram(entry.request().module());
  const std::string printed = module ? ir::Print(*module) : "";
  if (!module || !DecodeProgram(printed)) return LineOf(entry, true);
  std::string text = LineOf(entry, false);
  std::istringstream program(printed);
  for (std::string line; std::getline(program, line);) text += line.empty() ? "\n" : fmt::format("{}{}\n", kIndent, line);
  return text;
}

// Keeps the first problem alone.
class FirstError final : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, int, const std::string& message) override {
    if (text_.empty()) text_ = message;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

class TextReader {
 public:
  explicit TextReader(std::string_view text) : rest_(text) {}

  std::expected<v1::Manifest, std::string> Read() {
    NextLine();  // the format
    for (bool more = NextLine(); more;) {
      if (line_.empty() || line_.starts_with('#')) {
        more = NextLine();
        continue;
      }
      if (auto read = ReadEntry(more); !read) return std::unexpected(std::move(read.error()));
    }
    return MakeManifest(entries_);
  }

 private:
  bool NextLine() {
    if (rest_.empty()) return false;
    const std::size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    ++number_;
    return true;
  }

  // A request's line, and those of its program.
  std::expected<void, std::string> ReadEntry(bool& more) {
    v1::ManifestEntry entry;
    const std::size_t first = number_;
    const std::string_view word = line_.substr(0, line_.find(' '));
    if (word != kRequest && word != kRefused) {
      return std::unexpected(
          fmt::format("line {}: \"{}\" begins no request; a line says request or refused, or is a program's and indented", number_, word));
    }
    entry.set_refused(word == kRefused);
    FirstError errors;
    google::protobuf::TextFormat::Parser parser;
    parser.RecordErrorsTo(&errors);
    if (!parser.ParseFromString(std::string(line_.substr(word.size())), entry.mutable_request())) {
      return std::unexpected(fmt::format("line {}: {}", number_, errors.text()));
    }
    // The text form lets any bytes through, the binary one would not read them back.
    if (v1::CompileRequest again; !again.ParseFromString(entry.request().SerializeAsString())) {
      return std::unexpected(fmt::format("line {}: a name in the request is no UTF-8", number_));
    }
    std::string program;
    while ((more = NextLine()) && (line_.empty() || line_.starts_with(kIndent))) {
      program.append(line_.substr(std::min(kIndent.size(), line_.size()))).push_back('\n');
    }
    program.erase(program.find_last_not_of('\n') + 1);
    if (program.empty() == entry.request().module().empty()) {
      return std::unexpected(fmt::format("line {}: a request has one program, below its line or in it", first));
    }
    if (!program.empty()) {
      ir::Diagnostics problems;
      const auto module = ir::DecodeModule(program, problems);
      if (!module) {
        const ir::Diagnostic& problem = problems.all().front();
        return std::unexpected(fmt::format("line {}: {}", first + problem.loc.line, problem.message));
      }
      entry.mutable_request()->set_module(ir::EncodeBytes(*module));
    }
    *entry.mutable_request() = AsRecorded(std::move(*entry.mutable_request()));
    entries_.push_back(std::move(entry));
    return {};
  }

  std::string_view rest_, line_;
  std::size_t number_ = 0;  // of line_, from 1
  std::vector<v1::ManifestEntry> entries_;
};

std::unexpected<std::string> OtherFormat() {
  return std::unexpected(fmt::format("a newer client wrote this, with more than this one knows of in \"{}\"", kFormat));
}

}  // namespace

ManifestForm FormOfManifest(std::string_view bytes) {
  if (bytes.starts_with(kAnyFormat)) return ManifestForm::kText;
  // The tag of field 1 and the length of what follows.
  return bytes.starts_with('\n') && bytes.substr(std::min<std::size_t>(bytes.size(), 2)).starts_with(kAnyFormat) ? ManifestForm::kBinary
                                                                                                                 : ManifestForm::kNone;
}

std::expected<v1::Manifest, std::string> ReadManifest(std::string_view bytes) {
  const ManifestForm form = FormOfManifest(bytes);
  if (form == ManifestForm::kText) {
    if (bytes.substr(0, bytes.find('\n')) != kFormat) return OtherFormat();
    return TextReader(bytes).Read();
  }
  v1::Manifest manifest;
  if (form == ManifestForm::kNone || !manifest.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return std::unexpected(form == ManifestForm::kNone ? "this is no manifest; `kiln record` writes one" : "this manifest is cut off or damaged");
  }
  v1::Manifest understood = manifest;
  understood.DiscardUnknownFields();
  if (manifest.format() != kFormat || understood.ByteSizeLong() != manifest.ByteSizeLong()) return OtherFormat();
  std::vector<v1::ManifestEntry> entries(manifest.entries().begin(), manifest.entries().end());
  for (v1::ManifestEntry& entry : entries) *entry.mutable_request() = AsRecorded(std::move(*entry.mutable_request()));
  return MakeManifest(entries);
}

std::string WriteManifest(const v1::Manifest& manifest, ManifestForm form) {
  if (form != ManifestForm::kText) return manifest.SerializeAsString();
  std::vector<std::string> texts;
  for (const v1::ManifestEntry& entry : manifest.entries()) texts.push_back(TextOf(entry));
  std::ranges::sort(texts);  // a program that is read from its text may have other bytes than before
  return fmt::format("{}\n\n{}", kFormat, fmt::join(texts, "\n"));
}

v1::CompileRequest AsRecorded(v1::CompileRequest request) {
  v1::CompileRequest out;
  out.mutable_module()->swap(*request.mutable_module());
  out.mutable_target()->swap(*request.mutable_target());
  if (request.options().ByteSizeLong() > 0) out.mutable_options()->Swap(request.mutable_options());
  return out;
}

v1::Manifest MakeManifest(const std::vector<v1::ManifestEntry>& entries) {
  struct One {
    std::string bytes;  // of the request, the least of those that are the same
    bool refused = false;
  };
  std::map<std::string, One> by_identity;
  for (const v1::ManifestEntry& entry : entries) {
    std::string bytes = entry.request().SerializeAsString();
    auto [at, fresh] = by_identity.try_emplace(Identity(entry.request()), One{bytes, entry.refused()});
    at->second.refused |= entry.refused();
    if (!fresh && bytes < at->second.bytes) at->second.bytes = std::move(bytes);
  }
  std::vector<One> sorted;
  for (auto& [identity, one] : by_identity) sorted.push_back(std::move(one));
  std::ranges::sort(sorted, {}, &One::bytes);
  v1::Manifest manifest;
  manifest.set_format(std::string(kFormat));
  for (const One& one : sorted) {
    v1::ManifestEntry& entry = *manifest.add_entries();
    entry.mutable_request()->ParseFromString(one.bytes);
    entry.set_refused(one.refused);
  }
  return manifest;
}

std::string ProgramName(std::string_view module) {
  const auto decoded = DecodeProgram(module);
  return decoded ? decoded->name : "";
}

}  // namespace kiln
