// The formats of JSON Schema that are checked, as patterns.

#include "text/grammar_pattern.h"

#include <map>
#include <string>

namespace calandra::grammar {
namespace {

// RFC 3339 with the days of each month and the 29th of February in leap years; a leap second only where it can be one in UTC.
const std::string kDate =
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)";
const std::string kTime =
    "(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
    "|23:59:60(?:\\.[0-9]+)?[Zz])";
const std::string kDuration =
    "P(?:[0-9]+W|(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)"
    "(?:T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?))?"
    "|T(?:[0-9]+S|[0-9]+M(?:[0-9]+S)?|[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?))";

/// RFC 1123 with so many labels, such as "*"; without its limit on the whole length.
std::string host_name(const std::string& count_after_first) {
  const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?";
  return label + "(?:\\." + label + ")" + count_after_first;
}

std::string ipv4() {
  const std::string byte = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  return byte + "(?:\\." + byte + "){3}";
}

/// RFC 4291: eight groups of which the last two may be an IPv4 address, or fewer around one "::".
std::string ipv6() {
  const std::string group = "[0-9A-Fa-f]{1,4}";
  const auto groups = [&](int count) { return group + "(?::" + group + "){" + std::to_string(count - 1) + "}"; };
  std::string pattern = groups(8) + "|" + groups(6) + ":" + ipv4();
  for (int before = 0; before <= 7; ++before) {
    const std::string start = (before > 0 ? groups(before) : "") + "::";
    const int most = 7 - before;  // after it
    pattern += "|" + start;
    if (most >= 1) pattern += "(?:" + group + "(?::" + group + "){0," + std::to_string(most - 1) + "})?";
    if (most >= 2) pattern += "|" + start + "(?:" + group + ":){0," + std::to_string(most - 2) + "}" + ipv4();
  }
  return "(?:" + pattern + ")";
}

/// RFC 5321's dot-string at a host name with a dot.
std::string email() {
  const std::string atom = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";
  return atom + "(?:\\." + atom + ")*@" + host_name("+");
}

const std::map<std::string, std::string, std::less<>>& formats() {
  static const std::map<std::string, std::string, std::less<>> all = {
      {"date", kDate},
      {"time", kTime},
      {"date-time", kDate + "[Tt]" + kTime},
      {"duration", kDuration},
      {"uuid", "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}"},
      {"email", email()},
      {"hostname", host_name("*")},
      {"ipv4", ipv4()},
      {"ipv6", ipv6()},
  };
  return all;
}

}  // namespace

std::optional<Expression> format_expression(std::string_view format, Budget& budget) {
  const auto found = formats().find(format);
  if (found == formats().end()) return std::nullopt;
  return pattern_expression("^" + found->second + "$", format, budget);
}

std::string known_formats() {
  std::string names;
  for (const auto& [name, pattern] : formats()) names += (names.empty() ? "" : ", ") + name;
  return names;
}

}  // namespace calandra::grammar
