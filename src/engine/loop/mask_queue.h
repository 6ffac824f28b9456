// Chooses whose mask a lane of MaskWorkers makes next. The next client is the one whose masks have used the
// least processor time in this lane; clients that have used equally much take turns. Of that client's tasks
// the one that has used the least comes first, and among equal ones the one that has waited longest. A client
// that has had no task starts with the time of the client that was chosen last, so that it cannot keep the
// others waiting for as long as they have worked before. This time also advances by half of what each client
// has used on average, so that ever new clients cannot overtake one that has used more for ever.
//
// Each function takes a time that grows with the logarithm of the number of tasks, on average over many
// calls.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace hadal {

class MaskTask;

// The caller synchronises all calls.
class MaskQueue {
 public:
  // Identifies a task that waits.
  struct Place {
    uint64_t client = 0;
    double used_s = 0.0;
    uint64_t number = 0;
  };

  // Says how many tasks of one client may run at once. Called before the first task waits.
  void set_client_limit(int limit) { client_limit_ = limit; }

  // Adds a task that has used `used_s` seconds of processor time. Adds nothing if it throws.
  Place push(std::shared_ptr<MaskTask> task, uint64_t client, double used_s);
  // Removes a task that still waits.
  void erase(const Place& place);
  void clear();

  // Removes the next task, which runs from now on. Returns null if no client may begin a task.
  std::shared_ptr<MaskTask> pop();
  // Says that a task of `client` has ended, after `seconds` of processor time.
  void finish(uint64_t client, double seconds);

  // Returns how many clients are remembered: those with tasks, and some that have used more than the others.
  int64_t num_clients() const { return std::ssize(clients_); }

 private:
  struct Client {
    double used_s = 0.0;  // in this lane, since it last had nothing to do
    uint64_t turn = 0;    // when a task was last chosen, or when the first of those that wait came
    int num_running = 0;
    bool is_ready = false;                                                     // it is in ready_
    std::map<std::pair<double, uint64_t>, std::shared_ptr<MaskTask>> waiting;  // by used_s and number
    bool is_idle() const { return waiting.empty() && num_running == 0; }
  };
  using Clients = std::unordered_map<uint64_t, Client>;
  using Rank = std::tuple<double, uint64_t, uint64_t>;  // used_s, turn, client

  static Rank rank_of(const Clients::value_type& client) {
    return {client.second.used_s, client.second.turn, client.first};
  }
  // Notes that the client may have nothing to do any more.
  void note_idle(Clients::iterator client);
  void forget_idle_clients();

  int client_limit_ = 1;
  Clients clients_;
  std::set<Rank> ready_;   // clients that have tasks and may begin one
  double chosen_s_ = 0.0;  // with what a client starts that has had no task
  int64_t num_kept_ = 0;   // clients after idle ones were last forgotten
  uint64_t num_turns_ = 0;
  uint64_t num_pushed_ = 0;
  int64_t num_busy_ = 0;  // clients with tasks that wait or run
};

}  // namespace hadal
