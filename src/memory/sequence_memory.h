#pragma once
// The memory of one sequence. Its position n is one number: KDA states, convolution tails and latents are those after n
// tokens; the MTP layer's latents are at n - 1, because its row i needs token i + 1. Some of these rows may be put off; none is when a
// boundary is made. Row n - 1 is there, too, where a draft has been made from token n. Only the forward pass writes all this and moves the
// position, and who fills it with what a boundary has kept. Rows past the position may hold what was not accepted; they are written before
// they are read. Memory comes from the pool and goes back when the object dies.

#include "memory/pool.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace calandra {

class SequenceMemory;

/// Rows of the MTP layer that a sequence may put off: together they cost little more than one.
inline constexpr std::int64_t kMostMtpRowsPutOff = 32;

/// Bytes of a sequence in an order that is the same for all of one layout, wherever they lie.
using StoredParts = std::vector<std::span<const std::byte>>;

/// Where such bytes go; nowhere if `data` is null.
struct PartToFill {
  std::byte* data = nullptr;
  std::size_t size = 0;
};
using PartsToFill = std::vector<PartToFill>;

/// What does not grow with a sequence: KDA states, then convolution tails.
class FixedMemory {
 public:
  explicit FixedMemory(MemoryPool& pool) : layout_(&pool.layout()), blocks_(pool.blocks()) {}

  std::int64_t size() const { return blocks_.size(); }  // blocks
  /// Takes the blocks; false if the pool has too few.
  bool allocate() { return blocks_.grow(layout_->fixed_blocks()); }
  void clear();
  void copy(const FixedMemory& from);

  /// State of one head, [D, D], rows are key channels.
  std::span<float> state(std::int64_t kda_index, std::int64_t head);
  /// Last three inputs of the convolutions: [3 streams][3 inputs, oldest first][P] values of the cache's type.
  std::byte* tails(std::int64_t kda_index) const;

  /// visit(std::byte* data, bytes) of states, then tails: all that is ever written, in order.
  template <class Visit>
  void for_each_part(const Visit& visit) const {
    for (std::int64_t layer = 0; layer < layout_->kda_layers; ++layer) visit(blocks_[layer], layout_->state_floats * 4);
    for (std::int64_t layer = 0; layer < layout_->kda_layers; ++layer) visit(tails(layer), layout_->tail_bytes);
  }

 private:
  const MemoryLayout* layout_;
  BlockList blocks_;
};

/// An immutable copy of a sequence at one position: the only thing to resume from. States and tails are copied, latent
/// pages are shared with the sequence: it only ever writes rows at its own position and later.
class Boundary {
 public:
  std::int64_t position() const { return position_; }

  /// Blocks that it holds, also where others share them.
  std::int64_t held_blocks() const;
  /// Blocks that a sequence may hold at most beyond MemoryLayout::sequence_blocks() if it resumes here: its pages lie where those of
  /// several sequences were made.
  std::int64_t scattered_blocks() const;

  // ---- To be kept elsewhere. Valid as long as the boundary; safe to read while sequences go on from it.
  /// Rows [begin, end) of every main layer, then [begin - 1, end - 1) of the MTP layer: what tokens [begin, end) have added.
  StoredParts rows(std::int64_t begin, std::int64_t end) const;
  /// All else: states, tails, the hidden row.
  StoredParts fixed() const;

  // ---- For the forward pass that goes by, as those of SequenceMemory.
  std::span<float> state(std::int64_t kda_index, std::int64_t head) { return fixed_.state(kda_index, head); }
  std::byte* tails(std::int64_t kda_index) { return fixed_.tails(kda_index); }
  void set_hidden(std::span<const float> hidden) { hidden_.assign(hidden.begin(), hidden.end()); }

 private:
  friend class SequenceMemory;
  explicit Boundary(MemoryPool& pool);
  /// The pages up to the position.
  void share_pages(PageList latents, PageList mtp_latents);

  const MemoryLayout& layout_;
  std::int64_t position_ = 0;
  FixedMemory fixed_;
  PageList latents_;
  PageList mtp_latents_;
  std::vector<float> hidden_;  // [h] final-norm row of token n - 1; empty at position 0
};

/// What a resumed sequence does with the whole pages of its boundary.
enum class BoundaryPages : std::uint8_t {
  Shared,
  Copied,  // the memory of a sequence that met nobody before: for measurements, where shared rows would stay in a cache
};

/// One sequence's rows of one MLA layer.
struct LatentCache {
  LatentRows rows;                    // for reading
  std::span<std::byte* const> pages;  // for writing: the same pages
  std::int64_t row_bytes = 0;
  std::byte* row(std::int64_t position) const {
    return pages[static_cast<std::size_t>(position / rows.page_tokens)] + position % rows.page_tokens * row_bytes;
  }
};

class SequenceMemory {
 public:
  /// An empty sequence, all states and tails zero; nothing if the pool is dry.
  static std::unique_ptr<SequenceMemory> create(MemoryPool& pool);
  /// A sequence that goes on from `boundary`; nothing if the pool is dry.
  static std::unique_ptr<SequenceMemory> resume(MemoryPool& pool, const Boundary& boundary,
                                                BoundaryPages pages = BoundaryPages::Shared);
  SequenceMemory(const SequenceMemory&) = delete;
  SequenceMemory& operator=(const SequenceMemory&) = delete;

  const MemoryLayout& layout() const { return pool_.layout(); }
  std::int64_t position() const { return position_; }

  /// Room for tokens up to position `end`; false and unchanged if the pool is dry.
  [[nodiscard]] bool reserve(std::int64_t end);

  /// A copy of this moment; nothing if the pool is dry.
  std::unique_ptr<Boundary> snapshot() const;
  /// The sequence as a boundary at its position, for whoever goes on from here. Copies nothing.
  static std::unique_ptr<Boundary> freeze(std::unique_ptr<SequenceMemory> memory);
  /// What resume() makes, of a boundary that nobody needs any more: takes no block but for a page that others share.
  static std::unique_ptr<SequenceMemory> thaw(MemoryPool& pool, std::unique_ptr<Boundary> boundary);
  /// The copy of a moment to come, at `position`, up to which there is room: the pass that goes by fills it. Nothing if the pool is dry.
  std::unique_ptr<Boundary> boundary_ahead(std::int64_t position) const;

  // ---- To be brought to a later position `position`, up to which there is room, by what a Boundary of these tokens has kept: the parts of
  // all rows up to there, and of all else, are filled, then arrive() is called. If not all can be filled, the sequence is lost.
  /// As Boundary::rows(); those before position() are not written.
  PartsToFill rows_to_fill(std::int64_t begin, std::int64_t end);
  /// As Boundary::fixed(), with a hidden row of that many numbers.
  PartsToFill fixed_to_fill(std::int64_t hidden);
  void arrive(std::int64_t position);

  // ---- For the forward pass. `kda_index` and `mla_index` count layers of their own kind.

  std::span<float> state(std::int64_t kda_index, std::int64_t head) { return fixed_.state(kda_index, head); }
  std::byte* tails(std::int64_t kda_index) { return fixed_.tails(kda_index); }
  /// Rows of main layer `mla_index`, or of the MTP layer. Valid until the next reserve().
  LatentCache latents(std::int64_t mla_index);
  LatentCache mtp_latents();
  /// Final-norm row [h] of token n - 1, from which the MTP layer's next row is made.
  std::span<const float> last_hidden() const { return hidden_; }
  /// All layers have taken `count` more tokens, the last of which has the final-norm row `hidden` [h].
  void advance(std::int64_t count, std::span<const float> hidden);
  /// The MTP layer's row n - 1 has been made, with `next` as token n.
  void note_mtp_row(std::int32_t next) { mtp_row_token_ = next; }
  bool has_mtp_row(std::int32_t next) const { return mtp_row_token_ == next; }
  /// The row behind those that are put off is put off, too: it is to be made from `hidden` [h] and the token after it.
  void put_off_mtp_row(std::span<const float> hidden, std::int32_t next);
  /// Of the rows [n - 1 - k, n - 1) that are put off: the tokens after them [k], and their hidden rows [k, h].
  std::span<const std::int32_t> mtp_tokens_put_off() const { return put_off_tokens_; }
  std::span<const float> mtp_hidden_put_off() const { return put_off_hidden_; }
  /// They have been made.
  void clear_mtp_put_off();

 private:
  explicit SequenceMemory(MemoryPool& pool);
  bool own_pages(BoundaryPages mode);
  void check_nothing_put_off() const;
  LatentCache cache(std::vector<std::vector<std::byte*>>& pages_by_layer, std::size_t layer) const;
  bool grow(PageList& pages, std::int64_t count, std::vector<std::vector<std::byte*>>& pages_by_layer);
  void index_page(const PageList& pages, std::int64_t page, std::vector<std::vector<std::byte*>>& pages_by_layer) const;

  MemoryPool& pool_;
  std::int64_t position_ = 0;
  FixedMemory fixed_;
  PageList latents_;
  PageList mtp_latents_;
  std::vector<float> hidden_;
  std::vector<std::int32_t> put_off_tokens_;
  std::vector<float> put_off_hidden_;
  std::optional<std::int32_t> mtp_row_token_;  // with which the MTP layer's row n - 1 was made, if it was
  // Start of every page's rows, by layer: what the attention kernel walks.
  std::vector<std::vector<std::byte*>> latent_pages_;
  std::vector<std::vector<std::byte*>> mtp_pages_;
};

}  // namespace calandra
