// Times what a prefix cache does beside computing, with the memory of a real model and numbers of no meaning: a boundary in memory gone on from, one
// written to a folder, and read back from the system's cache and from the disk.
//   build/release/bench/bench_prefixes CONFIG FOLDER [TOKENS [ROUNDS]]
// CONFIG is a config.json. FOLDER must not be there; what is written to it is removed. Medians.

#include "base/error.h"
#include "base/mapped_file.h"
#include "cache/boundary_tier.h"
#include "cache/file_store.h"
#include "cache/prefix_cache.h"
#include "checkpoint/config.h"
#include "memory/sequence_memory.h"

#include <fmt/format.h>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace calandra {
namespace {

using Clock = std::chrono::steady_clock;

double median_seconds(int rounds, const std::function<void()>& before, const std::function<void()>& timed) {
  std::vector<double> times;
  for (int round = 0; round < rounds; ++round) {
    before();
    const auto start = Clock::now();
    timed();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  std::ranges::sort(times);
  return times[times.size() / 2];
}

/// The next reads of the folder's files come from the disk.
void leave_the_systems_cache(const std::filesystem::path& folder) {
  ::sync();
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

/// All files of the folder, as fast as the system gives them.
void read_through(const std::filesystem::path& folder) {
  std::vector<char> buffer(std::size_t{1} << 20);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL);
    while (::read(file, buffer.data(), buffer.size()) > 0) {
    }
    ::close(file);
  }
}

void time_prefixes(const std::filesystem::path& config_file, const std::filesystem::path& folder, std::int64_t count,
                   int rounds) {
  const Config config = parse_config(read_text_file(config_file), config_file.string());
  const MemoryLayout layout = memory_layout(config, CacheType::BF16, false);
  MemoryPool pool(layout, 3 * layout.sequence_blocks(count) + 2 * layout.fixed_blocks());
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count + 1));
  for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i * 7919 % 100'000);

  auto memory = SequenceMemory::create(pool);
  if (!memory->reserve(count)) fail("not enough memory");
  const std::vector<float> hidden(static_cast<std::size_t>(config.hidden), 1);
  for (const PartToFill& part : memory->rows_to_fill(0, count)) std::memset(part.data, 1, part.size);
  memory->advance(count, hidden);
  const double copy = median_seconds(
      rounds, [] {}, [&] { memory->snapshot(); });

  PrefixCache<TokenKey> cache(pool);
  const auto known = std::span(tokens).first(static_cast<std::size_t>(count));
  cache.store("", TokenKey(known), SequenceMemory::freeze(std::move(memory)), BoundaryKind::End);
  const std::int64_t spare = pool.blocks().num_free();
  const double hit = median_seconds(
      rounds, [] {}, [&] { cache.claim("", TokenKey(tokens), count, spare).make(pool); });
  fmt::print("{} tokens: copy of a state {:.2f} ms, hit in memory {:.2f} ms ({:.1f} times)\n", count, copy * 1e3, hit * 1e3,
             hit / copy);

  TierOptions options;
  options.limit_bytes = std::int64_t{1} << 40;
  options.hidden = config.hidden;
  BoundaryTier tier(std::make_shared<FileStore>(folder), options);
  TokenChain chain = tier.chain("");
  chain.extend(known);
  const auto match = cache.match("", TokenKey(tokens), count);
  const double written = median_seconds(
      1, [] {},
      [&] {
        tier.write(chain, known, *match.boundary, 0);
        tier.finish();
      });
  const auto bytes = static_cast<double>(tier.statistics().bytes);
  const auto read = [&] {
    auto to = SequenceMemory::create(pool);
    if (!to->reserve(count)) fail("not enough memory");
    std::promise<void> done;
    const auto reading = tier.read(chain, known, count, *to, [&] { done.set_value(); });
    done.get_future().wait();
    if (reading->state() != BoundaryReading::State::Done) fail("{}", tier.statistics().last_error);
  };
  const double warm = median_seconds(
      rounds, [] {}, read);
  const double cold = median_seconds(
      rounds, [&] { leave_the_systems_cache(folder); }, read);
  const double disk = median_seconds(
      rounds, [&] { leave_the_systems_cache(folder); }, [&] { read_through(folder); });
  fmt::print("{:.0f} MB: written {:.2f} GB/s, read {:.2f} GB/s warm, {:.2f} GB/s cold; the disk alone {:.2f} GB/s ({:.0f} %)\n",
             bytes / 1e6, bytes / written / 1e9, bytes / warm / 1e9, bytes / cold / 1e9, bytes / disk / 1e9, 100 * disk / cold);
}

}  // namespace
}  // namespace calandra

int main(int argc, char** argv) {
  if (argc < 3 || std::filesystem::exists(argv[2])) {
    fmt::print(stderr, "bench_prefixes CONFIG FOLDER [TOKENS [ROUNDS]]: FOLDER must not be there\n");
    return 2;
  }
  const auto number = [&](int i, long otherwise) { return argc > i ? std::strtol(argv[i], nullptr, 10) : otherwise; };
  try {
    calandra::time_prefixes(argv[1], argv[2], number(3, 32'768), static_cast<int>(number(4, 5)));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  std::filesystem::remove_all(argv[2]);
  return 0;
}
