#pragma once
// The waiting requests of one priority class. Between clients: fair by tokens served, over weights; the head of the queue is a request
// of the client that has been served least. Within a client: first in, first out. Preempted requests go before all others, the
// oldest first: somebody has read their beginning, and their client has paid for it.
//
// Fairness is a virtual clock, as in fair queueing of packets and in the virtual token counters of Sheng et al., "Fairness in Serving
// Large Language Models" (OSDI 2024). Every served token moves its client's counter by 1 / weight, and the clock by
// 1 / (weights of all clients with a request). A client that had nothing waiting starts at the clock if it is behind: what it did
// not ask for is not kept for it. So nobody starves: whatever is served moves the clock, newcomers start at the clock, and those
// behind a waiting client's counter pass it one after another.
//
// O(log n) an operation, n being what waits; nothing walks over all clients. A client is forgotten when it has no request and the clock
// has passed its counter.

#include "schedule/request.h"

#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace calandra {

class FairQueue {
 public:
  class Client {
   public:
    /// Tokens over weight, on the scale of the queue's clock.
    double served() const { return served_; }

   private:
    friend class FairQueue;
    std::uint64_t key_ = 0;
    double weight_ = 1;
    double served_ = 0;
    std::int64_t requests_ = 0;             // waiting and running
    std::set<RequestId> waiting_;           // without preempted ones
    std::pair<double, RequestId> place_{};  // in line_, while something waits: `served_` of some moment before
    bool remembered_ = false;               // is in idle_
  };

  /// A request of this client begins its life: it will wait, run, wait again. The client lives until as many have left.
  Client& join(std::uint64_t key, double weight);
  void leave(Client& client);

  void push(Client& client, RequestId id);
  void push_preempted(RequestId id) { preempted_.insert(id); }
  /// Of a waiting request, wherever it stands.
  void remove(Client& client, RequestId id);

  /// The request to serve next. It stays in the queue.
  std::optional<RequestId> head();

  /// `tokens` of a request of this client are computed.
  void charge(Client& client, std::int64_t tokens);

  /// Clients that have a request or are ahead of the clock.
  std::size_t num_clients() const { return clients_.size(); }

 private:
  void forget_idle();

  double clock_ = 0;
  double active_weight_ = 0;  // of clients that have a request
  std::int64_t num_active_ = 0;
  std::unordered_map<std::uint64_t, Client> clients_;
  std::set<RequestId> preempted_;
  // Clients with a waiting request. A place may lag behind its client's counter, never lead: head() moves the first ones up.
  std::map<std::pair<double, RequestId>, Client*> line_;
  // Counters of clients without a request, the lowest first.
  using Idle = std::pair<double, std::uint64_t>;
  std::priority_queue<Idle, std::vector<Idle>, std::greater<>> idle_;
};

}  // namespace calandra
