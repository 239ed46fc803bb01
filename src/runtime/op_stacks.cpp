#include "op_stacks.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hrm/base/error.h"
#include "hrm/base/file.h"

namespace hrm {
namespace {

using Clock = std::chrono::steady_clock;

// Return addresses of one stack, innermost first, and the operations open at that point, outermost first.
struct StackKey {
  std::vector<const void*> frames;
  std::vector<std::string> operations;
  auto operator<=>(const StackKey&) const = default;
};

// Of the recording that is on; one at a time.
std::mutex g_mutex;
std::map<StackKey, int64_t> g_nanoseconds;

struct OpenOperation : at::ObserverContext {
  StackKey key;
  Clock::time_point start;
  int64_t inner_ns = 0;
  OpenOperation* outer = nullptr;
};
thread_local OpenOperation* t_innermost = nullptr;

std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction& function) {
  auto open = std::make_unique<OpenOperation>();
  std::array<void*, 128> frames;
  const int count = backtrace(frames.data(), static_cast<int>(frames.size()));
  open->key.frames.assign(frames.begin(), frames.begin() + count);
  if (t_innermost) open->key.operations = t_innermost->key.operations;
  open->key.operations.emplace_back(function.name());
  open->outer = t_innermost;
  t_innermost = open.get();
  open->start = Clock::now();
  return open;
}

void leave(const at::RecordFunction&, at::ObserverContext* context) {
  auto* open = static_cast<OpenOperation*>(context);
  const int64_t took = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - open->start).count();
  t_innermost = open->outer;
  if (open->outer) open->outer->inner_ns += took;
  const std::scoped_lock lock(g_mutex);
  g_nanoseconds[std::move(open->key)] += std::max<int64_t>(took - open->inner_ns, 0);
}

// The functions of this program by address. Its symbols are not in the dynamic table, so dladdr does not know them. The
// file's symbol table has them unless it was stripped.
class ProgramSymbols {
 public:
  ProgramSymbols() : file_("/proc/self/exe", ExitCode::environment) {
    const std::span<const std::byte> bytes = file_.bytes();
    if (bytes.size() < sizeof(Elf64_Ehdr)) return;
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes.data());
    const auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes.data() + header->e_shoff);
    if (header->e_shoff + uint64_t{header->e_shnum} * sizeof(Elf64_Shdr) > bytes.size()) return;
    for (const Elf64_Shdr& section : std::span(sections, header->e_shnum)) {
      if (section.sh_type != SHT_SYMTAB || section.sh_link >= header->e_shnum) continue;
      const auto* names = reinterpret_cast<const char*>(bytes.data() + sections[section.sh_link].sh_offset);
      const auto* symbols = reinterpret_cast<const Elf64_Sym*>(bytes.data() + section.sh_offset);
      for (const Elf64_Sym& symbol : std::span(symbols, section.sh_size / sizeof(Elf64_Sym))) {
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || symbol.st_value == 0) continue;
        functions_[symbol.st_value] = {symbol.st_size, names + symbol.st_name};
      }
    }
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&enter), &info) != 0) {
      base_ = reinterpret_cast<uintptr_t>(info.dli_fbase);
    }
    position_independent_ = header->e_type == ET_DYN;
  }

  // Name of the function of this program that the return address lies in; empty for one of a library.
  std::string name(const void* address) const {
    const uintptr_t at = reinterpret_cast<uintptr_t>(address) - 1 - (position_independent_ ? base_ : 0);
    auto next = functions_.upper_bound(at);
    if (next == functions_.begin()) return "";
    const auto& [start, function] = *std::prev(next);
    if (at >= start + function.size) return "";
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> plain(
        abi::__cxa_demangle(function.name, nullptr, nullptr, &status), &std::free);
    std::string text = status == 0 ? plain.get() : function.name;
    // The name alone, without the anonymous namespaces in it and without the list of parameters.
    constexpr std::string_view kAnonymous = "(anonymous namespace)::";
    for (size_t at = text.find(kAnonymous); at != std::string::npos; at = text.find(kAnonymous)) {
      text.erase(at, kAnonymous.size());
    }
    text.resize(std::min(text.size(), text.find('(')));
    return text;
  }

 private:
  struct Function {
    uint64_t size;
    const char* name;
  };
  MappedFile file_;
  std::map<uintptr_t, Function> functions_;
  uintptr_t base_ = 0;
  bool position_independent_ = true;
};

}  // namespace

OpStacks::OpStacks() {
  {
    const std::scoped_lock lock(g_mutex);
    g_nanoseconds.clear();
  }
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(enter, leave)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE}));
}

OpStacks::~OpStacks() {
  stop();
}

void OpStacks::stop() {
  if (handle_ != at::INVALID_CALLBACK_HANDLE) at::removeCallback(handle_);
  handle_ = at::INVALID_CALLBACK_HANDLE;
}

void OpStacks::finish(const std::filesystem::path& file) {
  stop();
  const ProgramSymbols symbols;
  std::unordered_map<const void*, std::string> names;
  std::map<std::string, int64_t> lines;
  const std::scoped_lock lock(g_mutex);
  for (const auto& [key, nanoseconds] : g_nanoseconds) {
    std::string line;
    for (auto frame = key.frames.rbegin(); frame != key.frames.rend(); ++frame) {
      auto found = names.find(*frame);
      if (found == names.end()) found = names.emplace(*frame, symbols.name(*frame)).first;
      // The dispatcher's own layers between a function and the operation that it calls say nothing.
      const std::string& name = found->second;
      if (name.empty() || name.find("c10::") != std::string::npos || name.find("torch::") != std::string::npos)
        continue;
      if (name.find("hrm::") == std::string::npos && name != "main") continue;
      if (name == "hrm::enter") continue;
      line += name + ";";
    }
    for (const std::string& operation : key.operations) line += operation + ";";
    line.back() = ' ';
    lines[line] += nanoseconds;
  }
  std::vector<std::pair<int64_t, std::string>> sorted;
  for (const auto& [line, nanoseconds] : lines) sorted.emplace_back(nanoseconds, line);
  std::sort(sorted.rbegin(), sorted.rend());
  std::string text;
  for (const auto& [nanoseconds, line] : sorted) text += line + std::to_string((nanoseconds + 500) / 1000) + "\n";
  write_text_atomic(file, text);
}

}  // namespace hrm
