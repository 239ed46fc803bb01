#include "commands/dashboard/page.h"

#include "commands/dashboard/access.h"
#include "hrm/base/error.h"
#include "hrm/dashboard_page.h"

namespace hrm::dashboard {
namespace {

std::string with(std::string page, const std::string& head, const std::string& data) {
  const auto replace = [&](const std::string& mark, const std::string& text) {
    const size_t at = page.find(mark);
    require(at != page.npos, ExitCode::unexpected, "the page has no place for ", mark);
    page.replace(at, mark.size(), text);
  };
  replace("<!--head-->", head);
  replace("<!--data-->", data);
  return page;
}

// Inside of a script element only "</script" and "<!--" mean something; without "<" there is neither.
std::string harmless_json(const std::string& json) {
  std::string out;
  out.reserve(json.size() + json.size() / 16);
  for (const char c : json) {
    switch (c) {
      case '<':
        out += "\\u003c";
        break;
      case '>':
        out += "\\u003e";
        break;
      case '&':
        out += "\\u0026";
        break;
      default:
        out += c;
    }
  }
  return out;
}

}  // namespace

const char* const kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

const std::string& style_file() {
  static const std::string text = kPageStyle;
  return text;
}

const std::string& script_file() {
  static const std::string text = std::string(kPageChart) + kPageScript;
  return text;
}

std::string served_page() {
  return with(kPageIndex, "<link rel=\"stylesheet\" href=\"style.css\">\n<script src=\"page.js\" defer></script>", "");
}

std::string exported_page(const std::string& data) {
  const std::string nonce = new_token();
  return with(
      kPageIndex,
      cat("<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'nonce-", nonce,
          "'; style-src 'nonce-", nonce, "'; img-src data:; base-uri 'none'; form-action 'none'\">\n<style nonce=\"",
          nonce, "\">\n", style_file(), "</style>"),
      cat("<script type=\"application/json\" id=\"exported\">", harmless_json(data), "</script>\n<script nonce=\"",
          nonce, "\">\n", script_file(), "</script>"));
}

}  // namespace hrm::dashboard
