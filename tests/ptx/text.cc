// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/text.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <optional>
#include <utility>

#include "tests/ptx/instructions.h"

namespace kiln::ptx {
namespace {

bool StartsWord(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '$' || c == '%' || c == '.'; }
bool InWord(char c) { return StartsWord(c) || std::isdigit(static_cast<unsigned char>(c)) != 0 || c == ':'; }

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { Next(); }

  const std::string& token() const { return token_; }
  bool End() const { return token_.empty(); }
  bool Is(std::string_view text) const { return token_ == text; }
  std::string Take() {
    std::string taken = std::move(token_);
    Next();
    return taken;
  }
  bool Skip(std::string_view text) {
    if (!Is(text)) return false;
    Next();
    return true;
  }
  void Expect(std::string_view text) {
    if (!Skip(text)) throw Refusal("PTX: " + std::string(text) + " is expected before " + token_ + " in line " + std::to_string(Line()));
  }
  // Of a label, the word ends before its colon.
  bool IsLabel() {
    if (token_.size() < 2 || token_.back() != ':') return false;
    token_.pop_back();
    return true;
  }
  size_t Line() const { return size_t(std::count(text_.begin(), text_.begin() + ptrdiff_t(at_), '\n')) + 1; }
  size_t begin() const { return begin_; }
  // From there to here, in one line.
  std::string Since(size_t begin) const {
    std::string text(text_.substr(begin, begin_ - begin));
    std::ranges::replace_if(text, [](char c) { return c == '\n' || c == '\t'; }, ' ');
    return text;
  }

 private:
  void SkipBlanks() {
    while (at_ < text_.size()) {
      if (std::isspace(static_cast<unsigned char>(text_[at_])) != 0) {
        ++at_;
      } else if (text_.substr(at_).starts_with("//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (text_.substr(at_).starts_with("/*")) {
        at_ = std::min(text_.find("*/", at_), text_.size() - 2) + 2;
      } else {
        return;
      }
    }
  }
  void Next() {
    SkipBlanks();
    begin_ = at_;
    token_.clear();
    if (at_ >= text_.size()) return;
    const char c = text_[at_];
    size_t end = at_ + 1;
    if (c == '"') {
      end = std::min(text_.find('"', end), text_.size() - 1) + 1;
    } else if (StartsWord(c) || std::isdigit(static_cast<unsigned char>(c)) != 0) {
      while (end < text_.size() && InWord(text_[end])) ++end;
    }
    token_ = text_.substr(at_, end - at_);
    at_ = end;
  }

  std::string_view text_;
  size_t at_ = 0, begin_ = 0;
  std::string token_;
};

std::vector<std::string> Split(std::string_view name) {
  std::vector<std::string> words;
  while (true) {
    const size_t dot = name.find('.');
    words.emplace_back(name.substr(0, dot));
    if (dot == std::string_view::npos) return words;
    name.remove_prefix(dot + 1);
  }
}

std::optional<uint64_t> ParseNumber(std::string_view text) {
  int base = 10;
  if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'd' || text[1] == 'x' || text[1] == 'F' || text[1] == 'D')) {
    base = 16;
    text.remove_prefix(2);
  }
  if (text.ends_with('U')) text.remove_suffix(1);
  uint64_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (end.ec != std::errc() || end.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

// What a name stands for.
struct Symbol {
  enum class Kind { kRegister, kParam, kLocal, kShared, kGlobal } kind;
  uint8_t bits = 0;
  uint32_t number = 0;  // a register, or an offset
  uint64_t address = 0;
};
using Scope = std::map<std::string, Symbol>;

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) { scopes_.emplace_back(); }

  Module Run() {
    while (!lexer_.End()) TopLevel();
    if (dynamic_) Align(module_.shared_bytes, 1024);
    return std::move(module_);
  }

 private:
  static void Align(uint32_t& value, uint32_t to) { value = (value + to - 1) / to * to; }
  [[noreturn]] void Refuse(const std::string& what) const { throw Refusal("PTX: " + what + " in line " + std::to_string(lexer_.Line())); }

  void TopLevel() {
    const std::string word = lexer_.Take();
    if (word == ".version" || word == ".target" || word == ".address_size") {
      lexer_.Take();
      while (lexer_.Skip(",")) lexer_.Take();
      if (word == ".version" && !lexer_.End() && std::isdigit(static_cast<unsigned char>(lexer_.token()[0])) != 0) lexer_.Take();
    } else if (word == ".extern" || word == ".visible" || word == ".weak" || word == ".common" || word == ".noreturn") {
    } else if (word == ".shared" || word == ".global" || word == ".const") {
      Variable(word);
    } else if (word == ".entry" || word == ".func") {
      ParseFunction(word == ".entry");
    } else {
      Refuse("unknown directive " + word);
    }
  }

  // `.align 16 .b8 name[4] = {…}`, behind its space.
  void Variable(const std::string& space) {
    uint32_t align = 1;
    Type type;
    std::string name;
    while (name.empty()) {
      const std::string word = lexer_.Take();
      if (word == ".align") {
        align = uint32_t(*ParseNumber(lexer_.Take()));
      } else if (word[0] == '.') {
        const Type found = ParseType(std::string_view(word).substr(1));
        if (found.kind != 0) type = found;
      } else {
        name = word;
      }
    }
    bool dynamic = false;
    uint32_t count = Extent(dynamic);
    const uint32_t bytes = count * type.Bytes();
    align = std::max(align, type.Bytes());
    if (space == ".shared") {
      Align(module_.shared_bytes, dynamic ? 1024 : align);
      scopes_.back()[name] = {Symbol::Kind::kShared, 64, 0, kSharedBegin + module_.shared_bytes};
      module_.shared_bytes += bytes;
      dynamic_ |= dynamic;
    } else {
      std::vector<std::byte> initial = Initial(bytes, type.Bytes());
      module_.globals.push_back(std::make_unique<std::vector<std::byte>>(initial));
      module_.initial.push_back(std::move(initial));
      scopes_.back()[name] = {Symbol::Kind::kGlobal, 64, 0, reinterpret_cast<uint64_t>(module_.globals.back()->data())};
    }
    lexer_.Expect(";");
  }
  uint32_t Extent(bool& dynamic) {
    uint32_t count = 1;
    while (lexer_.Skip("[")) {
      if (lexer_.Is("]")) {
        dynamic = true;
        count = 0;
      } else {
        count *= uint32_t(*ParseNumber(lexer_.Take()));
      }
      lexer_.Expect("]");
    }
    return count;
  }
  std::vector<std::byte> Initial(uint32_t bytes, uint32_t each) {
    std::vector<std::byte> values(bytes);
    if (!lexer_.Skip("=")) return values;
    const bool list = lexer_.Skip("{");
    for (size_t at = 0; !lexer_.Is("}") && !lexer_.Is(";"); at += each) {
      const bool negative = lexer_.Skip("-");
      const auto number = ParseNumber(lexer_.Take());
      if (!number || at + each > bytes) Refuse("an initial value that is no number");
      const uint64_t value = negative ? -*number : *number;
      for (uint32_t b = 0; b < each; ++b) values[at + b] = std::byte(value >> (8 * b));
      lexer_.Skip(",");
    }
    if (list) lexer_.Expect("}");
    return values;
  }

  std::vector<Parameter> Params(Scope& scope) {
    std::vector<Parameter> params;
    if (!lexer_.Skip("(")) return params;
    while (!lexer_.Skip(")")) {
      uint32_t align = 1;
      Type type;
      std::string name;
      while (!lexer_.Is(",") && !lexer_.Is(")") && !lexer_.Is("[")) {
        const std::string word = lexer_.Take();
        if (word == ".align") {
          align = uint32_t(*ParseNumber(lexer_.Take()));
        } else if (word[0] == '.') {
          const Type found = ParseType(std::string_view(word).substr(1));
          if (found.kind != 0 && type.kind == 0) type = found;
        } else {
          name = word;
        }
      }
      bool dynamic = false;
      params.push_back(InFrame(scope, name, Extent(dynamic) * type.Bytes(), std::max(align, type.Bytes())));
      lexer_.Skip(",");
    }
    return params;
  }
  Parameter InFrame(Scope& scope, const std::string& name, uint32_t bytes, uint32_t align) {
    Align(function_->frame_bytes, align);
    const Parameter param{function_->frame_bytes, bytes};
    function_->frame_bytes += bytes;
    scope[name] = {Symbol::Kind::kParam, 64, param.offset, 0};
    return param;
  }

  void ParseFunction(bool entry) {
    auto function = std::make_unique<Function>();
    function_ = function.get();
    function_->entry = entry;
    labels_.clear();
    Scope scope;
    if (!entry && lexer_.Is("(")) function_->results = Params(scope);
    function_->name = lexer_.Take();
    function_->params = Params(scope);
    while (!lexer_.Is("{") && !lexer_.Is(";")) lexer_.Take();  // .reqntid 256, .minnctapersm 1, .noreturn
    if (lexer_.Skip(";")) return;                              // declared alone
    scopes_.push_back(std::move(scope));
    Body();
    scopes_.pop_back();
    ResolveBranches();
    module_.functions[function_->name] = std::move(function);
  }

  void ResolveBranches() {
    const auto resolve = [&](const std::string& label) {
      const auto target = labels_.find(label);
      if (target == labels_.end()) Refuse("branch to the unknown label " + label);
      return target->second;
    };
    for (const auto& [place, label] : branches_) {
      Instruction& branch = function_->code[place];
      const auto table = tables_.find(label);
      if (table == tables_.end()) {
        branch.target = resolve(label);
        continue;
      }
      for (const std::string& target : table->second) {
        Operand operand;
        operand.value = resolve(target);
        branch.operands[1].parts.push_back(operand);
      }
    }
    branches_.clear();
    tables_.clear();
  }

  void Body() {
    lexer_.Expect("{");
    scopes_.emplace_back();
    while (!lexer_.Skip("}")) {
      if (lexer_.End()) Refuse("a function without an end");
      if (lexer_.Is("{")) {
        Body();
      } else if (lexer_.IsLabel()) {
        label_ = lexer_.Take();
        labels_[label_] = uint32_t(function_->code.size());
      } else if (lexer_.token()[0] == '.') {
        Directive();
      } else {
        Statement();
      }
    }
    scopes_.pop_back();
  }

  void Directive() {
    const std::string word = lexer_.Take();
    if (word == ".reg") {
      Registers();
    } else if (word == ".local") {
      Local();
    } else if (word == ".param") {
      CallParam();
    } else if (word == ".shared") {
      Variable(word);
    } else if (word == ".pragma") {
      lexer_.Take();
      lexer_.Expect(";");
    } else if (word == ".branchtargets") {
      do {
        tables_[label_].push_back(lexer_.Take());
      } while (lexer_.Skip(","));
      lexer_.Expect(";");
    } else if (word == ".loc") {
      for (int i = 0; i < 3; ++i) lexer_.Take();
    } else {
      Refuse("unknown directive " + word);
    }
  }
  void Registers() {
    const Type type = ParseType(std::string_view(lexer_.Take()).substr(1));
    const auto bits = uint8_t(type.kind == 'p' ? 1 : type.bits * type.lanes);
    do {
      const std::string name = lexer_.Take();
      if (lexer_.Skip("<")) {
        const auto count = uint32_t(*ParseNumber(lexer_.Take()));
        for (uint32_t i = 0; i < count; ++i) scopes_.back()[name + std::to_string(i)] = {Symbol::Kind::kRegister, bits, function_->registers++};
        lexer_.Expect(">");
      } else {
        scopes_.back()[name] = {Symbol::Kind::kRegister, bits, function_->registers++};
      }
    } while (lexer_.Skip(","));
    lexer_.Expect(";");
  }
  void Local() {
    uint32_t align = 1;
    while (lexer_.token()[0] == '.') {
      if (lexer_.Take() == ".align") align = uint32_t(*ParseNumber(lexer_.Take()));
    }
    const std::string name = lexer_.Take();
    bool dynamic = false;
    Align(function_->local_bytes, align);
    scopes_.back()[name] = {Symbol::Kind::kLocal, 64, function_->local_bytes};
    function_->local_bytes += Extent(dynamic);
    lexer_.Expect(";");
  }
  void CallParam() {
    uint32_t align = 1;
    Type type;
    while (lexer_.token()[0] == '.') {
      const std::string word = lexer_.Take();
      if (word == ".align") {
        align = uint32_t(*ParseNumber(lexer_.Take()));
      } else {
        type = ParseType(std::string_view(word).substr(1));
      }
    }
    const std::string name = lexer_.Take();
    bool dynamic = false;
    const uint32_t count = Extent(dynamic);
    InFrame(scopes_.back(), name, count * type.Bytes(), std::max(align, type.Bytes()));
    lexer_.Expect(";");
  }

  const Symbol* Find(const std::string& name) const {
    for (size_t s = scopes_.size(); s-- > 0;)
      if (const auto it = scopes_[s].find(name); it != scopes_[s].end()) return &it->second;
    return nullptr;
  }

  void Statement() {
    const size_t begin = lexer_.begin();
    Instruction instruction;
    if (lexer_.Skip("@")) {
      instruction.guard_negated = lexer_.Skip("!");
      const Symbol* guard = Find(lexer_.Take());
      if (guard == nullptr) Refuse("an unknown predicate");
      instruction.guard = guard->number;
    }
    const std::string name = lexer_.Take();
    instruction.words = Split(name);
    for (const std::string& word : instruction.words) {
      const Type type = ParseType(word);
      if (type.kind == 0) continue;
      instruction.from = instruction.type;
      instruction.type = type;
    }
    while (!lexer_.Is(";")) {
      if (lexer_.End()) Refuse("an instruction without an end");
      instruction.operands.push_back(ParseOperand());
      if (!lexer_.Is(";") && !lexer_.Skip(",") && !lexer_.Skip("|")) Refuse("unexpected " + lexer_.token());
    }
    instruction.text = lexer_.Since(begin);
    lexer_.Expect(";");
    if (instruction.words[0] == "bra" || instruction.words[0] == "brx") {
      branches_.emplace_back(function_->code.size(), instruction.operands.back().name);
    }
    try {
      Decode(instruction);
    } catch (const std::exception& problem) {
      Refuse(problem.what());
    }
    function_->code.push_back(std::move(instruction));
  }

  Operand ParseOperand() {
    Operand operand;
    if (lexer_.Skip("[")) return Address();
    for (const auto& [open, close] : {std::pair("{", "}"), std::pair("(", ")")}) {
      if (!lexer_.Skip(open)) continue;
      operand.kind = Operand::Kind::kVector;
      while (!lexer_.Skip(close)) {
        operand.parts.push_back(ParseOperand());
        lexer_.Skip(",");
      }
      return operand;
    }
    operand.negated = lexer_.Skip("!");
    const bool negative = lexer_.Skip("-");
    const std::string word = lexer_.Take();
    if (const auto number = ParseNumber(word)) {
      operand.value = negative ? -*number : *number;
      return operand;
    }
    operand.name = word;
    const Symbol* symbol = Find(word);
    if (symbol == nullptr) {
      operand.kind = word[0] == '%' ? Operand::Kind::kSpecial : Operand::Kind::kName;
      return operand;
    }
    Resolve(*symbol, operand);
    if (symbol->kind == Symbol::Kind::kRegister) operand.kind = Operand::Kind::kRegister;
    return operand;
  }
  static void Resolve(const Symbol& symbol, Operand& operand) {
    operand.bits = symbol.bits;
    switch (symbol.kind) {
      case Symbol::Kind::kRegister: operand.reg = symbol.number; break;
      case Symbol::Kind::kParam: operand.frame = true, operand.value += symbol.number; break;
      case Symbol::Kind::kLocal: operand.local = true, operand.value += symbol.number; break;
      default: operand.value += symbol.address;
    }
  }
  // `[%rd1+4]`, `[name]`, `[%rd1, {%r1, %r2}]`, behind its bracket.
  Operand Address() {
    Operand address;
    address.kind = Operand::Kind::kAddress;
    while (!lexer_.Skip("]")) {
      if (lexer_.Skip("+")) continue;
      if (lexer_.Skip(",")) {
        address.parts.push_back(ParseOperand());
        continue;
      }
      const bool negative = lexer_.Skip("-");
      const std::string word = lexer_.Take();
      if (const auto number = ParseNumber(word)) {
        address.value += negative ? -*number : *number;
        continue;
      }
      const Symbol* symbol = Find(word);
      if (symbol == nullptr) Refuse("the unknown address " + word);
      Resolve(*symbol, address);
    }
    return address;
  }

  Lexer lexer_;
  Module module_;
  bool dynamic_ = false;
  Function* function_ = nullptr;
  std::vector<Scope> scopes_;
  std::map<std::string, uint32_t> labels_;
  std::string label_;                                       // the last one
  std::map<std::string, std::vector<std::string>> tables_;  // labels behind a label
  std::vector<std::pair<size_t, std::string>> branches_;    // instructions, and the label of each
};

}  // namespace

Type ParseType(std::string_view text) {
  static const std::map<std::string_view, Type> kTypes = {
      {"pred", {'p', 1}},   {"b8", {'b', 8}},   {"b16", {'b', 16}},  {"b32", {'b', 32}},      {"b64", {'b', 64}},
      {"b128", {'b', 128}}, {"u8", {'u', 8}},   {"u16", {'u', 16}},  {"u32", {'u', 32}},      {"u64", {'u', 64}},
      {"s8", {'s', 8}},     {"s16", {'s', 16}}, {"s32", {'s', 32}},  {"s64", {'s', 64}},      {"f16", {'f', 16}},
      {"f32", {'f', 32}},   {"f64", {'f', 64}}, {"bf16", {'B', 16}}, {"f16x2", {'f', 16, 2}}, {"bf16x2", {'B', 16, 2}},
      {"tf32", {'t', 32}},  {"e4m3", {'4', 8}}, {"e5m2", {'5', 8}},  {"e4m3x2", {'4', 8, 2}}, {"e5m2x2", {'5', 8, 2}}};
  const auto it = kTypes.find(text);
  return it == kTypes.end() ? Type{} : it->second;
}

Module Parse(std::string_view text) { return Parser(text).Run(); }

}  // namespace kiln::ptx
