#include "serve/work_queue.h"

#include <utility>

namespace calandra {

WorkQueue::WorkQueue(int num_threads) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { run(); });
}

WorkQueue::~WorkQueue() {
  std::deque<std::function<void()>> dropped;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    dropped.swap(waiting_);
  }
  came_.notify_all();
}

void WorkQueue::push(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return;
    waiting_.push_back(std::move(work));
  }
  came_.notify_one();
}

void WorkQueue::run() {
  for (;;) {
    std::function<void()> work;
    {
      std::unique_lock lock(mutex_);
      came_.wait(lock, [this] { return is_closed_ || !waiting_.empty(); });
      if (waiting_.empty()) return;
      work = std::move(waiting_.front());
      waiting_.pop_front();
    }
    work();
  }
}

}  // namespace calandra
