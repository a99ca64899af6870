#pragma once
// A few threads for what would hold up the HTTP server's: reading JSON, rendering templates, encoding long prompts.

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace calandra {

class WorkQueue {
 public:
  explicit WorkQueue(int num_threads);
  /// What waits is dropped; what has begun is finished.
  ~WorkQueue();
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// From any thread. `work` must not throw.
  void push(std::function<void()> work);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable came_;
  std::deque<std::function<void()>> waiting_;
  bool is_closed_ = false;
  std::vector<std::jthread> threads_;  // the last member: they use the others
};

}  // namespace calandra
