#include "loadtest/prompts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

namespace calandra {
namespace {

constexpr std::array<std::string_view, 200> kWords = {
    "the",     "of",     "and",     "to",      "in",     "that",   "was",      "he",      "his",     "with",    "as",
    "for",     "had",    "is",      "not",     "be",     "at",     "on",       "it",      "by",      "her",     "she",
    "which",   "have",   "from",    "you",     "this",   "but",    "all",      "they",    "were",    "are",     "their",
    "one",     "so",     "said",    "when",    "who",    "him",    "there",    "been",    "would",   "will",    "no",
    "or",      "what",   "if",      "an",      "more",   "them",   "could",    "my",      "any",     "out",     "up",
    "into",    "some",   "do",      "has",     "very",   "about",  "than",     "then",    "now",     "such",    "time",
    "man",     "other",  "may",     "made",    "only",   "after",  "before",   "must",    "might",   "should",  "every",
    "much",    "great",  "good",    "little",  "own",    "never",  "being",    "most",    "day",     "room",    "house",
    "mother",  "father", "sister",  "brother", "friend", "family", "letter",   "morning", "evening", "night",   "week",
    "year",    "way",    "thing",   "place",   "world",  "life",   "heart",    "hand",    "head",    "eyes",    "mind",
    "word",    "name",   "woman",   "lady",    "young",  "old",    "long",     "first",   "last",    "many",    "two",
    "three",   "ten",    "well",    "again",   "always", "often",  "soon",     "still",   "yet",     "here",    "where",
    "how",     "why",    "because", "though",  "while",  "until",  "without",  "against", "between", "under",   "over",
    "through", "come",   "came",    "go",      "went",   "see",    "saw",      "know",    "knew",    "think",   "thought",
    "say",     "tell",   "told",    "give",    "gave",   "take",   "took",     "make",    "find",    "found",   "look",
    "looked",  "seemed", "felt",    "feel",    "hope",   "wish",   "love",     "happy",   "dear",    "sure",    "right",
    "part",    "side",   "end",     "country", "town",   "walk",   "door",     "moment",  "subject", "manner",  "opinion",
    "reason",  "power",  "present", "half",    "almost", "enough", "together", "perhaps", "certain", "nothing", "something",
    "another", "same"};

}  // namespace

PromptScale PromptScale::measured(std::int64_t words, std::int64_t tokens, std::int64_t more_words, std::int64_t more_tokens) {
  PromptScale scale;
  const double slope = static_cast<double>(more_tokens - tokens) / static_cast<double>(more_words - words);
  if (!(slope > 0)) return scale;
  scale.tokens_per_word = slope;
  scale.tokens_beside = std::max(0.0, static_cast<double>(tokens) - slope * static_cast<double>(words));
  scale.is_measured = true;
  return scale;
}

std::int64_t PromptScale::words_of_message(std::int64_t tokens) const {
  return std::max<std::int64_t>(1, std::llround((static_cast<double>(tokens) - tokens_beside) / tokens_per_word));
}

std::string random_words(Draws& draws, std::int64_t count) {
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    if (i > 0) text += ' ';
    text += kWords[draws.below(kWords.size())];
  }
  return text;
}

}  // namespace calandra
