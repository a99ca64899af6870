#include "serve/web_page.h"

#include "base/error.h"
#include "serve/web_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace calandra {
namespace {

/// Nothing from elsewhere, nothing inline, no framing, and no text that becomes HTML: if the page had a mistake, what a model
/// writes still could not run.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

std::string path_of(const WebFile& file) { return file.name == "index.html" ? "/" : fmt::format("/{}", file.name); }

const WebFile* find(std::string_view path) {
  for (const WebFile& file : web_files()) {
    if (path_of(file) == path) return &file;
  }
  return nullptr;
}

std::string_view content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  return "text/javascript; charset=utf-8";
}

/// Whether `tag`, in its quotes, is one of If-None-Match's; a weak one is as good (RFC 9110, 13.1.2). Ours have no comma.
bool is_among(std::string_view tag, std::string_view tags) {
  while (!tags.empty()) {
    std::string_view one = tags.substr(0, tags.find(','));
    tags.remove_prefix(std::min(one.size() + 1, tags.size()));
    while (one.starts_with(' ') || one.starts_with('\t')) one.remove_prefix(1);
    while (one.ends_with(' ') || one.ends_with('\t')) one.remove_suffix(1);
    if (one.starts_with("W/")) one.remove_prefix(2);
    if (one == tag || one == "*") return true;
  }
  return false;
}

}  // namespace

std::vector<std::string> web_page_paths() {
  std::vector<std::string> paths;
  for (const WebFile& file : web_files()) paths.push_back(path_of(file));
  return paths;
}

bool is_web_page(std::string_view path) { return find(path) != nullptr; }

HttpResponse web_page(const HttpRequest& request) {
  const WebFile* file = find(request.path);
  if (file == nullptr) fail("{}: expected a file of the web page", printable(request.path));
  const std::string tag = fmt::format("\"{}\"", file->sha256.substr(0, 32));
  // no-cache: kept, and asked about every time, so that a new version of the program shows at once.
  HttpHeaders headers = {{"ETag", tag},
                         {"Cache-Control", "no-cache"},
                         {"Content-Security-Policy", kContentSecurityPolicy},
                         {"X-Content-Type-Options", "nosniff"},
                         {"Referrer-Policy", "no-referrer"}};
  if (is_among(tag, request.headers.find("If-None-Match").value_or(""))) return {.status = 304, .headers = headers, .body = {}};
  headers.add("Content-Type", std::string(content_type(file->name)));
  return {.status = 200, .headers = headers, .body = std::string(file->bytes)};
}

}  // namespace calandra
