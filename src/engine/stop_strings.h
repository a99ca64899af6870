#pragma once
// Texts that end an answer, found wherever the borders of tokens fall. Text passes through here on its way out: what may
// be the beginning of a stop string waits until that is certain, so that no part of one is ever given out.

#include <string>
#include <string_view>
#include <vector>

namespace calandra {

class StopStrings {
 public:
  /// Throws Error if one of them is empty.
  explicit StopStrings(std::vector<std::string> stops);

  /// The text that is certain to come before any stop string. After the first complete one nothing more comes out.
  std::string push(std::string_view text);
  /// What waited and was no stop string after all.
  std::string finish();

  bool found() const { return found_; }

 private:
  std::vector<std::string> stops_;
  std::string pending_;  // the beginning of a stop string, if more comes
  bool found_ = false;
};

}  // namespace calandra
