#include "schedule/fair_queue.h"

#include <algorithm>

namespace calandra {

FairQueue::Client& FairQueue::join(std::uint64_t key, double weight) {
  Client& client = clients_[key];
  client.key_ = key;
  if (client.requests_++ == 0) {
    ++num_active_;
  } else {
    active_weight_ -= client.weight_;
  }
  active_weight_ += weight;
  client.weight_ = weight;
  return client;
}

void FairQueue::leave(Client& client) {
  if (--client.requests_ > 0) return;
  active_weight_ = --num_active_ == 0 ? 0 : active_weight_ - client.weight_;
  if (!client.remembered_) idle_.emplace(client.served_, client.key_);
  client.remembered_ = true;
  forget_idle();
}

void FairQueue::forget_idle() {
  while (!idle_.empty() && idle_.top().first <= clock_) {
    const auto found = clients_.find(idle_.top().second);
    idle_.pop();
    Client& client = found->second;
    client.remembered_ = false;
    if (client.requests_ > 0) continue;
    if (client.served_ <= clock_) {
      clients_.erase(found);
    } else {
      idle_.emplace(client.served_, client.key_);  // it came back, was served and left again
      client.remembered_ = true;
    }
  }
}

void FairQueue::push(Client& client, RequestId id) {
  if (client.waiting_.empty()) {
    client.served_ = std::max(client.served_, clock_);
    client.place_ = {client.served_, id};
    line_.emplace(client.place_, &client);
  }
  client.waiting_.insert(id);
}

void FairQueue::remove(Client& client, RequestId id) {
  if (preempted_.erase(id) > 0) return;
  client.waiting_.erase(id);
  if (client.waiting_.empty()) line_.erase(client.place_);
}

std::optional<RequestId> FairQueue::head() {
  if (!preempted_.empty()) return *preempted_.begin();
  while (!line_.empty()) {
    Client& client = *line_.begin()->second;
    if (client.place_.first >= client.served_) return *client.waiting_.begin();
    line_.erase(line_.begin());
    client.place_.first = client.served_;
    line_.emplace(client.place_, &client);
  }
  return std::nullopt;
}

void FairQueue::charge(Client& client, std::int64_t tokens) {
  client.served_ += static_cast<double>(tokens) / client.weight_;
  clock_ += static_cast<double>(tokens) / active_weight_;
  forget_idle();
}

}  // namespace calandra
