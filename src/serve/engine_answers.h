#pragma once
// An engine as the APIs see it.

#include "engine/engine.h"
#include "serve/answer_service.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace calandra {

class EngineAnswers final : public AnswerService {
 public:
  /// `engine` must outlive this.
  explicit EngineAnswers(Engine& engine) : engine_(engine) {}
  AnswerSubmission submit(AnswerRequest request, std::shared_ptr<AnswerListener> listener) override {
    return engine_.submit(std::move(request), std::move(listener));
  }
  void cancel(RequestId id) override { engine_.cancel(id); }
  void drain() override { engine_.drain(); }
  void cancel_all() override { engine_.cancel_all(); }
  void survey_cache(SpaceFilter shows, std::int64_t most, std::function<void(const PrefixSurvey&)> done) override {
    engine_.survey_cache(std::move(shows), most, std::move(done));
  }
  void flush_cache(SpaceFilter meant, std::function<void(const PrefixFlush&)> done) override {
    engine_.flush_cache(std::move(meant), std::move(done));
  }

 private:
  Engine& engine_;
};

}  // namespace calandra
