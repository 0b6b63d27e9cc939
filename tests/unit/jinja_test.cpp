// The template interpreter: what jinja2 renders (goldens), what is refused at parse time, and every limit.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <utility>

#include "text/jinja_evaluator.h"
#include "text/jinja_text.h"
#include "text/json_bounded.h"

namespace tetrad::jinja::jinja_test {
namespace {

using Json = nlohmann::ordered_json;

std::string read(const std::string& name) {
  std::ifstream file(std::string(TETRAD_GOLDENS) + "/templates/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string render_text(const std::string& source, const Json& variables = Json::object(), const Limits& limits = {}) {
  return render(parse_template(source, "t"), variables, limits);
}

std::string runtime_error(const std::string& source, const Limits& limits = {}, const Json& variables = Json::object()) {
  const Template parsed = parse_template(source, "t");
  try {
    return "rendered: " + render(parsed, variables, limits).substr(0, 200);
  } catch (const TemplateError& error) {
    return error.what();
  }
}

std::string parse_error(const std::string& source) {
  try {
    parse_template(source, "t");
  } catch (const LoadError& error) {
    return error.what();
  }
  return "parsed";
}

std::string repeat(std::string_view piece, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += piece;
  return out;
}

TEST(JinjaGolden, TemplatesRenderAsInTheReference) {
  const Json golden = parse_json_bounded(read("golden-templates.json"), "golden");
  ASSERT_GE(golden["cases"].size(), 13u);
  for (const auto& example : golden["cases"]) {
    const std::string name = example["template"].get<std::string>();
    const Template source = parse_template(read(name + ".jinja"), name);
    if (example.contains("rendered")) {
      EXPECT_EQ(render(source, example["variables"]), example["rendered"].get<std::string>()) << name;
      continue;
    }
    try {
      ADD_FAILURE() << name << " rendered " << render(source, example["variables"]);
    } catch (const TemplateError& error) {
      if (example["raised"].is_string()) {
        EXPECT_EQ(error.what(), example["raised"].get<std::string>());
      }
    }
  }
}

TEST(JinjaGolden, ExpressionsAndStatementsRenderAsInTheReference) {
  const Json golden = parse_json_bounded(read("golden-expressions.json"), "golden");
  ASSERT_GE(golden["cases"].size(), 500u);
  for (const auto& example : golden["cases"]) {
    const std::string source = example["template"].get<std::string>();
    if (example.contains("rendered")) {
      EXPECT_EQ(render_text(source, golden["variables"]), example["rendered"].get<std::string>()) << source;
    } else {
      EXPECT_THROW(render_text(source, golden["variables"]), Error) << source;
    }
  }
}

TEST(JinjaParse, ConstructsOutsideTheSubsetAreNamedWithTheirLine) {
  EXPECT_EQ(parse_error("a\nb{{ x|urlencode }}"), "t:2: construct 'filter urlencode' is not supported");
  EXPECT_EQ(parse_error("{% if false %}{{ x is escaped }}{% endif %}"), "t:1: construct 'test escaped' is not supported");
  EXPECT_EQ(parse_error("{{ x|map('nosuch') }}"), "t:1: construct 'filter nosuch' is not supported");
  EXPECT_EQ(parse_error("{{ x|selectattr('a', 'nosuch') }}"), "t:1: construct 'test nosuch' is not supported");
  EXPECT_EQ(parse_error("\n\n{% include 'x' %}"), "t:3: construct '{% include %}' is not supported");
  EXPECT_EQ(parse_error("{% for x in y recursive %}{% endfor %}"), "t:1: construct 'for ... recursive' is not supported");
  EXPECT_EQ(parse_error("{{ x.append(1) }}"), "t:1: construct '.append()' is not supported");
  EXPECT_EQ(parse_error("{{ strftime_now('%Y') }}"), "t:1: construct 'function strftime_now' is not supported");
  EXPECT_EQ(parse_error("{{ f(*x) }}"), "t:1: construct '*arguments' is not supported");
  EXPECT_EQ(parse_error("{{ x[1, 2] }}"), "t:1: construct 'x[a, b]' is not supported");
  EXPECT_EQ(parse_error("{{ x[0]() }}"), "t:1: construct 'call of an expression' is not supported: only names and methods can be called");
  EXPECT_EQ(parse_error("{% macro m() %}{{ varargs }}{% endmacro %}"), "t:1: construct 'varargs' is not supported");
}

TEST(JinjaParse, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(parse_error("{{ a"), "t:1: the tag has no end");
  EXPECT_EQ(parse_error("\n{# a"), "t:2: the comment has no end");
  EXPECT_EQ(parse_error("{% if a %}\n"), "t:1: expected 'endif', got the end of the template");
  EXPECT_EQ(parse_error("{{ 1 + }}"), "t:1: expected an expression, got '}}'");
  EXPECT_EQ(parse_error("{{ (1] }}"), "t:1: unexpected ']'");
  EXPECT_EQ(parse_error("{{ 'a }}"), "t:1: the string has no end");
  EXPECT_EQ(parse_error("{{ '\\ud800' }}"), "t:1: an escape is not a Unicode scalar value");
  EXPECT_EQ(parse_error("{{ 99999999999999999999 }}"), "t:1: the integer 99999999999999999999 is out of range");
  EXPECT_EQ(parse_error("{% break %}"), "t:1: 'break' outside a loop");
  EXPECT_EQ(parse_error("{% endif %}"), "t:1: unexpected 'endif'");
  EXPECT_EQ(parse_error("{% set true = 1 %}"), "t:1: 'true' cannot be assigned to");
  EXPECT_EQ(parse_error("{% macro m(a, a) %}{% endmacro %}"), "t:1: the parameter 'a' is given twice");
  EXPECT_EQ(parse_error("{{ a ? b }}"), "t:1: unexpected character '?'");
  EXPECT_EQ(parse_error("\xff"), "t: the template is not valid UTF-8");
}

TEST(JinjaParse, DeepNestingIsRefusedAndNotFollowed) {
  const std::pair<const char*, const char*> nests[] = {{"(", ")"},        {"[", "]"},          {"not ", ""},  {"-", ""},
                                                       {"{1: ", "}"},     {"x|default(", ")"}, {"x[", "]"},   {"1 if 1 else ", ""},
                                                       {"x is eq(", ")"}, {"m(a=", ")"},       {"1 ** -", ""}};
  for (const auto& [open, close] : nests) {
    const std::string error = parse_error("{{ " + repeat(open, 20000) + "1" + repeat(close, 20000) + " }}");
    EXPECT_NE(error.find("nests"), std::string::npos) << open << ": " << error;
  }
  EXPECT_NE(parse_error(repeat("{% if 1 %}", 20000)).find("too deeply"), std::string::npos);
  EXPECT_NE(parse_error("{{ 1" + repeat(" + 1", 20000) + " }}").find("nests more than"), std::string::npos);
  EXPECT_NE(parse_error("{{ x" + repeat(".a", 20000) + " }}").find("nests more than"), std::string::npos);
  EXPECT_NE(parse_error("{{ x" + repeat("|trim", 20000) + " }}").find("nests more than"), std::string::npos);
  EXPECT_NE(parse_error("{% set " + repeat("(", 20000) + "a" + repeat(")", 20000) + " = 1 %}").find("too deeply"), std::string::npos);
  EXPECT_EQ(parse_error("{{ 1" + repeat(" ~ 1", 5000) + " }}"), "parsed");
}

TEST(JinjaParse, SizesAreBounded) {
  EXPECT_NE(parse_error(std::string((1 << 20) + 1, 'x')).find("at most 1048576 are read"), std::string::npos);
  std::string names;
  for (int i = 0; i < 1100; ++i) names += "{{ n" + std::to_string(i) + " }}";
  EXPECT_NE(parse_error(names).find("uses more than 1000 names"), std::string::npos);
}

TEST(JinjaRender, FailuresNameFileAndLine) {
  EXPECT_EQ(runtime_error("\n{{ x.y }}"), "t:2: 'x' is undefined");
  EXPECT_EQ(runtime_error("{{ {}.a.b }}"), "t:1: 'dict object' has no attribute 'a'");
  EXPECT_EQ(runtime_error("{{ 1 + 'a' }}"), "t:1: + does not work on int and str");
  EXPECT_EQ(runtime_error("{{ 1 // 0 }}"), "t:1: division by zero");
  EXPECT_EQ(runtime_error("{% for x in 5 %}{% endfor %}"), "t:1: a int cannot be iterated");
  EXPECT_EQ(runtime_error("{% set n = 1 %}{% set n.a = 2 %}"), "t:1: cannot assign an attribute of 'n': it is not a namespace");
  EXPECT_EQ(runtime_error("{{ x|tojson }}"), "t:1: 'x' is undefined");
}

TEST(JinjaRender, RaiseExceptionGivesTheTemplatesOwnWords) {
  EXPECT_EQ(runtime_error("{{ raise_exception('no: ' ~ 1) }}"), "no: 1");
  EXPECT_EQ(runtime_error("{% macro m() %}{{ raise_exception('inner') }}{% endmacro %}{{ m() }}"), "inner");
}

TEST(JinjaRender, IntegersOverflowAsErrors) {
  const std::string overflow = "t:1: integer overflow: a result lies outside -2^63 .. 2^64-1";
  EXPECT_EQ(render_text("{{ 18446744073709551615 }} {{ -9223372036854775807 - 1 }}"), "18446744073709551615 -9223372036854775808");
  EXPECT_EQ(runtime_error("{{ 18446744073709551615 + 1 }}"), overflow);
  EXPECT_EQ(runtime_error("{{ -9223372036854775807 - 2 }}"), overflow);
  EXPECT_EQ(runtime_error("{{ 18446744073709551615 * 18446744073709551615 }}"), overflow);
  EXPECT_EQ(runtime_error("{{ 10 ** 30 }}"), overflow);
  EXPECT_EQ(runtime_error("{{ 2 ** 9223372036854775807 }}"), overflow);
  EXPECT_EQ(runtime_error("{{ 1e300|int }}"), overflow);
  EXPECT_EQ(render_text("{{ 1 ** 9223372036854775807 }}{{ (-1) ** 3 }}"), "1-1");
}

TEST(JinjaRender, JsonIntegersBeyondSignedKeepTheirDigits) {
  EXPECT_EQ(render_text("{{ x|tojson }}", {{"x", {{"maximum", 18446744073709551615u}}}}), R"({"maximum": 18446744073709551615})");
}

TEST(JinjaRender, VariablesMustBeUtf8) {
  EXPECT_EQ(runtime_error("{{ x }}", {}, {{"x", "\xc3"}}), "t:1: a string of the variables is not valid UTF-8");
}

TEST(JinjaLimit, Steps) {
  EXPECT_EQ(runtime_error("{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"),
            "t:1: the template took more than 10000000 evaluation steps");
  // Long strings and lists cost in proportion, so a few operations on them are bounded as well.
  EXPECT_NE(runtime_error("{% set s = 'ab' * 20000 %}{% for a in range(100000) %}{% set t = s.replace('b', 'c') %}{% endfor %}")
                .find("evaluation steps"),
            std::string::npos);
}

TEST(JinjaLimit, OutputBytes) {
  Limits limits;
  limits.output_bytes = 1000;
  EXPECT_EQ(render_text("{{ 'x' * 1000 }}", Json::object(), limits).size(), 1000u);
  EXPECT_EQ(runtime_error("{{ 'x' * 1001 }}", limits), "t:1: the output would exceed 1000 bytes");
  EXPECT_EQ(runtime_error("{% set b %}{% for i in range(100000) %}0123456789{% endfor %}{% endset %}", limits),
            "t:1: the output would exceed 1000 bytes");
}

TEST(JinjaLimit, StringBytes) {
  const std::string message = "t:1: an intermediate string would exceed 33554432 bytes";
  EXPECT_EQ(runtime_error("{{ ('x' * 10**9)|length }}"), message);
  EXPECT_EQ(runtime_error("{{ 'xy' * 18446744073709551615 }}"), message);
  EXPECT_EQ(runtime_error("{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"),
            message);
  EXPECT_EQ(runtime_error("{{ ('x' * 100000).replace('x', 'y' * 100000)|length }}"), message);
  EXPECT_EQ(runtime_error("{{ (['x' * 100000] * 1000)|join('y' * 100000)|length }}"), message);
  EXPECT_EQ(runtime_error("{{ 'a\\nb\\nc'|indent('y' * 30000000)|length }}"), message);
}

TEST(JinjaLimit, ListItems) {
  const std::string message = "t:1: an intermediate list would exceed 1048576 items";
  EXPECT_EQ(runtime_error("{{ [1] * 10**9 }}"), message);
  EXPECT_EQ(runtime_error("{{ ('x' * 2000000)|list|length }}"), message);
  EXPECT_EQ(runtime_error("{% set ns = namespace(l=[1, 2]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% endfor %}"), message);
}

TEST(JinjaLimit, Range) {
  EXPECT_EQ(render_text("{{ range(100000)|length }}"), "100000");
  EXPECT_EQ(runtime_error("{{ range(100001)|length }}"), "t:1: a range of more than 100000 items is not allowed");
  EXPECT_EQ(runtime_error("{{ range(-9223372036854775807, 18446744073709551615) }}"),
            "t:1: a range of more than 100000 items is not allowed");
}

TEST(JinjaLimit, LiveBytes) {
  EXPECT_EQ(
      runtime_error("{% set ns = namespace(l=[]) %}{% for i in range(100) %}{% set ns.l = ns.l + [i ~ 'x' * 10000000] %}{% endfor %}"),
      "t:1: the template holds more than 268435456 bytes of values");
  EXPECT_EQ(render_text("{% for i in range(100) %}{% set s = i ~ 'x' * 1000000 %}{% endfor %}done"), "done");
}

TEST(JinjaLimit, ValueDepth) {
  const std::string nest =
      "{% set ns = namespace(l=[]) %}{% for i in range(N) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l|string|length }}";
  const auto of = [&](const std::string& n) { return std::string(nest).replace(nest.find('N'), 1, n); };
  EXPECT_EQ(render_text(of("100")), "202");
  EXPECT_EQ(runtime_error(of("100000")), "t:1: values are nested more than 128 deep");
  // A loop variable or a method holds what it stands for, so chains of them count as nesting too.
  EXPECT_NE(
      runtime_error(
          "{% set ns = namespace(l=1) %}{% for i in range(100000) %}{% for j in [ns.l] %}{% set ns.l = loop %}{% endfor %}{% endfor %}")
          .find("128 deep"),
      std::string::npos);
  EXPECT_NE(
      runtime_error("{% set ns = namespace(l=[]) %}{% for i in range(100000) %}{% set ns.l = [ns.l].count %}{% endfor %}").find("128 deep"),
      std::string::npos);
}

TEST(JinjaLimit, WideSharingIsNotExpanded) {
  // Every level holds the one below twice: small in memory, 2^100 when printed or compared.
  const std::string build =
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(100) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor "
      "%}";
  EXPECT_NE(runtime_error(build + "{{ ns.l }}").find("t:1: "), std::string::npos);
  EXPECT_NE(runtime_error(build + "{{ ns.l|tojson }}").find("t:1: "), std::string::npos);
  EXPECT_NE(runtime_error(build + "{{ ns.l == ns.m }}").find("evaluation steps"), std::string::npos);
}

TEST(JinjaLimit, MacroDepth) {
  EXPECT_EQ(runtime_error("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), "t:1: macros call each other more than 64 deep");
  EXPECT_EQ(render_text("{% macro m(n) %}{{ n }}{% if n %}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(40) }}").substr(0, 4), "4039");
}

TEST(JinjaLimit, EvaluatorFrames) {
  Limits limits;
  limits.nesting = 20;
  EXPECT_EQ(runtime_error("{{ " + repeat("(1 + ", 30) + "1" + repeat(")", 30) + " }}", limits),
            "t:1: the template nests more than 20 deep while rendering");
  // The deepest tree that parses, inside recursive macros: the default limits hold before the stack ends.
  const std::string deep = repeat("[", 60) + "m()" + repeat("]", 60);
  EXPECT_NE(runtime_error("{% macro m() %}{{ " + deep + " }}{% endmacro %}{{ m() }}").find("deep"), std::string::npos);
}

TEST(JinjaLimit, CyclesThroughNamespacesAndMacrosAreFreed) {
  // The leak checker of the sanitizer build watches these.
  EXPECT_EQ(render_text("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}ok"), "ok");
  EXPECT_EQ(render_text("{% for i in range(3) %}{% macro m() %}{{ i }}{% endmacro %}{% set ns = namespace(f=m) %}{{ m() }}{% endfor %}"),
            "012");
  EXPECT_NE(runtime_error("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}").find("deep cannot be printed"), std::string::npos);
}

TEST(JinjaText, FloatsPrintAsInPython) {
  EXPECT_EQ(float_text(1e16), "1e+16");
  EXPECT_EQ(float_text(1e22), "1e+22");
  EXPECT_EQ(float_text(123456789012345680.0), "1.2345678901234568e+17");
  EXPECT_EQ(float_text(9999999999999998.0), "9999999999999998.0");
  EXPECT_EQ(float_text(0.0001), "0.0001");
  EXPECT_EQ(float_text(0.00001), "1e-05");
  EXPECT_EQ(float_text(-0.0), "-0.0");
  EXPECT_EQ(float_text(5e-324), "5e-324");
  EXPECT_EQ(float_text(0.1), "0.1");
  EXPECT_EQ(float_text(INFINITY), "inf");
}

TEST(JinjaText, SearchTakesLinearTime) {
  const std::string text(1 << 20, 'a'), needle = std::string(1 << 19, 'a') + "b";
  EXPECT_EQ(find_bytes(text, needle), std::string_view::npos);
  EXPECT_EQ(rfind_bytes(text, "b" + needle), std::string_view::npos);
}

}  // namespace
}  // namespace tetrad::jinja::jinja_test
