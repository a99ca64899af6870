#include "cache/boundary_tier.h"

#include "base/error.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>

namespace calandra {
namespace {

// Copied between the pool and the store at a time: stays in a core's cache.
constexpr std::size_t kPieceBytes = std::size_t{256} << 10;

// After the store has failed to write, nothing is written for so long; what it has failed to read is not asked for.
constexpr std::chrono::seconds kPause{10};

constexpr std::size_t kMostExpected = 4096, kMostUsed = 4096;

std::int64_t system_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

template <class Parts>
std::int64_t bytes_of(const Parts& parts) {
  std::size_t bytes = 0;
  for (const auto& part : parts) {
    if constexpr (requires { part.size(); }) {
      bytes += part.size();
    } else {
      bytes += part.size;
    }
  }
  return static_cast<std::int64_t>(bytes);
}

std::span<const std::int32_t> tail_of(std::span<const std::int32_t> tokens, std::int64_t position) {
  const std::int64_t begin = position / kRunTokens * kRunTokens;
  return tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(position - begin));
}

Digest end_name(const TokenChain& chain, std::span<const std::int32_t> tail, std::int64_t position) {
  const std::int64_t length = std::ssize(tail);
  return names_of_ends(chain.run(position / kRunTokens), tail, std::span(&length, 1)).front();
}

}  // namespace

BoundaryReading::State BoundaryReading::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void BoundaryReading::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

BoundaryTier::BoundaryTier(std::shared_ptr<ObjectStore> store, TierOptions options)
    : store_(std::move(store)), options_(std::move(options)), write_buffer_(kPieceBytes), read_buffer_(kPieceBytes) {
  read_index();
  writer_ = std::thread([this] { write_all(); });
  reader_ = std::thread([this] { read_all(); });
}

BoundaryTier::~BoundaryTier() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    const std::lock_guard copy_lock(copy_mutex_);
    source_ = nullptr;  // what is being written is given up
  }
  wake_writer_.notify_all();
  wake_reader_.notify_all();
  writer_.join();
  reader_.join();
}

TokenChain BoundaryTier::chain(const std::string& space) const {
  if (space.size() > kLongestSpace)
    fail("prefix cache: the name of a space has {} characters, expected at most {}", space.size(), kLongestSpace);
  return {space, Sha256().update_text("calandra prefixes").update(options_.model.bytes).update_text(space).digest()};
}

ObjectHeader BoundaryTier::run_header(const TokenChain& chain, std::int64_t run) const {
  ObjectHeader header;
  header.kind = ObjectKind::Run;
  header.model = options_.model;
  header.name = chain.run(run + 1);
  header.parent = chain.run(run);
  header.begin = run * kRunTokens;
  header.end = header.begin + kRunTokens;
  return header;
}

ObjectHeader BoundaryTier::end_header(const TokenChain& chain, std::span<const std::int32_t> tail, std::int64_t position) const {
  ObjectHeader header;
  header.kind = ObjectKind::End;
  header.model = options_.model;
  header.name = end_name(chain, tail, position);
  header.parent = chain.run(position / kRunTokens);
  header.begin = position / kRunTokens * kRunTokens;
  header.end = position;
  std::ranges::copy(chain.space(), header.space.begin());
  return header;
}

// ---- The index.

void BoundaryTier::read_index() {
  Gone gone;
  std::vector<std::pair<ObjectHeader, std::int64_t>> found;
  for (const ListedObject& listed : store_->list()) {
    try {
      const std::unique_ptr<ObjectReader> object = store_->open(listed.name);
      const std::optional<ObjectHeader> header = object ? read_header(*object, listed.name) : std::nullopt;
      if (header) {
        // A clock may have been set back.
        found.emplace_back(*header, std::min(listed.used, system_nanoseconds()));
      } else {
        ++statistics_.refused;
        gone.push_back(listed.name);
      }
    } catch (const Error& error) {  // it may be read another time
      ++statistics_.read_errors;
      note_error(error.what());
    }
  }
  if (statistics_.refused > 0)
    note_error(
        fmt::format("{}: {} objects are damaged or of another format: removed", store_->description(), statistics_.refused));
  // Runs before those that need them.
  std::ranges::sort(found, {}, [](const auto& object) { return std::pair(object.first.kind, object.first.begin); });
  for (const auto& [header, used] : found) add(header, used, 0);
  sweep(gone);
  make_room(0, gone);
  remove(gone);
}

void BoundaryTier::add(const ObjectHeader& header, std::int64_t used, std::int64_t users) {
  const std::int64_t bytes = object_bytes(header.payload);
  statistics_.bytes += bytes;
  if (header.kind == ObjectKind::Run) {
    runs_[header.name] = {header.parent, header.begin, bytes, users};
  } else {
    const auto length = std::ranges::find(header.space, '\0') - header.space.begin();
    ends_[header.name] = {header.parent,
                          header.begin,
                          header.end,
                          bytes,
                          used,
                          std::string(header.space.data(), static_cast<std::size_t>(length)),
                          header.model == options_.model,
                          {}};
    ++tails_[header.parent][header.end - header.begin];
    by_use_.emplace(used, header.name);
  }
  if (const auto parent = runs_.find(header.parent); parent != runs_.end()) ++parent->second.users;
}

void BoundaryTier::drop_end(const Digest& name, Gone& gone) {
  const auto at = ends_.find(name);
  if (at == ends_.end()) return;
  const End end = at->second;
  ends_.erase(at);
  by_use_.erase({end.used, name});
  std::map<std::int64_t, std::int64_t>& lengths = tails_[end.parent];
  if (const auto length = lengths.find(end.end - end.begin); --length->second == 0) lengths.erase(length);
  if (lengths.empty()) tails_.erase(end.parent);
  statistics_.bytes -= end.bytes;
  gone.push_back({ObjectKind::End, name});
  release(end.parent, gone);
}

/// One who needed the run is gone.
void BoundaryTier::release(const Digest& run, Gone& gone) {
  Digest name = run;
  for (auto at = runs_.find(name); at != runs_.end() && --at->second.users == 0; at = runs_.find(name)) {
    gone.push_back({ObjectKind::Run, name});
    statistics_.bytes -= at->second.bytes;
    name = at->second.parent;
    runs_.erase(at);
  }
}

/// Whether the run is there behind which an object begins.
bool BoundaryTier::follows(std::int64_t begin, const Digest& parent) const { return begin == 0 || runs_.contains(parent); }

/// Drops what cannot be used: what has lost a run before it, and runs that nobody needs.
void BoundaryTier::sweep(Gone& gone) {
  std::vector<std::pair<std::int64_t, Digest>> in_order;
  for (const auto& [name, run] : runs_) in_order.emplace_back(run.begin, name);
  std::ranges::sort(in_order);
  for (const auto& [begin, name] : in_order) {
    const auto at = runs_.find(name);
    if (follows(at->second.begin, at->second.parent)) continue;
    gone.push_back({ObjectKind::Run, name});
    statistics_.bytes -= at->second.bytes;
    runs_.erase(at);
  }
  std::vector<Digest> orphans;
  for (const auto& [name, end] : ends_) {
    if (!follows(end.begin, end.parent)) orphans.push_back(name);
  }
  for (const Digest& name : orphans) drop_end(name, gone);
  // From the end: those before lose a user.
  for (auto last = in_order.rbegin(); last != in_order.rend(); ++last) {
    const auto at = runs_.find(last->second);
    if (at == runs_.end() || at->second.users > 0) continue;
    at->second.users = 1;
    release(last->second, gone);
  }
}

/// False if it has gone.
bool BoundaryTier::note_use(const Digest& end) {
  const auto at = ends_.find(end);
  if (at == ends_.end()) return false;
  by_use_.erase({at->second.used, end});
  at->second.used = system_nanoseconds();
  by_use_.emplace(at->second.used, end);
  return true;
}

/// Whether `bytes` more are within the limit, after the oldest boundaries have gone.
bool BoundaryTier::make_room(std::int64_t bytes, Gone& gone) {
  while (statistics_.bytes + bytes > options_.limit_bytes && !by_use_.empty()) {
    ++statistics_.evicted;
    drop_end(Digest(by_use_.begin()->second), gone);
  }
  return statistics_.bytes + bytes <= options_.limit_bytes;
}

void BoundaryTier::remove(const Gone& gone) {
  for (const ObjectName& name : gone) {
    try {
      store_->remove(name);
    } catch (const Error& error) {
      note_error(error.what());
    }
  }
}

/// Of a thread that is not the writer, and has counted itself in removals_ when it took them out of the index.
void BoundaryTier::remove_beside_the_writer(const Gone& gone) {
  remove(gone);
  {
    const std::lock_guard lock(mutex_);
    --removals_;
  }
  removed_.notify_one();
}

/// Not under mutex_. The same again is told once.
void BoundaryTier::note_error(const std::string& what) {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(statistics_.last_error, what) == what) return;
  }
  if (options_.note) options_.note(what);
}

std::int64_t BoundaryTier::find(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t limit) const {
  const std::int64_t most = std::min(limit, std::ssize(tokens));
  const auto now = std::chrono::steady_clock::now();
  const std::lock_guard lock(mutex_);
  for (std::int64_t run = std::min(chain.num_runs(), most / kRunTokens); run >= 0; --run) {
    const auto tails = tails_.find(chain.run(run));
    if (tails == tails_.end()) continue;
    const std::int64_t begin = run * kRunTokens;
    std::vector<std::int64_t> lengths;
    for (const auto& [length, count] : tails->second) {
      if (begin + length <= most) lengths.push_back(length);
    }
    const std::vector<Digest> names = names_of_ends(chain.run(run), tokens.subspan(static_cast<std::size_t>(begin)), lengths);
    for (std::size_t i = names.size(); i-- > 0;) {
      const auto end = ends_.find(names[i]);
      if (end != ends_.end() && end->second.not_before <= now) return begin + lengths[i];
    }
  }
  return 0;
}

bool BoundaryTier::has_near(const Job& job) const {
  std::vector<std::int64_t> lengths;
  const Digest& run = job.chain.run(job.position / kRunTokens);
  const auto tails = tails_.find(run);
  if (tails == tails_.end()) return false;
  const std::int64_t length = std::ssize(job.tail);
  for (auto at = tails->second.upper_bound(length - options_.least_tokens); at != tails->second.end() && at->first <= length;
       ++at)
    lengths.push_back(at->first);
  return std::ranges::any_of(names_of_ends(run, job.tail, lengths), [&](const Digest& name) { return ends_.contains(name); });
}

TierShare BoundaryTier::share(const std::function<bool(const std::string& space)>& meant) const {
  const std::lock_guard lock(mutex_);
  TierShare share;
  std::unordered_map<Digest, std::int64_t, DigestHash> users;  // of runs: those left
  for (const auto& [name, end] : ends_) {
    if (!end.ours || !meant(end.space)) continue;
    ++share.boundaries;
    share.bytes += end.bytes;
    Digest parent = end.parent;
    for (auto run = runs_.find(parent); run != runs_.end(); run = runs_.find(parent)) {
      if (--users.try_emplace(parent, run->second.users).first->second > 0) break;
      share.bytes += run->second.bytes;
      parent = run->second.parent;
    }
  }
  return share;
}

TierShare BoundaryTier::clear(const std::function<bool(const std::string& space)>& meant) {
  TierShare share;
  Gone gone;
  {
    const std::lock_guard lock(mutex_);
    std::vector<Digest> names;
    for (const auto& [name, end] : ends_) {
      if (end.ours && meant(end.space)) names.push_back(name);
    }
    written_in_vain_ = written_in_vain_ || (writing_ && meant(space_written_));
    share.boundaries = std::ssize(names);
    share.bytes = statistics_.bytes;
    for (const Digest& name : names) drop_end(name, gone);
    share.bytes -= statistics_.bytes;
    ++removals_;
  }
  remove_beside_the_writer(gone);
  return share;
}

TierStatistics BoundaryTier::statistics() const {
  const std::lock_guard lock(mutex_);
  TierStatistics now = statistics_;
  now.boundaries = std::ssize(ends_);
  now.objects = std::ssize(ends_) + std::ssize(runs_);
  now.waiting = std::ssize(jobs_) + (writing_ ? 1 : 0);
  return now;
}

// ---- Writing.

void BoundaryTier::write(const TokenChain& chain, std::span<const std::int32_t> tokens, const Boundary& boundary, int urgency) {
  {
    const std::lock_guard lock(mutex_);
    const auto tail = tail_of(tokens, boundary.position());
    Job job{&boundary, boundary.position(), chain, {tail.begin(), tail.end()}};
    const Turn turn(-urgency, ++last_job_);
    turns_[&boundary] = turn;
    jobs_.emplace(turn, std::move(job));
  }
  wake_writer_.notify_one();
}

void BoundaryTier::forget(const Boundary& boundary) {
  const std::lock_guard lock(mutex_);
  if (const auto turn = turns_.find(&boundary); turn != turns_.end()) {
    jobs_.erase(turn->second);
    turns_.erase(turn);
    ++statistics_.lost;
  }
  const std::lock_guard copy_lock(copy_mutex_);
  if (source_ == &boundary) source_ = nullptr;
}

void BoundaryTier::finish(std::chrono::seconds limit) {
  std::unique_lock lock(mutex_);
  failed_ = false;  // what has failed before may be over
  wake_writer_.notify_all();
  written_.wait_for(lock, limit, [&] { return failed_ || (jobs_.empty() && !writing_); });
}

void BoundaryTier::write_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_writer_.wait(lock, [&] { return stopping_ || !jobs_.empty(); });
    if (stopping_) return;
    const Job job = std::move(jobs_.begin()->second);
    jobs_.erase(jobs_.begin());
    turns_.erase(job.boundary);
    writing_ = true;
    space_written_ = job.chain.space();
    written_in_vain_ = false;
    {
      const std::lock_guard copy_lock(copy_mutex_);
      source_ = job.boundary;
    }
    lock.unlock();
    std::optional<std::string> error;
    try {
      write(job);
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    {
      const std::lock_guard copy_lock(copy_mutex_);
      source_ = nullptr;
    }
    lock.lock();
    writing_ = false;
    const bool failed_before = std::exchange(failed_, error.has_value());
    if (failed_) {
      ++statistics_.write_errors;
      ++statistics_.lost;
      statistics_.last_error = *error;
      if (!failed_before && options_.note) {  // told once, however long it lasts
        lock.unlock();
        options_.note(*error);
        lock.lock();
      }
    }
    written_.notify_all();
    if (failed_) wake_writer_.wait_for(lock, kPause, [&] { return stopping_ || !failed_; });
  }
}

void BoundaryTier::write(const Job& job) {
  const std::int64_t runs = job.position / kRunTokens;
  const ObjectHeader end = end_header(job.chain, job.tail, job.position);
  std::vector<std::int64_t> missing;
  Gone gone;
  const std::optional<std::int64_t> path_bytes = bytes_with_path();
  // Whatever is there of its path stays until this is done.
  {
    std::unique_lock lock(mutex_);
    // What is out of the index and not yet out of the store would be removed after it was written again.
    removed_.wait(lock, [&] { return removals_ == 0; });
    if (has_near(job)) return;
    // Everything else would go for one that does not fit in the end.
    if (path_bytes > options_.limit_bytes) {
      ++statistics_.lost;
      return;
    }
    for (std::int64_t run = 0; run < runs; ++run) {
      const auto at = runs_.find(job.chain.run(run + 1));
      if (at == runs_.end()) {
        missing.push_back(run);
      } else {
        ++at->second.users;
      }
    }
  }
  std::size_t written = 0;  // of the missing ones
  const auto let_go = [&] {
    const std::lock_guard lock(mutex_);
    const std::span<const std::int64_t> not_written = std::span(missing).subspan(written);
    for (std::int64_t run = runs - 1; run >= 0; --run) {
      if (!std::ranges::binary_search(not_written, run)) release(job.chain.run(run + 1), gone);
    }
  };
  try {
    bool whole = true;
    while (whole && written < missing.size()) {
      const std::int64_t run = missing[written];
      whole = write_object(run_header(job.chain, run),
                           [&](const Boundary& boundary) { return boundary.rows(run * kRunTokens, (run + 1) * kRunTokens); });
      if (whole) ++written;
    }
    whole = whole && write_object(end, [&](const Boundary& boundary) {
              StoredParts parts = boundary.rows(runs * kRunTokens, job.position);
              std::ranges::copy(boundary.fixed(), std::back_inserter(parts));
              return parts;
            });
    const std::lock_guard lock(mutex_);
    ++(whole ? statistics_.written : statistics_.lost);
  } catch (...) {
    let_go();
    remove(gone);
    throw;
  }
  let_go();
  remove(gone);
}

/// Of all objects that the boundary being written needs; nothing if it has gone.
std::optional<std::int64_t> BoundaryTier::bytes_with_path() {
  const std::lock_guard lock(copy_mutex_);
  if (source_ == nullptr) return std::nullopt;
  const std::int64_t position = source_->position();
  return bytes_of(source_->rows(0, position)) + bytes_of(source_->fixed()) + (position / kRunTokens + 1) * object_bytes(0);
}

/// False if there is no room for it, or the boundary has gone, or a run before it.
bool BoundaryTier::write_object(ObjectHeader header, const std::function<StoredParts(const Boundary&)>& parts_of) {
  StoredParts parts;
  {
    const std::lock_guard lock(copy_mutex_);
    if (source_ == nullptr) return false;
    parts = parts_of(*source_);
  }
  header.payload = bytes_of(parts);
  Gone gone;
  bool fits = false;
  {
    const std::lock_guard lock(mutex_);
    fits = make_room(object_bytes(header.payload), gone);
  }
  remove(gone);
  if (!fits) return false;

  StoredObjectWriter writer(*store_, header);
  auto part = parts.begin();
  std::size_t taken = 0;  // of the part
  while (part != parts.end()) {
    std::size_t filled = 0;
    {
      const std::lock_guard lock(copy_mutex_);
      if (source_ == nullptr) return false;
      while (part != parts.end() && filled < kPieceBytes) {
        const std::size_t count = std::min(part->size() - taken, kPieceBytes - filled);
        std::memcpy(write_buffer_.data() + filled, part->data() + taken, count);
        filled += count;
        taken += count;
        if (taken < part->size()) continue;
        ++part;
        taken = 0;
      }
    }
    writer.write(std::span(write_buffer_).first(filled));
  }
  writer.commit();
  {
    const std::lock_guard lock(mutex_);
    if (!written_in_vain_ && follows(header.begin, header.parent)) {
      add(header, system_nanoseconds(), 1);
      statistics_.written_bytes += object_bytes(header.payload);
      return true;
    }
  }
  remove({header.object()});
  return false;
}

// ---- Reading.

void BoundaryTier::expect(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t position) {
  {
    const std::lock_guard lock(mutex_);
    if (expected_.size() > kMostExpected) return;  // the disk is far behind: whatever comes of it comes too late
    for (std::int64_t run = 0; run < position / kRunTokens; ++run) expected_.push_back(run_header(chain, run).object());
    expected_.push_back(end_header(chain, tail_of(tokens, position), position).object());
  }
  wake_reader_.notify_one();
}

void BoundaryTier::use(const TokenChain& chain, std::span<const std::int32_t> tokens, std::int64_t position) {
  const ObjectName end{ObjectKind::End, end_name(chain, tail_of(tokens, position), position)};
  {
    const std::lock_guard lock(mutex_);
    if (!note_use(end.digest) || used_.size() > kMostUsed) return;
    used_.push_back(end);
  }
  wake_reader_.notify_one();
}

std::shared_ptr<BoundaryReading> BoundaryTier::read(const TokenChain& chain, std::span<const std::int32_t> tokens,
                                                    std::int64_t position, SequenceMemory& memory, std::function<void()> done) {
  auto reading = std::make_shared<BoundaryReading>();
  reading->done_ = std::move(done);
  const auto add = [&](ObjectHeader header, PartsToFill parts) {
    header.payload = bytes_of(parts);
    reading->objects_.push_back({header, std::move(parts)});
  };
  for (std::int64_t run = memory.position() / kRunTokens; run < position / kRunTokens; ++run)
    add(run_header(chain, run), memory.rows_to_fill(run * kRunTokens, (run + 1) * kRunTokens));
  const ObjectHeader end = end_header(chain, tail_of(tokens, position), position);
  PartsToFill parts = memory.rows_to_fill(end.begin, position);
  std::ranges::copy(memory.fixed_to_fill(options_.hidden), std::back_inserter(parts));
  add(end, std::move(parts));
  {
    const std::lock_guard lock(mutex_);
    readings_.push_back(reading);
  }
  wake_reader_.notify_one();
  return reading;
}

void BoundaryTier::read_all() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_reader_.wait(lock, [&] { return stopping_ || !readings_.empty() || !expected_.empty() || !used_.empty(); });
    if (stopping_) return;
    if (readings_.empty()) {
      const bool is_expected = !expected_.empty();
      std::deque<ObjectName>& names = is_expected ? expected_ : used_;
      const ObjectName name = names.front();
      names.pop_front();
      lock.unlock();
      if (is_expected) {
        store_->expect(name);
      } else {
        touch(name);
      }
      lock.lock();
      continue;
    }
    const std::shared_ptr<BoundaryReading> reading = std::move(readings_.front());
    readings_.pop_front();
    lock.unlock();
    const bool done = read(*reading);
    {
      const std::lock_guard reading_lock(reading->mutex_);
      reading->state_ = done ? BoundaryReading::State::Done : BoundaryReading::State::Failed;
    }
    reading->done_();
    lock.lock();
  }
}

/// False if an object is not what it should be, which drops it and all that need it, or nobody waits any more.
bool BoundaryTier::read(BoundaryReading& reading) {
  std::int64_t bytes = 0;
  for (const BoundaryReading::Part& object : reading.objects_) {
    try {
      StoredObjectReader reader(*store_, object.expected);
      for (const PartToFill& part : object.parts) {
        for (std::size_t taken = 0; taken < part.size;) {
          const std::span<std::byte> piece = std::span(read_buffer_).first(std::min(kPieceBytes, part.size - taken));
          reader.read(piece);
          const std::lock_guard lock(reading.mutex_);
          if (reading.cancelled_) return false;
          if (part.data != nullptr) std::memcpy(part.data + taken, piece.data(), piece.size());
          taken += piece.size();
        }
      }
      reader.check();
      bytes += object_bytes(object.expected.payload);
    } catch (const DamagedObject& error) {
      Gone gone;
      bool is_known = false;  // or it has gone meanwhile, for the limit or with its space
      {
        const std::lock_guard lock(mutex_);
        const ObjectName name = object.expected.object();
        is_known = name.kind == ObjectKind::End ? ends_.contains(name.digest) : runs_.contains(name.digest);
        if (is_known) ++statistics_.refused;
        if (const auto run = runs_.find(name.digest); run != runs_.end()) {
          statistics_.bytes -= run->second.bytes;
          gone.push_back(name);
          runs_.erase(run);
          release(object.expected.parent, gone);
          sweep(gone);
        }
        drop_end(reading.objects_.back().expected.name, gone);
        ++removals_;
      }
      remove_beside_the_writer(gone);
      if (is_known) note_error(error.what());
      return false;
    } catch (const std::exception& error) {  // it may be read another time
      {
        const std::lock_guard lock(mutex_);
        ++statistics_.read_errors;
        const auto end = ends_.find(reading.objects_.back().expected.name);
        if (end != ends_.end()) end->second.not_before = std::chrono::steady_clock::now() + kPause;
      }
      note_error(error.what());
      return false;
    }
  }
  const ObjectHeader& end = reading.objects_.back().expected;
  touch(end.object());
  const std::lock_guard lock(mutex_);
  ++statistics_.read;
  statistics_.read_bytes += bytes;
  note_use(end.name);
  return true;
}

void BoundaryTier::touch(const ObjectName& end) {
  try {
    store_->touch(end);
  } catch (const Error&) {  // evicted meanwhile
  }
}

}  // namespace calandra
