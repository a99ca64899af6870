#include "serve/dates.h"

#include <fmt/format.h>

#include <cstdint>

namespace calandra {
namespace {

std::tm parts_of(std::time_t time) {
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return parts;
}

/// "2026-11-30T11:14:31"
std::string day_and_time(std::time_t time) {
  const std::tm parts = parts_of(time);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                     parts.tm_min, parts.tm_sec);
}

}  // namespace

std::string utc_text(std::time_t time) { return day_and_time(time) + "Z"; }

std::string utc_text(std::chrono::system_clock::time_point time) {
  const std::int64_t milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count();
  return fmt::format("{}.{:03}Z", day_and_time(milliseconds / 1000), milliseconds % 1000);
}

std::string http_date(std::time_t time) {
  static constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const std::tm parts = parts_of(time);
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[parts.tm_wday], parts.tm_mday, kMonths[parts.tm_mon],
                     parts.tm_year + 1900, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

}  // namespace calandra
