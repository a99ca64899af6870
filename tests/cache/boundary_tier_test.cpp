// What comes back from a tier is what went there, to the byte, or nothing; whatever happens to its objects, and whoever dies.

#include "cache/boundary_tier.h"
#include "cache/file_store.h"
#include "support/golden.h"
#include "support/memory_store.h"
#include "support/small_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <future>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <thread>

namespace calandra {
namespace {

using Tokens = std::vector<std::int32_t>;
using State = BoundaryReading::State;

constexpr std::int64_t kHidden = 8;

Tokens random_tokens(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  Tokens tokens(static_cast<std::size_t>(count));
  for (auto& token : tokens) token = static_cast<std::int32_t>(random() % 1000);
  return tokens;
}

/// Instead of a model: every byte of a sequence's memory is a function of the tokens it is of, and only of these.
class Computer {
 public:
  explicit Computer(const MemoryLayout& layout) : layout_(layout) {}

  /// Takes the sequence to `end` of `tokens`.
  void advance(SequenceMemory& memory, const Tokens& tokens, std::int64_t end) const {
    ASSERT_TRUE(memory.reserve(end));
    std::uint32_t sum = 1;
    for (std::int64_t i = 0; i < end; ++i) {
      sum = sum * 31 + static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(i)]);
      if (i >= memory.position()) fill(memory.latents(0), i, sum);
      const std::int64_t mtp_row = i - 1;  // needs token i
      if (layout_.mtp_layers > 0 && mtp_row >= std::max<std::int64_t>(0, memory.position() - 1))
        fill(memory.mtp_latents(), mtp_row, sum + 1);
    }
    std::mt19937 random(sum);
    for (std::int64_t layer = 0; layer < layout_.kda_layers; ++layer) {
      for (std::int64_t head = 0; head < layout_.heads; ++head) {
        for (float& value : memory.state(layer, head)) value = static_cast<float>(random());
      }
      std::memset(memory.tails(layer), static_cast<int>(random() % 256), static_cast<std::size_t>(layout_.tail_bytes));
    }
    std::vector<float> hidden(kHidden, static_cast<float>(sum));
    memory.advance(end - memory.position(), hidden);
  }

  /// All bytes of a sequence, as a boundary tells them.
  std::vector<std::byte> bytes(const SequenceMemory& memory) const {
    const auto boundary = memory.snapshot();
    std::vector<std::byte> all;
    for (const StoredParts& parts : {boundary->rows(0, boundary->position()), boundary->fixed()}) {
      for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    }
    return all;
  }

 private:
  static void fill(const LatentCache& cache, std::int64_t row, std::uint32_t seed) {
    std::mt19937 random(seed);
    for (std::int64_t i = 0; i < cache.row_bytes; ++i) cache.row(row)[i] = static_cast<std::byte>(random());
  }

  MemoryLayout layout_;
};

class BoundaryTierTest : public testing::TestWithParam<bool> {
 protected:
  static TierOptions options() {
    TierOptions options;
    options.model = Sha256().update_text("a model").digest();
    options.limit_bytes = std::int64_t{1} << 40;
    options.hidden = kHidden;
    return options;
  }
  TokenChain chain_of(const BoundaryTier& tier, const Tokens& tokens) const {
    TokenChain chain = tier.chain("somebody");
    chain.extend(tokens);
    return chain;
  }
  /// Of the sequence of those tokens.
  std::unique_ptr<Boundary> boundary(const Tokens& tokens, std::int64_t position) {
    auto memory = SequenceMemory::create(pool_);
    computer_.advance(*memory, tokens, position);
    return SequenceMemory::freeze(std::move(memory));
  }
  void write(BoundaryTier& tier, const Tokens& tokens, const Boundary& boundary) const {
    tier.write(chain_of(tier, tokens), std::span(tokens).first(static_cast<std::size_t>(boundary.position())), boundary, 0);
  }
  void write_and_finish(BoundaryTier& tier, const Tokens& tokens, std::int64_t position) {
    const auto kept = boundary(tokens, position);
    write(tier, tokens, *kept);
    tier.finish();
    tier.forget(*kept);
  }
  std::int64_t find(const BoundaryTier& tier, const Tokens& tokens) const {
    return tier.find(chain_of(tier, tokens), tokens, std::ssize(tokens));
  }
  /// Reads into a sequence that is at `from`; the end of it.
  State read(BoundaryTier& tier, const Tokens& tokens, std::int64_t position, std::unique_ptr<SequenceMemory>& memory,
             std::int64_t from = 0) {
    memory = SequenceMemory::create(pool_);
    if (from > 0) computer_.advance(*memory, tokens, from);
    EXPECT_TRUE(memory->reserve(position));
    std::mutex mutex;
    std::condition_variable told;
    bool done = false;
    const auto reading = tier.read(chain_of(tier, tokens), tokens, position, *memory, [&] {
      const std::lock_guard lock(mutex);
      done = true;
      told.notify_one();
    });
    std::unique_lock lock(mutex);
    EXPECT_TRUE(told.wait_for(lock, std::chrono::minutes(1), [&] { return done; }));
    if (reading->state() == State::Done) memory->arrive(position);
    return reading->state();
  }
  void expect_right(const SequenceMemory& memory, const Tokens& tokens) {
    const auto fresh = SequenceMemory::create(pool_);
    computer_.advance(*fresh, tokens, memory.position());
    EXPECT_TRUE(computer_.bytes(memory) == computer_.bytes(*fresh)) << "at " << memory.position();
  }

  MemoryPool pool_{small_layout(GetParam()), 4000, FreedMemory::Poisoned};
  Computer computer_{pool_.layout()};
};
INSTANTIATE_TEST_SUITE_P(WithAndWithoutMtp, BoundaryTierTest, testing::Bool());

TEST_P(BoundaryTierTest, WhatWasWrittenComesBackFromWhereverOneStands) {
  BoundaryTier tier(std::make_shared<MemoryStore>(), options());
  const Tokens tokens = random_tokens(3000, 1);
  // Inside a run, around the border of a page, of a run, and several runs on.
  for (const std::int64_t position : {64, 65, 700, 1023, 1024, 1025, 2048, 2900}) {
    Tokens path = random_tokens(3000, static_cast<unsigned>(position));
    write_and_finish(tier, path, position);
    EXPECT_EQ(find(tier, path), position);
    for (const std::int64_t from : {std::int64_t{0}, std::int64_t{1}, position / 2, position - 1}) {
      std::unique_ptr<SequenceMemory> memory;
      ASSERT_EQ(read(tier, path, position, memory, from), State::Done) << position << " from " << from;
      expect_right(*memory, path);
      // It goes on as the one that was never away.
      computer_.advance(*memory, path, position + 70);
      expect_right(*memory, path);
    }
  }
  EXPECT_EQ(find(tier, tokens), 0);
}

TEST_P(BoundaryTierTest, TheDeepestPrefixIsFoundAndOthersAreNot) {
  BoundaryTier tier(std::make_shared<MemoryStore>(), options());
  const Tokens tokens = random_tokens(5000, 1);
  for (const std::int64_t position : {500, 1500, 1600, 4096}) write_and_finish(tier, tokens, position);
  const TokenChain chain = chain_of(tier, tokens);
  for (const auto& [limit, expected] : {std::pair(499, 0), {500, 500}, {1499, 500}, {1599, 1500}, {4095, 1600}, {5000, 4096}})
    EXPECT_EQ(tier.find(chain, tokens, limit), expected) << limit;
  Tokens parting = tokens;
  parting[1550] = -1;
  EXPECT_EQ(find(tier, parting), 1500);
  parting[3] = -1;
  EXPECT_EQ(find(tier, parting), 0);
  TokenChain others = tier.chain("somebody else");
  others.extend(tokens);
  EXPECT_EQ(tier.find(others, tokens, 5000), 0);
}

TEST_P(BoundaryTierTest, RunsAreSharedAndWhatHardlySparesIsNotWritten) {
  const auto store = std::make_shared<MemoryStore>();
  BoundaryTier tier(store, options());
  const Tokens tokens = random_tokens(5000, 1);
  write_and_finish(tier, tokens, 3000);
  EXPECT_EQ(store->objects().size(), 3u);  // two runs and the end
  write_and_finish(tier, tokens, 3500);
  EXPECT_EQ(store->objects().size(), 5u);
  write_and_finish(tier, tokens, 3563);  // 63 after the last
  EXPECT_EQ(store->objects().size(), 5u);
  write_and_finish(tier, tokens, 3564);
  EXPECT_EQ(store->objects().size(), 6u);
  EXPECT_EQ(tier.statistics().written, 3);
}

TEST_P(BoundaryTierTest, AnotherProcessFindsThem) {
  const auto store = std::make_shared<MemoryStore>();
  const Tokens tokens = random_tokens(5000, 1);
  {
    BoundaryTier tier(store, options());
    write_and_finish(tier, tokens, 2500);
  }
  BoundaryTier tier(store, options());
  EXPECT_EQ(tier.statistics().boundaries, 1);
  EXPECT_EQ(find(tier, tokens), 2500);
  std::unique_ptr<SequenceMemory> memory;
  ASSERT_EQ(read(tier, tokens, 2500, memory), State::Done);
  expect_right(*memory, tokens);
}

TEST_P(BoundaryTierTest, WhatOneSpaceHasIsToldAndThrownAwayAlone) {
  const auto store = std::make_shared<MemoryStore>();
  const Tokens tokens = random_tokens(2500, 1);
  const auto write_for = [&](BoundaryTier& tier, const std::string& space, std::int64_t position) {
    const auto kept = boundary(tokens, position);
    TokenChain chain = tier.chain(space);
    chain.extend(tokens);
    tier.write(chain, std::span(tokens).first(static_cast<std::size_t>(position)), *kept, 0);
    tier.finish();
    tier.forget(*kept);
  };
  {
    BoundaryTier tier(store, options());
    for (const std::int64_t position : {1100, 2400}) write_for(tier, "one", position);
    write_for(tier, "two", 2400);
  }
  BoundaryTier tier(store, options());  // the spaces are in the objects
  const auto is_one = [](const std::string& space) { return space == "one"; };
  const auto is_two = [](const std::string& space) { return space == "two"; };
  const TierShare one = tier.share(is_one), two = tier.share(is_two);
  EXPECT_EQ(one.boundaries, 2);
  EXPECT_EQ(two.boundaries, 1);
  EXPECT_EQ(one.bytes + two.bytes, tier.statistics().bytes);
  const TierShare gone = tier.clear(is_one);
  EXPECT_EQ(gone.boundaries, 2);
  EXPECT_EQ(gone.bytes, one.bytes);
  EXPECT_EQ(tier.share(is_one).boundaries, 0);
  EXPECT_EQ(tier.share(is_two).bytes, two.bytes);
  EXPECT_EQ(store->objects().size(), 3u);
  EXPECT_THAT(error_of([&] { tier.chain(std::string(161, 'x')); }), testing::HasSubstr("161 characters, expected at most 160"));
}

TEST_P(BoundaryTierTest, WhatIsBeingWrittenWhileItsSpaceIsThrownAwayIsNotThere) {
  const auto store = std::make_shared<MemoryStore>();
  BoundaryTier tier(store, options());
  std::promise<void> begun, go;
  store->fails = [&, is_first = true, going = go.get_future().share()](const char* what) mutable {
    if (std::string_view(what) == "commit" && std::exchange(is_first, false)) {
      begun.set_value();
      going.wait();
    }
    return false;
  };
  const Tokens tokens = random_tokens(500, 1);
  const auto kept = boundary(tokens, 500);
  write(tier, tokens, *kept);
  begun.get_future().wait();
  tier.forget(*kept);
  tier.clear([](const std::string&) { return true; });
  go.set_value();
  tier.finish();
  EXPECT_EQ(find(tier, tokens), 0);
  EXPECT_TRUE(store->objects().empty());
}

/// Rows end where runs do, states where boundaries were taken: neither may be used without the other.
TEST_P(BoundaryTierTest, WhateverObjectsAreMissingTheDeepestWholeBoundaryIsFoundAndRight) {
  const auto store = std::make_shared<MemoryStore>();
  const Tokens tokens = random_tokens(3000, 1);
  const std::vector<std::int64_t> positions = {500, 1500, 2500};
  {
    BoundaryTier tier(store, options());
    for (const std::int64_t position : positions) write_and_finish(tier, tokens, position);
  }
  const auto whole = store->objects();
  ASSERT_EQ(whole.size(), 5u);
  std::vector<MemoryStore::Key> keys;
  std::map<MemoryStore::Key, std::int64_t> number;  // of a run, or position of a boundary
  {
    BoundaryTier tier(store, options());
    const TokenChain chain = chain_of(tier, tokens);
    for (const std::int64_t run : {0, 1}) number[{ObjectKind::Run, chain.run(run + 1)}] = run;
    for (const std::int64_t position : positions) {
      const std::int64_t begin = position / kRunTokens * kRunTokens, length = position - begin;
      const auto names = names_of_ends(chain.run(begin / kRunTokens), std::span(tokens).subspan(static_cast<std::size_t>(begin)),
                                       std::span(&length, 1));
      number[{ObjectKind::End, names.front()}] = position;
    }
    for (const auto& [key, value] : number) keys.push_back(key);
  }
  for (unsigned missing = 0; missing < 1u << keys.size(); ++missing) {
    store->objects() = whole;
    std::set<std::int64_t> runs, ends;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if ((missing >> i & 1) != 0) {
        store->objects().erase(keys[i]);
      } else {
        (keys[i].first == ObjectKind::Run ? runs : ends).insert(number.at(keys[i]));
      }
    }
    BoundaryTier tier(store, options());
    for (const std::int64_t limit : {3000, 2499, 1499}) {
      std::int64_t expected = 0;
      for (const std::int64_t end : ends) {
        bool has_rows = end <= limit;
        for (std::int64_t run = 0; run < end / kRunTokens; ++run) has_rows = has_rows && runs.contains(run);
        if (has_rows) expected = end;
      }
      ASSERT_EQ(tier.find(chain_of(tier, tokens), tokens, limit), expected) << missing << " up to " << limit;
      if (expected == 0) continue;
      std::unique_ptr<SequenceMemory> memory;
      ASSERT_EQ(read(tier, tokens, expected, memory), State::Done) << missing;
      expect_right(*memory, tokens);
    }
    EXPECT_EQ(tier.statistics().refused, 0);
  }
}

TEST_P(BoundaryTierTest, RunsThatMemoryHasAreNotRead) {
  const auto store = std::make_shared<MemoryStore>();
  BoundaryTier tier(store, options());
  const Tokens tokens = random_tokens(4000, 1);
  write_and_finish(tier, tokens, 4000);
  std::atomic<int> opened = 0;
  store->fails = [&](const char* what) {
    opened += std::string_view(what) == "open" ? 1 : 0;
    return false;
  };
  // Three runs and the end; whoever stands in a run needs what is left of it.
  for (const auto& [from, expected] : {std::pair(0, 4), {1023, 4}, {1024, 3}, {2100, 2}, {3072, 1}, {3999, 1}}) {
    opened = 0;
    std::unique_ptr<SequenceMemory> memory;
    ASSERT_EQ(read(tier, tokens, 4000, memory, from), State::Done);
    expect_right(*memory, tokens);
    EXPECT_EQ(opened, expected) << from;
  }
}

TEST_P(BoundaryTierTest, NumbersOfAnotherModelAreNotFoundAndGoWhenTheyAreTheOldest) {
  const auto store = std::make_shared<MemoryStore>();
  const Tokens tokens = random_tokens(2000, 1);
  std::int64_t bytes = 0;
  {
    BoundaryTier tier(store, options());
    write_and_finish(tier, tokens, 2000);
    bytes = tier.statistics().bytes;
  }
  TierOptions other = options();
  other.model = Sha256().update_text("another").digest();
  other.limit_bytes = bytes + bytes / 2;
  BoundaryTier tier(store, other);
  EXPECT_EQ(tier.statistics().boundaries, 1);
  EXPECT_EQ(find(tier, tokens), 0);
  write_and_finish(tier, tokens, 2000);
  EXPECT_EQ(find(tier, tokens), 2000);
  EXPECT_EQ(tier.statistics().boundaries, 1);
  EXPECT_EQ(store->objects().size(), 2u);
}

TEST_P(BoundaryTierTest, TheLimitHoldsAndTheOldestGoesFirst) {
  const auto store = std::make_shared<MemoryStore>();
  const auto path = [](unsigned i) { return random_tokens(1100, i); };
  TierOptions limited = options();
  {
    BoundaryTier tier(store, options());
    write_and_finish(tier, path(0), 1100);
    limited.limit_bytes = 4 * tier.statistics().bytes;
  }
  BoundaryTier tier(store, limited);
  for (unsigned i = 1; i < 4; ++i) write_and_finish(tier, path(i), 1100);
  std::unique_ptr<SequenceMemory> memory;
  ASSERT_EQ(read(tier, path(0), 1100, memory), State::Done);  // used again
  write_and_finish(tier, path(4), 1100);
  EXPECT_EQ(find(tier, path(0)), 1100);
  EXPECT_EQ(find(tier, path(1)), 0);
  EXPECT_EQ(find(tier, path(2)), 1100);
  EXPECT_EQ(tier.statistics().evicted, 1);
  std::int64_t bytes = 0;
  for (const ListedObject& object : store->list()) bytes += object.bytes;
  EXPECT_LE(bytes, limited.limit_bytes);
  EXPECT_EQ(bytes, tier.statistics().bytes);
}

TEST_P(BoundaryTierTest, WhatWasOfUseInMemoryIsNotTheOldestThere) {
  const auto path = [](unsigned i) { return random_tokens(1100, i); };
  const auto store = std::make_shared<MemoryStore>();
  TierOptions limited = options();
  {
    BoundaryTier tier(store, options());
    write_and_finish(tier, path(0), 1100);
    limited.limit_bytes = 2 * tier.statistics().bytes;
  }
  BoundaryTier tier(store, limited);
  write_and_finish(tier, path(1), 1100);
  tier.use(chain_of(tier, path(0)), path(0), 1100);
  write_and_finish(tier, path(2), 1100);
  EXPECT_EQ(find(tier, path(0)), 1100);
  EXPECT_EQ(find(tier, path(1)), 0);
}

TEST_P(BoundaryTierTest, WhatIsLargerThanTheLimitPushesNothingOut) {
  const auto store = std::make_shared<MemoryStore>();
  const Tokens small = random_tokens(1100, 1), large = random_tokens(4000, 2);
  TierOptions limited = options();
  {
    BoundaryTier tier(store, options());
    write_and_finish(tier, small, 1100);
    limited.limit_bytes = 2 * tier.statistics().bytes;
  }
  BoundaryTier tier(store, limited);
  write_and_finish(tier, large, 4000);
  EXPECT_EQ(find(tier, large), 0);
  EXPECT_EQ(find(tier, small), 1100);
  EXPECT_EQ(tier.statistics().evicted, 0);
  EXPECT_EQ(tier.statistics().lost, 1);
}

TEST_P(BoundaryTierTest, WhatIsNotThereAnyMoreIsAMissAndNoDamage) {
  BoundaryTier tier(std::make_shared<MemoryStore>(), options());
  const Tokens tokens = random_tokens(1500, 1);
  for (const std::int64_t position : {500, 1500}) {
    write_and_finish(tier, tokens, position);
    tier.clear([](const std::string&) { return true; });
    std::unique_ptr<SequenceMemory> memory;
    EXPECT_EQ(read(tier, tokens, position, memory), State::Failed);
  }
  EXPECT_EQ(tier.statistics().refused, 0);
  EXPECT_EQ(tier.statistics().last_error, "");
}

TEST_P(BoundaryTierTest, EveryDamagedByteIsSeen) {
  const auto store = std::make_shared<MemoryStore>();
  const Tokens tokens = random_tokens(1200, 1);
  {
    BoundaryTier tier(store, options());
    write_and_finish(tier, tokens, 1200);
  }
  const auto whole = store->objects();
  std::mt19937 random(1);
  const int rounds = long_tests() ? 3000 : 200;
  for (int round = 0; round < rounds; ++round) {
    store->objects() = whole;
    const bool before_start = round % 2 == 0;
    auto tier = std::make_unique<BoundaryTier>(store, options());
    if (before_start) tier.reset();
    auto victim = std::next(store->objects().begin(), static_cast<std::ptrdiff_t>(random() % whole.size()));
    std::vector<std::byte>& bytes = victim->second.bytes;
    switch (random() % 5) {
      case 0: bytes.resize(random() % bytes.size()); break;
      case 1: bytes.push_back(std::byte{0}); break;
      case 2: bytes.clear(); break;
      case 3: {  // swapped with the other
        auto other = std::next(store->objects().begin(), 1 - std::distance(store->objects().begin(), victim));
        std::swap(bytes, other->second.bytes);
        break;
      }
      default: {
        const std::size_t where = round % 3 == 0 ? random() % 328 : random() % bytes.size();  // headers more often
        bytes[where] ^= static_cast<std::byte>(1u << random() % 8);
      }
    }
    if (before_start) tier = std::make_unique<BoundaryTier>(store, options());
    const std::int64_t found = find(*tier, tokens);
    if (!before_start) {
      ASSERT_EQ(found, 1200);
    }
    if (found > 0) {
      std::unique_ptr<SequenceMemory> memory;
      ASSERT_EQ(read(*tier, tokens, found, memory), State::Failed) << round;
      EXPECT_EQ(find(*tier, tokens), 0);
    }
    EXPECT_GE(tier->statistics().refused, 1);
    EXPECT_EQ(store->objects().size(), 0u) << "what cannot be used is removed";
  }
}

/// Reads, writes, forgetting, failures and restarts at random: what is read is right, and the store holds what the index says.
TEST_P(BoundaryTierTest, NothingWrongComesOutOfAStoreThatFails) {
  const int rounds = long_tests() ? 200 : 6;
  std::int64_t done = 0, failed = 0;
  for (int round = 0; round < rounds; ++round) {
    std::mt19937 random(static_cast<unsigned>(round));
    const auto store = std::make_shared<MemoryStore>();
    std::mt19937 luck(static_cast<unsigned>(round) + 1);
    std::atomic<bool> is_lucky = false;
    store->fails = [&, one_in = 20u + 100u * (random() % 3)](const char* what) {
      return !is_lucky && std::string_view(what) != "write" &&
             luck() % one_in == 0;  // a failed write pauses the writer: see the next test
    };
    TierOptions limited = options();
    limited.limit_bytes = 400'000 + static_cast<std::int64_t>(random() % 400'000);
    auto tier = std::make_unique<BoundaryTier>(store, limited);
    std::vector<Tokens> paths;
    for (unsigned i = 0; i < 3; ++i) paths.push_back(random_tokens(2500, i));
    for (unsigned i = 0; i < 2; ++i) {  // branches
      Tokens branch = paths[i];
      const std::size_t fork = random() % branch.size();
      for (std::size_t t = fork; t < branch.size(); ++t) branch[t] = static_cast<std::int32_t>(random() % 1000);
      paths.push_back(branch);
    }
    std::vector<std::unique_ptr<Boundary>> kept;
    for (int step = 0; step < 40; ++step) {
      const Tokens& path = paths[random() % paths.size()];
      const std::int64_t position = 1 + static_cast<std::int64_t>(random() % path.size());
      switch (random() % 6) {
        case 0:
        case 1:
        case 2:
          kept.push_back(boundary(path, position));
          write(*tier, path, *kept.back());
          break;
        case 3:
          if (!kept.empty()) {
            tier->forget(*kept.back());
            kept.pop_back();
          }
          break;
        case 4: {
          const Tokens prompt(path.begin(), path.begin() + position);
          if (random() % 2 == 0) tier->finish();
          const std::int64_t found = find(*tier, prompt);
          if (found == 0) break;
          std::unique_ptr<SequenceMemory> memory;
          if (read(*tier, path, found, memory, found > 10 ? static_cast<std::int64_t>(random()) % found : 0) == State::Done) {
            ++done;
            expect_right(*memory, path);
          } else {
            ++failed;
          }
          break;
        }
        default:
          if (random() % 4 == 0) {
            tier.reset();  // kill -9, as far as the store can tell
            kept.clear();
            is_lucky = true;  // what cannot be read at the start stays in the store, for another start
            tier = std::make_unique<BoundaryTier>(store, limited);
            is_lucky = false;
          }
      }
    }
    for (const auto& boundary : kept) tier->forget(*boundary);
    tier->finish();
    const TierStatistics now = tier->statistics();
    EXPECT_LE(now.bytes, limited.limit_bytes);
    tier.reset();
    std::int64_t bytes = 0;
    for (const ListedObject& object : store->list()) bytes += object.bytes;
    EXPECT_EQ(bytes, now.bytes) << "in the store and in the index";
    EXPECT_EQ(std::ssize(store->objects()), now.objects);
  }
  EXPECT_GT(done, 0);
  EXPECT_GT(failed, 0);
}

TEST_P(BoundaryTierTest, AFullStoreLosesWhatDoesNotFitAndNothingElse) {
  const auto store = std::make_shared<MemoryStore>();
  BoundaryTier tier(store, options());
  const Tokens tokens = random_tokens(3000, 1);
  write_and_finish(tier, tokens, 500);
  std::atomic<int> writes = 0;
  store->fails = [&](const char* what) { return std::string_view(what) == "write" && ++writes > 4; };
  write_and_finish(tier, tokens, 3000);  // the first run is written, the second is not
  EXPECT_EQ(tier.statistics().write_errors, 1);
  EXPECT_EQ(tier.statistics().last_error, "injected: write");
  EXPECT_EQ(find(tier, tokens), 500);
  EXPECT_EQ(store->objects().size(), 1u) << "a run that nobody needs is removed";
}

TEST_P(BoundaryTierTest, WhatCannotBeReadNowIsReadAnotherTime) {
  const auto store = std::make_shared<MemoryStore>();
  BoundaryTier tier(store, options());
  const Tokens tokens = random_tokens(500, 1);
  write_and_finish(tier, tokens, 500);
  std::atomic<bool> failing = true;
  store->fails = [&](const char*) { return failing.load(); };
  std::unique_ptr<SequenceMemory> memory;
  EXPECT_EQ(read(tier, tokens, 500, memory), State::Failed);
  EXPECT_EQ(tier.statistics().read_errors, 1);
  EXPECT_EQ(tier.statistics().refused, 0);
  EXPECT_EQ(find(tier, tokens), 0) << "not for a while";
  failing = false;
  EXPECT_EQ(read(tier, tokens, 500, memory), State::Done);
  expect_right(*memory, tokens);
}

TEST_P(BoundaryTierTest, TheMoreUrgentComesFirst) {
  const auto store = std::make_shared<MemoryStore>();
  std::mutex gate;
  std::unique_lock closed(gate);
  store->fails = [&](const char*) {
    const std::lock_guard wait(gate);
    return false;
  };
  BoundaryTier tier(store, options());
  std::vector<std::unique_ptr<Boundary>> kept;
  std::vector<ObjectName> names;
  for (unsigned i = 0; i < 4; ++i) {
    const Tokens tokens = random_tokens(100, i);
    kept.push_back(boundary(tokens, 100));
    tier.write(chain_of(tier, tokens), tokens, *kept.back(), i == 3 ? 1 : 0);  // the first is under way
  }
  closed.unlock();
  tier.finish();
  std::vector<std::pair<std::int64_t, Digest>> by_time;
  for (const ListedObject& object : store->list()) by_time.emplace_back(object.used, object.name.digest);
  std::ranges::sort(by_time);
  const auto name = [&](unsigned i) {
    const std::int64_t length = 100;
    return names_of_ends(tier.chain("somebody").run(0), random_tokens(100, i), std::span(&length, 1)).front();
  };
  ASSERT_EQ(by_time.size(), 4u);
  EXPECT_EQ(by_time[1].second, name(3));
  EXPECT_EQ(by_time[2].second, name(1));
}

class FileStoreTest : public testing::Test {
 protected:
  const TemporaryFolder folder_;
  std::filesystem::path path() const { return folder_.path() / "cache"; }
  static ObjectName name(const std::string& text) { return {ObjectKind::Run, Sha256().update_text(text).digest()}; }
  static void put(FileStore& store, const ObjectName& name, const std::string& text) {
    const auto writer = store.create(name);
    writer->write(std::as_bytes(std::span(text)));
    writer->commit();
  }
};

TEST_F(FileStoreTest, KeepsObjectsWholeOrNotAtAll) {
  FileStore store(path());
  put(store, name("a"), "one");
  store.create(name("b"))->write(std::as_bytes(std::span("two", 3)));  // never committed
  ASSERT_EQ(store.list().size(), 1u);
  const auto reader = store.open(name("a"));
  EXPECT_EQ(reader->size(), 3);
  std::array<std::byte, 3> bytes{};
  reader->read(bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), "one", 3), 0);
  EXPECT_THAT(error_of([&] { reader->read(std::span(bytes).first(1)); }),
              testing::HasSubstr("ends after 3 bytes, expected 1 more"));
  store.remove(name("a"));
  store.remove(name("a"));
  EXPECT_TRUE(store.list().empty());
  EXPECT_EQ(store.open(name("a")), nullptr);
}

TEST_F(FileStoreTest, ManyWritersAtOnceOverwriteNothing) {
  FileStore store(path());
  const auto text = [](int writer, int i) { return fmt::format("of writer {}, number {}", writer, i); };
  std::vector<std::thread> writers;
  for (int writer = 0; writer < 8; ++writer) {
    writers.emplace_back([&, writer] {
      for (int i = 0; i < 20; ++i) {
        put(store, name(text(writer, i)), text(writer, i));
        put(store, name("of all"), "of all");
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(store.list().size(), 8u * 20 + 1);
  EXPECT_EQ(store.open(name("of all"))->size(), 6);
  for (int writer = 0; writer < 8; ++writer) {
    for (int i = 0; i < 20; ++i) {
      const std::string expected = text(writer, i);
      const auto reader = store.open(name(expected));
      std::string found(static_cast<std::size_t>(reader->size()), ' ');
      reader->read(std::as_writable_bytes(std::span(found)));
      EXPECT_EQ(found, expected);
    }
  }
}

TEST_F(FileStoreTest, IsItsOwnersAlone) {
  FileStore store(path());
  put(store, name("a"), "one");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path())) {
    EXPECT_EQ(entry.status().permissions() & (std::filesystem::perms::group_all | std::filesystem::perms::others_all),
              std::filesystem::perms::none)
        << entry.path();
  }
  EXPECT_EQ(std::filesystem::status(path()).permissions(), std::filesystem::perms::owner_all);
}

TEST_F(FileStoreTest, BelongsToOneProcessAndForgetsWhatADeadOneLeft) {
  {
    FileStore store(path());
    put(store, name("a"), "one");
    EXPECT_THAT(error_of([&] { FileStore second(path()); }), testing::HasSubstr("another process keeps its prefix cache there"));
  }
  std::ofstream(path() / (name("b").digest.hex() + ".run.4711.1.partial")) << "half";
  std::ofstream(path() / "notes.txt") << "somebody's";
  std::ofstream(path() / "thesis.pdf.partial") << "somebody's";
  FileStore store(path());
  EXPECT_EQ(store.list().size(), 1u);
  EXPECT_FALSE(std::filesystem::exists(path() / (name("b").digest.hex() + ".run.4711.1.partial")));
  EXPECT_TRUE(std::filesystem::exists(path() / "notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(path() / "thesis.pdf.partial"));
}

TEST_F(FileStoreTest, WhatIsNoFileIsNoObjectAndHoldsNobodyUp) {
  FileStore store(path());
  ASSERT_EQ(::mkfifo((path() / (name("a").digest.hex() + ".run")).c_str(), 0600), 0);
  std::filesystem::create_directory(path() / (name("b").digest.hex() + ".run"));
  EXPECT_TRUE(store.list().empty());
  EXPECT_EQ(store.open(name("a")), nullptr);
  EXPECT_EQ(store.open(name("b")), nullptr);
  store.expect(name("a"));
}

TEST_F(FileStoreTest, TouchedObjectsAreNewer) {
  FileStore store(path());
  put(store, name("a"), "one");
  std::filesystem::last_write_time(path() / (name("a").digest.hex() + ".run"),
                                   std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  put(store, name("b"), "two");
  const auto used = [&](const std::string& text) {
    for (const ListedObject& object : store.list()) {
      if (object.name == name(text)) return object.used;
    }
    return std::int64_t{0};
  };
  EXPECT_LT(used("a"), used("b"));
  store.touch(name("a"));
  EXPECT_GE(used("a"), used("b"));
}

TEST_F(FileStoreTest, SaysWhatIsWrongWithTheFolder) {
  std::ofstream(folder_.path() / "file") << "x";
  EXPECT_THAT(error_of([&] { FileStore store(folder_.path() / "file"); }),
              testing::HasSubstr("file: found no folder, expected one, or nothing"));
}

}  // namespace
}  // namespace calandra
