// FairLine holds waiting requests of equal standing, in the order in which they share the engine between
// clients. It is start-time fair queueing (Goyal, Vin, Cheng 1996) with one request as the unit of cost. Each
// client's requests follow each other in order of arrival, one in each round. A client that had none waiting
// joins in the current round, or in the next one if it was already served in this round. So a client with
// many waiting requests delays another client's first request by at most one of its own. With one client the
// order is that of arrival. Adding and removing cost O(log n).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace hadal {

struct RequestState;

class FairLine {
  using Turn = std::tuple<int64_t, uint64_t, uint64_t>;  // round, arrival, client

 public:
  bool empty() const { return size_ == 0; }
  int64_t size() const { return size_; }

  void add(uint64_t client, uint64_t arrival, RequestState* request);
  // `served` says that the request was admitted, which uses a turn of its client; an aborted request uses
  // none.
  void remove(uint64_t client, uint64_t arrival, bool served);
  // Proves the order, and returns the number of requests. It throws when the order is broken.
  int64_t check_integrity() const;

  // Lists the requests in order. Between two calls of next(), requests that it has returned may be removed.
  // A request costs O(log n), and a client whose other requests are skipped costs no more than one request.
  class Walk {
   public:
    explicit Walk(FairLine& line) : line_(line), head_(line.heads_.begin()) { ++line.num_walks_; }
    RequestState* next();  // null at the end
    // Leaves out all further requests of the client whose request next() has returned.
    void skip_client() { following_.reset(); }

   private:
    FairLine& line_;
    std::set<Turn>::iterator head_;
    // Holds the next request of each client that has been visited.
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> visited_;
    std::optional<Turn> following_;  // the same for the latest one, which enters visited_ with next()
  };

 private:
  struct Client {
    std::map<uint64_t, RequestState*> requests;  // by arrival
    int64_t round = 0;                           // round of its first request
    int64_t walk = 0;                            // the latest walk that has visited it
  };
  Turn head_of(uint64_t id, const Client& client) const {
    return {client.round, client.requests.begin()->first, id};
  }

  std::unordered_map<uint64_t, Client> clients_;  // those with requests here
  std::set<Turn> heads_;                          // the first request of each client
  int64_t size_ = 0;
  int64_t round_ = 0;                    // round of the latest admission
  std::unordered_set<uint64_t> served_;  // clients with an admission in this round
  int64_t num_walks_ = 0;
};

}  // namespace hadal
