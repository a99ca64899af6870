#pragma once
// Server-sent events as a client reads them, by the WHATWG's HTML standard: lines end with LF, CR or CRLF, a blank line ends an
// event, comments and events without data are passed over, a byte order mark at the beginning is too. However the bytes are cut,
// the events are the same.

#include <cstddef>
#include <string>
#include <string_view>

namespace calandra {

struct ServerEvent {
  std::string name;  ///< of the "event" field; empty: none
  std::string data;  ///< lines of "data" joined with "\n"
};

class EventReader {
 public:
  /// What one event may hold. No answer comes near it; a server that sends more is not one.
  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;

  void append(std::string_view bytes);
  /// Takes the next event that is complete; false if there is none yet. Throws Error beyond kMostBytes.
  bool next(ServerEvent& event);

 private:
  bool take_line(std::string_view& line);
  void take_field(std::string_view line);

  std::string input_;
  std::size_t used_ = 0;     // of input_
  std::size_t scanned_ = 0;  // of input_: no line ends before it
  bool at_start_ = true;     // of the stream, where a byte order mark may stand
  bool after_cr_ = false;    // a line feed that comes next belongs to the end of the last line
  bool has_data_ = false;
  ServerEvent current_;
};

}  // namespace calandra
