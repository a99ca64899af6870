#include "text/grammar.h"

#include "text/grammar_ebnf.h"
#include "text/grammar_mask.h"
#include "text/grammar_schema.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace calandra {
namespace grammar {

/// The threads of a position, in an arena shared by the copies of a state.
struct Position {
  std::shared_ptr<Arena> arena;
  std::vector<Thread> threads;
};

}  // namespace grammar

namespace {

constexpr std::uint64_t kMaxStepWork = 10'000'000;  // for one byte

}  // namespace

Grammar::Grammar(std::unique_ptr<const grammar::Program> program, std::shared_ptr<const GrammarVocabulary> vocabulary)
    : program_(std::move(program)),
      program_bytes_(grammar::bytes_of(*program_)),
      vocabulary_(std::move(vocabulary)),
      masks_(std::make_unique<grammar::MaskCache>()) {}

Grammar::~Grammar() = default;

std::size_t Grammar::bytes() const { return sizeof(Grammar) + sizeof(grammar::MaskCache) + program_bytes_ + masks_->bytes(); }

std::shared_ptr<const Grammar> Grammar::from_json_schema(std::string_view schema, std::string_view where,
                                                         std::shared_ptr<const GrammarVocabulary> vocabulary) {
  auto program = std::make_unique<const grammar::Program>(grammar::program_of_schema(schema, where));
  return std::shared_ptr<const Grammar>(new Grammar(std::move(program), std::move(vocabulary)));
}

std::shared_ptr<const Grammar> Grammar::any_json_object(std::shared_ptr<const GrammarVocabulary> vocabulary) {
  return from_json_schema(R"({"type": "object"})", "json_object", std::move(vocabulary));
}

std::shared_ptr<const Grammar> Grammar::from_ebnf(std::string_view text, std::string_view where,
                                                  std::shared_ptr<const GrammarVocabulary> vocabulary) {
  auto program = std::make_unique<const grammar::Program>(grammar::program_of_ebnf(text, where));
  return std::shared_ptr<const Grammar>(new Grammar(std::move(program), std::move(vocabulary)));
}

std::shared_ptr<const Grammar> Grammar::from_calls(const CallRules& rules, std::shared_ptr<const GrammarVocabulary> vocabulary) {
  grammar::Program calls = grammar::program_of_calls(rules);
  for (const GrammarVocabulary::Mark& mark : vocabulary->call_marks()) {
    const auto index = std::ranges::find(grammar::kCallMarks, mark.bytes) - grammar::kCallMarks.begin();
    calls.marks_with_token |= static_cast<std::uint8_t>(1 << index);
  }
  auto program = std::make_unique<const grammar::Program>(std::move(calls));
  return std::shared_ptr<const Grammar>(new Grammar(std::move(program), std::move(vocabulary)));
}

GrammarState::GrammarState(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), position_(std::make_unique<grammar::Position>()) {
  position_->arena = std::make_shared<grammar::Arena>();
  position_->threads = grammar::Machine(*grammar_->program_, *position_->arena).start();
}

GrammarState::~GrammarState() = default;
GrammarState::GrammarState(GrammarState&&) noexcept = default;
GrammarState& GrammarState::operator=(GrammarState&&) noexcept = default;

GrammarState::GrammarState(const GrammarState& other)
    : grammar_(other.grammar_), position_(std::make_unique<grammar::Position>(*other.position_)), has_ended_(other.has_ended_) {}

GrammarState& GrammarState::operator=(const GrammarState& other) {
  if (this != &other) *this = GrammarState(other);
  return *this;
}

void GrammarState::allowed(TokenMask& mask) const {
  const GrammarVocabulary& vocabulary = *grammar_->vocabulary_;
  mask.clear(vocabulary.size());
  if (has_ended_) return;
  grammar::Arena& arena = *position_->arena;
  const grammar::Arena::Mark before = arena.mark();
  try {
    grammar::Masker(*grammar_->program_, arena, vocabulary, *grammar_->masks_).fill(position_->threads, mask);
  } catch (...) {
    arena.rewind(before);
    throw;
  }
  for (const GrammarVocabulary::Mark& mark : vocabulary.call_marks()) {
    if (!grammar_->program_->is_of_calls()) break;
    GrammarState next = *this;
    if (next.accept_bytes(mark.bytes, true)) mask.set(mark.id);
    arena.rewind(before);
  }
  if (!can_end()) return;
  for (const std::int32_t id : vocabulary.end_ids()) mask.set(id);
}

bool GrammarState::accept(std::int32_t id) {
  const GrammarVocabulary& vocabulary = *grammar_->vocabulary_;
  if (has_ended_ || id < 0 || id >= vocabulary.size()) return false;
  if (vocabulary.is_end(id)) return has_ended_ = can_end();
  for (const GrammarVocabulary::Mark& mark : vocabulary.call_marks()) {
    if (mark.id == id) return grammar_->program_->is_of_calls() && accept_bytes(mark.bytes, true);
  }
  const std::string_view bytes = vocabulary.bytes(id);
  return !bytes.empty() && accept_text(bytes);
}

bool GrammarState::accept_text(std::string_view bytes) { return accept_bytes(bytes, false); }

bool GrammarState::accept_mark(std::string_view mark) { return grammar_->program_->is_of_calls() && accept_bytes(mark, true); }

bool GrammarState::accept_bytes(std::string_view bytes, bool only_marks) {
  if (has_ended_) return bytes.empty();
  grammar::Arena& arena = *position_->arena;
  const grammar::Arena::Mark mark = arena.mark();
  grammar::Machine machine(*grammar_->program_, arena);
  machine.set_only_marks(only_marks);
  std::vector<grammar::Thread> threads = position_->threads, next;
  try {
    for (std::size_t i = 0; i < bytes.size() && !threads.empty(); ++i) {
      machine.allow_work(kMaxStepWork);
      machine.step(threads, static_cast<std::uint8_t>(bytes[i]), next);
      std::swap(threads, next);
    }
  } catch (...) {
    arena.rewind(mark);
    throw;
  }
  if (threads.empty()) {
    arena.rewind(mark);
    return false;
  }
  position_->threads = std::move(threads);
  return true;
}

bool GrammarState::can_end() const { return !has_ended_ && grammar::Machine::can_end(position_->threads); }

}  // namespace calandra
