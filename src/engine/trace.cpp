#include "engine/trace.h"

#include "base/error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace calandra {
namespace {

template <class T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span(values));
}

template <class T>
constexpr ElementType kTypeOf = std::is_same_v<T, float>          ? ElementType::F32
                                : std::is_same_v<T, std::int32_t> ? ElementType::I32
                                                                  : ElementType::I64;

template <class T>
void put(Trace& trace, const std::string& name, Shape shape, const std::vector<T>& values) {
  const auto bytes = bytes_of(values);
  trace.tensors[name] = {kTypeOf<T>, std::move(shape), {bytes.begin(), bytes.end()}};
}

/// Rows that come in pieces.
struct Collected {
  std::vector<float> values;
  std::int64_t cols = 0;
  void add(ConstRows x) {
    cols = x.cols;
    for (std::int64_t r = 0; r < x.rows; ++r) values.insert(values.end(), x.row(r), x.row(r) + x.cols);
  }
  std::int64_t rows() const { return cols == 0 ? 0 : static_cast<std::int64_t>(values.size()) / cols; }
};

class Recorder : public Observer {
 public:
  struct Routing {
    std::vector<std::int32_t> ids;
    std::vector<float> weights;
  };
  void block_output(std::int64_t layer, ConstRows x) override { blocks[layer].add(x); }
  void routed(std::int64_t layer, std::int64_t, std::span<const std::int32_t> experts, std::span<const float> weights) override {
    Routing& r = routing[layer];
    r.ids.insert(r.ids.end(), experts.begin(), experts.end());
    r.weights.insert(r.weights.end(), weights.begin(), weights.end());
  }
  void mtp_output(ConstRows u) override { mtp.add(u); }

  std::map<std::int64_t, Collected> blocks;
  std::map<std::int64_t, Routing> routing;
  Collected mtp;
};

class Tracer {
 public:
  Tracer(Model& model, const TraceOptions& options)
      : model_(model),
        options_(options),
        config_(model.config()),
        length_(static_cast<std::int64_t>(options.ids.size())),
        pool_(model.layout(), model.layout().sequence_blocks(length_ + options.greedy + options.drafts + 1)),
        memory_(SequenceMemory::create(pool_)) {
    const std::int64_t end = length_ + options.greedy + options.drafts + 1;
    if (!memory_->reserve(end)) fail("memory pool is full at {} tokens", end);
  }

  Trace run() {
    prompt();
    if (model_.forward().with_mtp()) {
      last_mtp_row();
      drafts();
    }
    dump_prompt();
    continuation();
    return std::move(trace_);
  }

 private:
  static std::int32_t argmax(const float* row, std::int64_t count) {
    return static_cast<std::int32_t>(std::max_element(row, row + count) - row);
  }

  void feed(std::span<const std::int32_t> tokens, Observer* observer) {
    const Slice slice{memory_.get(), tokens};
    const ConstRows rows = model_.forward().run(std::span(&slice, 1), observer);
    hidden_.assign(rows.row(0), rows.row(0) + rows.rows * rows.cols);
  }

  ConstRows hidden() const {
    return {hidden_.data(), static_cast<std::int64_t>(hidden_.size()) / config_.hidden, config_.hidden, config_.hidden};
  }

  void add_logits(ConstRows rows, Collected& out) {
    std::vector<float> values(static_cast<std::size_t>(rows.rows * config_.vocab));
    const Rows logits{values.data(), rows.rows, config_.vocab, config_.vocab};
    model_.forward().head(rows, logits);
    out.add(logits);
  }

  void prompt() {
    std::vector<std::int64_t> ends = options_.splits;
    ends.push_back(length_);
    for (const std::int64_t end : ends) {
      const std::int64_t begin = memory_->position();
      feed(std::span(options_.ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)), &recorder_);
      final_norm_.add(hidden());
      add_logits(hidden(), logits_);
      dump_states(end);
    }
    next_ = argmax(logits_.values.data() + (length_ - 1) * config_.vocab, model_.num_samplable());
  }

  /// The MTP row of the prompt's last token needs the token after it.
  void last_mtp_row() { recorder_.mtp_output(mtp_row(length_ - 1, last_hidden(), next_, &recorder_)); }

  ConstRows mtp_row(std::int64_t position, ConstRows hidden, std::int32_t next, Observer* observer = nullptr) {
    const MtpSlice slice{memory_.get(), position, std::span(&next, 1)};
    return model_.forward().mtp(std::span(&slice, 1), hidden, observer);
  }

  ConstRows last_hidden() const {
    const std::span<const float> row = memory_->last_hidden();
    return {row.data(), 1, config_.hidden, config_.hidden};
  }

  /// Each further draft is fed with the MTP row before it.
  void drafts() {
    std::vector<float> u(recorder_.mtp.values.end() - config_.hidden, recorder_.mtp.values.end());
    for (int n = 0; n < options_.drafts; ++n) {
      const ConstRows row{u.data(), 1, config_.hidden, config_.hidden};
      Collected logits;
      add_logits(row, logits);
      trace_.draft_ids.push_back(argmax(logits.values.data(), model_.num_samplable()));
      if (n + 1 == options_.drafts) break;
      const ConstRows next = mtp_row(length_ + n, row, trace_.draft_ids.back());
      u.assign(next.row(0), next.row(0) + next.cols);
    }
  }

  void continuation() {
    if (options_.greedy == 0) return;
    Collected greedy, mtp_greedy;
    greedy.add({logits_.values.data() + (length_ - 1) * config_.vocab, 1, config_.vocab, config_.vocab});
    trace_.greedy_ids.push_back(next_);
    for (std::int64_t n = 1; n < options_.greedy; ++n) {
      feed(std::span(&trace_.greedy_ids.back(), 1), nullptr);
      add_logits(hidden(), greedy);
      trace_.greedy_ids.push_back(argmax(greedy.values.data() + n * config_.vocab, model_.num_samplable()));
      if (!model_.forward().with_mtp()) continue;
      const ConstRows u = mtp_row(memory_->position() - 1, last_hidden(), trace_.greedy_ids.back());
      add_logits(u, mtp_greedy);
    }
    put(trace_, "greedy_logits", {options_.greedy, config_.vocab}, greedy.values);
    put(trace_, "greedy_ids", {options_.greedy}, std::vector<std::int64_t>(trace_.greedy_ids.begin(), trace_.greedy_ids.end()));
    if (mtp_greedy.rows() > 0) put(trace_, "mtp.greedy_logits", {mtp_greedy.rows(), config_.vocab}, mtp_greedy.values);
  }

  void dump_states(std::int64_t position) {
    const MemoryLayout& layout = memory_->layout();
    const std::int64_t dim = config_.head_dim, width = config_.kda_width(), inputs = config_.conv_taps - 1;
    std::int64_t index = 0;
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      if (config_.is_mla(layer)) continue;
      std::vector<float> state;
      for (std::int64_t head = 0; head < config_.heads; ++head) {
        const auto values = memory_->state(index, head);
        state.insert(state.end(), values.begin(), values.end());
      }
      put(trace_, fmt::format("kda.{}.state@{}", layer, position), {config_.heads, dim, dim}, state);
      std::vector<float> tails(static_cast<std::size_t>(layout.tail_values));
      model_.compute().kernels().load_cache(memory_->tails(index), layout.types.tails, tails);
      for (std::int64_t stream = 0; stream < 3; ++stream) {
        std::vector<float> by_channel;
        for (std::int64_t c = 0; c < width; ++c) {
          for (std::int64_t i = 0; i < inputs; ++i)
            by_channel.push_back(tails[static_cast<std::size_t>((stream * inputs + i) * width + c)]);
        }
        put(trace_, fmt::format("kda.{}.conv_{}@{}", layer, "qkv"[stream], position), {width, inputs}, by_channel);
      }
      ++index;
    }
  }

  std::vector<float> rows_of(const LatentCache& cache) const {
    std::vector<float> values(static_cast<std::size_t>(length_ * config_.latent_row()));
    const auto width = static_cast<std::size_t>(config_.latent_row());
    for (std::int64_t t = 0; t < length_; ++t) {
      model_.compute().kernels().load_cache(cache.row(t), cache.rows.type,
                                            std::span(values).subspan(static_cast<std::size_t>(t) * width, width));
    }
    return values;
  }

  void dump_prompt() {
    put(trace_, "input_ids", {length_}, std::vector<std::int64_t>(options_.ids.begin(), options_.ids.end()));
    put(trace_, "logits", {length_, config_.vocab}, logits_.values);
    put(trace_, "hidden.final_norm", {length_, config_.hidden}, final_norm_.values);
    for (const auto& [layer, x] : recorder_.blocks) {
      if (layer < config_.layers) put(trace_, fmt::format("hidden.{}", layer), {length_, config_.hidden}, x.values);
    }
    for (const auto& [layer, routing] : recorder_.routing) {
      const std::string name = layer < config_.layers ? fmt::format("router.{}", layer) : "mtp.router";
      put(trace_, name + ".ids", {length_, config_.top_k}, routing.ids);
      put(trace_, name + ".weights", {length_, config_.top_k}, routing.weights);
    }
    std::int64_t index = 0;
    for (std::int64_t layer = 0; layer < config_.layers; ++layer) {
      if (config_.is_mla(layer))
        put(trace_, fmt::format("mla.{}.cache", layer), {length_, config_.latent_row()}, rows_of(memory_->latents(index++)));
    }
    if (!model_.forward().with_mtp()) return;
    std::vector<std::int64_t> next(options_.ids.begin() + 1, options_.ids.end());
    next.push_back(next_);
    put(trace_, "mtp.next_ids", {length_}, next);
    put(trace_, "mtp.hidden", {length_, config_.hidden}, recorder_.mtp.values);
    put(trace_, "mtp.cache", {length_, config_.latent_row()}, rows_of(memory_->mtp_latents()));
    Collected logits;
    add_logits({recorder_.mtp.values.data(), length_, config_.hidden, config_.hidden}, logits);
    put(trace_, "mtp.logits", {length_, config_.vocab}, logits.values);
  }

  Model& model_;
  const TraceOptions& options_;
  const Config& config_;
  std::int64_t length_;
  MemoryPool pool_;
  std::unique_ptr<SequenceMemory> memory_;
  Recorder recorder_;
  std::vector<float> hidden_;
  Collected final_norm_, logits_;
  std::int32_t next_ = 0;  // largest logit after the prompt
  Trace trace_;
};

void check(const TraceOptions& options, const Config& config) {
  const auto length = static_cast<std::int64_t>(options.ids.size());
  if (length == 0) fail("ids: none given, expected at least one token id");
  const std::int64_t total = length + options.greedy;
  if (options.greedy < 0) fail("greedy {}: expected 0 or more", options.greedy);
  if (total > config.context)
    fail("{} ids and {} greedy tokens: expected at most the context of {}", length, options.greedy, config.context);
  std::int64_t before = 0;
  for (const std::int64_t split : options.splits) {
    if (split <= before || split >= length) fail("split {}: expected rising positions between 1 and {}", split, length - 1);
    before = split;
  }
}

}  // namespace

Trace run_trace(Model& model, const TraceOptions& options) {
  check(options, model.config());
  return Tracer(model, options).run();
}

void write_trace(const Trace& trace, const std::filesystem::path& path) {
  std::vector<TensorHeader> headers;
  for (const auto& [name, tensor] : trace.tensors) headers.push_back({name, tensor.type, tensor.shape});
  SafetensorsWriter writer(path, headers);
  for (const auto& [name, tensor] : trace.tensors) writer.write(tensor.data);
  writer.finish();
}

}  // namespace calandra
