// Whose Reservation pays for the large buffers that a thread makes. Importers, loaders, passes, packers and
// arenas allocate for a model without knowing it; who loads or runs the model says so, once, around them:
//
//   const ChargeTo charge(reservation);   // until the end of the block; the innermost counts
//
// A buffer of Buffer::kCharged bytes or more then takes its bytes out of the reservation and gives them back
// to the budget when its last holder lets go. RESOURCE_EXHAUSTED where the budget has no more.
#pragma once

#include "engine/base/reservation.h"

namespace oar {

class ChargeTo {
 public:
  // `reservation` outlives the block; null: nobody pays. Several threads may charge to one.
  explicit ChargeTo(Reservation* reservation) : before_(current_) { current_ = reservation; }
  explicit ChargeTo(Reservation& reservation) : ChargeTo(&reservation) {}
  ~ChargeTo() { current_ = before_; }
  ChargeTo(const ChargeTo&) = delete;
  ChargeTo& operator=(const ChargeTo&) = delete;

  // Of this thread; null: nobody pays. For handing it to threads that do a part of the work.
  static Reservation* current() { return current_; }

 private:
  Reservation* const before_;
  static inline thread_local Reservation* current_ = nullptr;
};

}  // namespace oar
