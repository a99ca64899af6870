#include "loadtest/event_reader.h"

#include "base/error.h"

#include <algorithm>
#include <utility>

namespace calandra {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

}  // namespace

void EventReader::append(std::string_view bytes) {
  input_.erase(0, used_);
  scanned_ -= used_;
  used_ = 0;
  input_ += bytes;
}

bool EventReader::take_line(std::string_view& line) {
  if (after_cr_ && used_ < input_.size()) {
    if (input_[used_] == '\n') ++used_;
    after_cr_ = false;
  }
  scanned_ = std::max(scanned_, used_);
  const std::size_t end = input_.find_first_of("\r\n", scanned_);
  if (end == std::string::npos) {
    scanned_ = input_.size();
    return false;
  }
  line = std::string_view(input_).substr(used_, end - used_);
  after_cr_ = input_[end] == '\r';
  used_ = scanned_ = end + 1;
  if (std::exchange(at_start_, false) && line.starts_with(kByteOrderMark)) line.remove_prefix(kByteOrderMark.size());
  return true;
}

void EventReader::take_field(std::string_view line) {
  const std::size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  std::string_view value = colon == line.npos ? std::string_view() : line.substr(colon + 1);
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (name == "data") {
    if (has_data_) current_.data += '\n';
    current_.data += value;
    has_data_ = true;
  } else if (name == "event") {
    current_.name = value;
  }
}

bool EventReader::next(ServerEvent& event) {
  for (std::string_view line; take_line(line);) {
    if (!line.empty()) {
      take_field(line);
    } else if (std::exchange(has_data_, false)) {
      event = std::exchange(current_, {});
      return true;
    } else {
      current_ = {};
    }
  }
  if (input_.size() - used_ + current_.data.size() > kMostBytes) {
    fail("event stream: found an event of more than {} bytes", kMostBytes);
  }
  return false;
}

}  // namespace calandra
