#pragma once
// Times as clients and logs read them, in UTC and in no language but this.

#include <chrono>
#include <ctime>
#include <string>

namespace calandra {

/// "2026-11-30T11:14:31Z"
std::string utc_text(std::time_t time);
/// "2026-11-30T11:14:31.123Z"
std::string utc_text(std::chrono::system_clock::time_point time);
/// "Sun, 06 Nov 1994 08:49:37 GMT", as HTTP has it.
std::string http_date(std::time_t time);

}  // namespace calandra
