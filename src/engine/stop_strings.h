#pragma once
// Texts that end an answer, found wherever the borders of tokens fall. Text passes through here on its way out: what may
// be the beginning of a stop string waits until that is certain, so that no part of one is ever given out. A byte of text costs a few
// steps a stop string, however these are made (Knuth, Morris, Pratt, 1977).

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace calandra {

struct StopString {
  std::string text;
  std::vector<std::uint32_t>
      begun_anew;  // [n - 1]: with how much of its beginning its first n bytes end, if that is not all of them
};

/// Never changed once made: copies share it, as all answers to a prompt do.
class StopList {
 public:
  StopList() = default;
  /// Throws Error if one of them is empty.
  StopList(const std::vector<std::string>& texts);
  StopList(std::initializer_list<std::string> texts) : StopList(std::vector<std::string>(texts)) {}

  bool empty() const { return stops_ == nullptr; }
  std::span<const StopString> stops() const { return stops_ ? std::span(*stops_) : std::span<const StopString>(); }
  std::vector<std::string> texts() const;

  friend bool operator==(const StopList& a, const StopList& b) { return a.texts() == b.texts(); }

 private:
  std::shared_ptr<const std::vector<StopString>> stops_;  // null: none
};

class StopStrings {
 public:
  explicit StopStrings(StopList list) : list_(std::move(list)), begun_(list_.stops().size()) {}

  /// The text that is certain to come before any stop string. After the first complete one nothing more comes out.
  std::string push(std::string_view text);
  /// What waited and was no stop string after all.
  std::string finish();

  bool found() const { return found_; }

 private:
  StopList list_;
  std::vector<std::uint32_t> begun_;  // of each, how much the text ends with
  std::string pending_;               // the beginning of a stop string, if more comes
  bool found_ = false;
};

}  // namespace calandra
