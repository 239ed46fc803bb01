#include "hrm/formats/jinja.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "formats/format_testing.h"

namespace hrm {
namespace {

using Json = nlohmann::ordered_json;

constexpr JinjaOptions kDay = {.year = 2026, .month = 11, .day = 25};

JinjaTemplate parsed(const std::string& text) {
  return JinjaTemplate(text, "t.jinja");
}
std::string rendered(const std::string& text, const Json& variables = Json::object()) {
  return parsed(text).render(variables, kDay).text;
}
// Its refusal at parsing or rendering holds all parts.
void refused(const std::string& text, const std::vector<std::string>& parts, const Json& variables = Json::object()) {
  SCOPED_TRACE(text.substr(0, 200));
  expect_error([&] { rendered(text, variables); }, ExitCode::data, parts);
}

// What jinja2 3.1.6 gave in the environment of transformers 5.24: texts, spans of {% generation %} and refusals.
TEST(Jinja, EqualsTheLibraryOnSnippets) {
  const Json fixtures = Json::parse(read_text(fixture("formats/jinja_snippets.json"), ExitCode::data));
  for (const Json& snippet : fixtures["snippets"]) {
    const std::string text = snippet["template"];
    SCOPED_TRACE(text);
    if (snippet.contains("refused")) {
      refused(text, {"t.jinja, line 1: "}, fixtures["variables"]);
      continue;
    }
    const JinjaOutput output = parsed(text).render(fixtures["variables"], kDay);
    EXPECT_EQ(output.text, snippet["text"].get<std::string>());
    Json generated = Json::array();
    for (const auto& [begin, end] : output.generated) generated.push_back({begin, end});
    EXPECT_EQ(generated, snippet.value("generated", Json::array()));
  }
  EXPECT_GT(fixtures["snippets"].size(), 80U);
}

TEST(Jinja, NamesTheLineOfAFailure) {
  refused("a\nb\n{{ x.y }}", {"t.jinja, line 3: ", "'x' is undefined"});
  refused("{% for i in [1] %}\n\n{{ i +\n 'a' }}{% endfor %}", {"line 3: ", "between int and str"});
  refused("{% macro m() %}\n{{ 1 / 0 }}\n{% endmacro %}\n\n{{ m() }}", {"line 2: division by zero"});
  refused("\r\n\r\n{{ raise_exception('no system\x1b') }}", {"line 3: ", "refuses the conversation: no system\\x1B"});
  refused("{{ x }}\n{% if %}", {"line 2: expected an expression, found the end of the tag"});
  refused("{{ 'a", {"line 1: a text in quotes has no end"});
  refused("{% if x %}\n\n{{ 1 }}", {"expected {% endif %}, found the end of the template"});
  refused("a {{ 1\n\n", {"line 1: a tag {{ has no end }}"});
  expect_error([] { JinjaTemplate("\xff", "t.jinja"); }, ExitCode::data, {"t.jinja: is not UTF-8"});
  expect_error([] { JinjaTemplate("{{", "t.jinja", ExitCode::usage); }, ExitCode::usage, {"t.jinja, line 1"});
}

TEST(Jinja, NamesConstructsThatItLacks) {
  refused("\n{% include 'a' %}", {"line 2: the statement {% include %} is not supported"});
  for (const char* name : {"import", "extends", "from", "block", "do", "autoescape", "trans", "print"}) {
    refused(std::string("{% ") + name + " x %}", {std::string("the statement {% ") + name + " %} is not supported"});
  }
  refused("{{ x | xmlattr }}", {"line 1: the filter 'xmlattr' is not supported"});
  refused("{{ [1] | map('attr') | list }}", {"the filter 'attr' is not supported"});
  refused("{{ x is weird }}", {"the test 'is weird' is not supported"});
  refused("{% for x in y recursive %}{% endfor %}", {"recursive"});
  refused("{{ '{}'.format(1) }}", {"the method str.format is not supported"});
  refused("{{ '%s' % 1 }}", {"% is not supported"});
  refused("{{ cycler(1) }}", {"the function 'cycler' is not supported"});
  refused("{{ strftime_now('%Q') }}", {"%Q, which is not supported"});
}

// Nothing of the program, the process or the library can be reached.
TEST(Jinja, ReachesValuesAlone) {
  for (const char* text :
       {"{{ ''.__class__ }}", "{{ [].__class__.__base__ }}", "{{ range.__globals__ }}", "{{ namespace.__init__ }}",
        "{{ raise_exception.__closure__ }}", "{{ x.__dict__ }}", "{{ self.__init__ }}", "{{ messages.append(1) }}",
        "{{ x.update({}) }}", "{{ x.pop('a') }}", "{% set ns = namespace() %}{% set ns.__x = 1 %}",
        "{{ open('/etc/passwd') }}", "{{ lipsum.__globals__ }}", "{% import 'os' as os %}"}) {
    refused(text, {"t.jinja, line 1: "}, {{"x", {{"a", 1}}}, {"messages", Json::array()}});
  }
  EXPECT_EQ(rendered("{{ x['__class__'] is defined }}", {{"x", {{"a", 1}}}}), "False");
}

TEST(Jinja, EndsAtItsLimits) {
  const std::string steps = "more than 1000000 steps", size = "a text of more than 4.0 MiB", deep = "deep";
  const std::string grow =
      "{% set ns = namespace(x=1) %}{% for i in range(50) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
  refused("{% for a in range(9999) %}{% for b in range(9999) %}\n{{ 1 }}{% endfor %}{% endfor %}",
          {"line 1: it takes ", steps});
  refused(grow + "{{ ns.x == [ns.x] + [1] or ns.x|tojson }}", {steps});
  refused(grow + "{{ ns.x }}", {steps});
  refused("{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", {steps});
  refused("{{ [0] * 100000000 }}", {steps});
  refused("{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", {size});
  refused("{% for i in range(9999) %}{{ 'abcdefgh' * 100 }}{% endfor %}", {size});
  refused("{{ 'a' * 10000000000 }}", {size});
  refused("{{ 'x'.center(1000000000000) }}", {size});
  refused("{{ ('a' * 4000000).replace('', 'b' * 100) }}", {"too long"});
  refused("{% set ns = namespace(x=1) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}", {"100 deep"});
  refused("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {"600 deep"});
  refused("{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}", {deep});
  refused("{{ " + std::string(5000, '-') + "1 }}", {deep});
  std::string chain = "{{ 1", nested;
  for (int i = 0; i < 5000; ++i) chain += "+1", nested += "{% if 1 %}";
  refused(chain + " }}", {"more than 200 parts"});
  refused(nested, {deep});
  refused("{{ range(1000000) }}", {"more than 100000 numbers"});
  refused("{{ 9223372036854775807 + 1 }}", {"64 bits"});
  // A value that holds itself leaves nothing behind.
  EXPECT_EQ(rendered("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}"), "True");
}

TEST(Jinja, SearchesInLinearTime) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(rendered("{% set x = 'a' * 100000 ~ 'b' %}{% set y = 'a' * 2000000 %}{{ y.find(x) }}{{ x in y }}"
                     "{{ y.split(x)|length }}{{ y.count(x) }}"),
            "-1False10");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(Jinja, TellsWhatATemplateHas) {
  const JinjaTemplate one = parsed("{% generation %}{{ strftime_now('%Y') }}{{ m.content }}{% endgeneration %}");
  EXPECT_TRUE(one.marks_generation());
  EXPECT_TRUE(one.mentions("strftime_now") && one.mentions("content") && one.mentions("m"));
  EXPECT_FALSE(one.mentions("tools"));
  EXPECT_FALSE(parsed("{# {% generation %} #}").marks_generation());
  // Without a day it is today.
  EXPECT_EQ(parsed("{{ strftime_now('%Y') | int > 2024 }}").render(Json::object()).text, "True");
}

}  // namespace
}  // namespace hrm
