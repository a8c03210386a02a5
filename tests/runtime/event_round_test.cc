// Jobs of one target go together and in order.
#include "engine/runtime/event_round.h"

#include <string>
#include <thread>

#include "tests/support/catch.h"

using oar::EventRound;

namespace {

// Says what each call of `give` got.
struct Givers {
  std::string log;

  void gather(char target, char what) {
    EventRound::gather(
        &names[target - 'a'], [this, what] { log += what; },
        [this, target](std::vector<EventRound::Job> jobs) {
          log += target;
          for (const EventRound::Job& job : jobs) job();
        });
  }
  char names[2] = {};
};

}  // namespace

TEST_CASE("event round: each target gets its jobs at once, in order, when the round ends") {
  Givers g;
  {
    const EventRound round;
    g.gather('a', '1');
    g.gather('b', '2');
    g.gather('a', '3');
    g.gather('b', '4');
    CHECK(g.log.empty());
  }
  CHECK(g.log == "a13b24");
  g.gather('a', '5');  // outside of a round
  CHECK(g.log == "a13b24a5");
}

TEST_CASE("event round: another thread's round is not this one's; what a giver gathers goes at once") {
  Givers g;
  {
    const EventRound round;
    g.gather('a', '1');
    std::thread([&] { g.gather('b', '2'); }).join();
    CHECK(g.log == "b2");
    EventRound::gather(
        &g, [] {}, [&](std::vector<EventRound::Job>) { g.gather('b', '3'); });
  }
  CHECK(g.log == "b2a1b3");
}
