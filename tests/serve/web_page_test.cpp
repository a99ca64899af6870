// The web page: what is in the program is what is in the folder web, and a browser is told to take nothing from elsewhere.

#include "serve/web_page.h"
#include "serve/client.h"
#include "serve/scripted_answers.h"
#include "serve/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <string>

namespace calandra::web_page_test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

/// Path on the server to bytes, of the folder web.
std::map<std::string, std::string> files_of_folder() {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(fs::path(CALANDRA_SOURCE_DIR) / "web")) {
    const std::string name = entry.path().filename();
    std::ifstream in(entry.path(), std::ios::binary);
    files[name == "index.html" ? "/" : "/" + name] = {std::istreambuf_iterator<char>(in), {}};
  }
  return files;
}

HttpResponse get(const std::string& path, const std::string& if_none_match = {}) {
  HttpRequest request;
  request.path = path;
  if (!if_none_match.empty()) request.headers.add("If-None-Match", if_none_match);
  return web_page(request);
}

std::string field(const HttpResponse& response, std::string_view name) {
  return std::string(response.headers.find(name).value_or(""));
}

TEST(WebPage, TheProgramHasTheBytesOfTheFolder) {
  const auto files = files_of_folder();
  EXPECT_GE(files.size(), 3u);
  const std::vector<std::string> paths = web_page_paths();
  EXPECT_EQ(paths.size(), files.size());
  for (const auto& [path, bytes] : files) {
    EXPECT_THAT(paths, testing::Contains(path));
    EXPECT_EQ(get(path).body, bytes) << path;
  }
}

TEST(WebPage, EachFileHasItsTypeAndItsTag) {
  EXPECT_EQ(field(get("/"), "Content-Type"), "text/html; charset=utf-8");
  EXPECT_EQ(field(get("/style.css"), "Content-Type"), "text/css; charset=utf-8");
  EXPECT_EQ(field(get("/page.js"), "Content-Type"), "text/javascript; charset=utf-8");
  std::set<std::string> tags;
  for (const std::string& path : web_page_paths()) {
    EXPECT_THAT(field(get(path), "ETag"), testing::MatchesRegex("\"[0-9a-f]+\""));
    EXPECT_EQ(field(get(path), "X-Content-Type-Options"), "nosniff");
    tags.insert(field(get(path), "ETag"));
  }
  EXPECT_EQ(tags.size(), web_page_paths().size());
}

TEST(WebPage, WhoHasAFileIsNotSentItAgain) {
  const std::string tag = field(get("/page.js"), "ETag"), other = field(get("/"), "ETag");
  for (const std::string& known : {tag, "W/" + tag, "\"x\", " + tag, "\"x\",W/" + tag + " , \"y\"", std::string("*")}) {
    const HttpResponse response = get("/page.js", known);
    EXPECT_EQ(response.status, 304) << known;
    EXPECT_EQ(response.body, "") << known;
    EXPECT_EQ(field(response, "ETag"), tag) << known;
    EXPECT_EQ(field(response, "Cache-Control"), "no-cache") << known;
  }
  for (const std::string& known : {other, std::string("\"x\""), std::string(","), tag.substr(1), tag + "x"}) {
    EXPECT_EQ(get("/page.js", known).status, 200) << known;
  }
}

/// "script-src 'self'; img-src data:" to {{"script-src", "'self'"}, ...}
std::map<std::string, std::string> directives(const std::string& policy) {
  std::map<std::string, std::string> found;
  static const std::regex directive(R"(\s*([\w-]+) ([^;]+)(;|$))");
  for (std::sregex_iterator match(policy.begin(), policy.end(), directive), none; match != none; ++match)
    found[(*match)[1]] = (*match)[2];
  return found;
}

TEST(WebPage, NothingFromElsewhereMayRun) {
  for (const std::string& path : web_page_paths()) {
    const std::string policy = field(get(path), "Content-Security-Policy");
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    EXPECT_THAT(policy, Not(HasSubstr("*")));
    const auto rules = directives(policy);
    const std::map<std::string, std::string> expected = {{"default-src", "'none'"},
                                                         {"script-src", "'self'"},
                                                         {"style-src", "'self'"},
                                                         {"connect-src", "'self'"},
                                                         {"base-uri", "'none'"},
                                                         {"frame-ancestors", "'none'"},
                                                         {"require-trusted-types-for", "'script'"}};
    for (const auto& [name, value] : expected) {
      ASSERT_TRUE(rules.contains(name)) << name;
      EXPECT_EQ(rules.at(name), value) << name;
    }
  }
}

/// What such a policy forbids anyway would fail in the browser alone.
TEST(WebPage, FilesNameNoOtherHostAndHaveNothingInline) {
  static const std::regex elsewhere(R"(https?:|["'(=]\s*//|@import|url\()");
  static const std::regex inline_code(R"(\son\w+\s*=|\sstyle\s*=|<style|<script(?![^>]*\ssrc=)|javascript:)");
  static const std::regex text_to_html(
      R"(innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|new Function)");
  for (const auto& [path, bytes] : files_of_folder()) {
    EXPECT_FALSE(std::regex_search(bytes, elsewhere)) << path;
    if (path == "/") {
      EXPECT_FALSE(std::regex_search(bytes, inline_code)) << path;
    }
    EXPECT_FALSE(std::regex_search(bytes, text_to_html)) << path;
  }
}

TEST(WebPage, TheHtmlNamesTheOtherFiles) {
  static const std::regex reference(R"re((?:href|src)="([^":]+)")re");
  const std::string html = get("/").body;
  std::set<std::string> named = {"/"};
  for (std::sregex_iterator match(html.begin(), html.end(), reference), none; match != none; ++match)
    named.insert("/" + (*match)[1].str());
  const std::vector<std::string> paths = web_page_paths();
  EXPECT_EQ(named, std::set<std::string>(paths.begin(), paths.end()));
}

/// A misspelt id shows only when its button is pressed.
TEST(WebPage, EveryIdOfTheScriptIsInTheHtml) {
  static const std::regex use(R"re((?:byId|clone)\("([\w-]+)"\))re");
  const std::string script = get("/page.js").body, html = get("/").body;
  int uses = 0;
  for (std::sregex_iterator match(script.begin(), script.end(), use), none; match != none; ++match, ++uses)
    EXPECT_THAT(html, HasSubstr("id=\"" + (*match)[1].str() + "\""));
  EXPECT_GT(uses, 10);
}

TEST(WebPage, IsServedWithoutAKey) {
  ApiBench bench{nullptr};
  ScriptedAnswers answers;
  ServerOptions options;
  options.http.port = 0;
  options.api_keys = {"secret"};
  Server server(std::move(options), bench.model(), answers, [](std::string_view) {});
  for (const auto& [path, bytes] : files_of_folder()) {
    const Answer answer = Client(server.port()).ask(request_text("GET " + path + " HTTP/1.1"));
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_EQ(answer.body, bytes) << path;
    const Answer again =
        Client(server.port()).ask(request_text("GET " + path + " HTTP/1.1", "If-None-Match: " + answer.header("etag") + "\r\n"));
    EXPECT_EQ(again.status, 304) << path;
  }
  EXPECT_EQ(Client(server.port()).ask(request_text("GET /index.html HTTP/1.1")).status, 401);
  EXPECT_EQ(Client(server.port()).ask(request_text("GET /v1/models HTTP/1.1")).status, 401);
}

}  // namespace
}  // namespace calandra::web_page_test
