// Handles: numbers that stand for objects. A handle names a slot, how often the slot has been given out, and
// the kind of object. So a stale, foreign or invented one is recognized and refused. A look-up returns a
// shared reference: the object outlives every call that is using it, whoever closes the handle meanwhile.
//
// One table per process (a C interface has nowhere else to keep it), never destroyed: threads of models that
// the program did not close may still run while it exits. After fork() the parent's handles stay in the
// child's table, refused and never destroyed, because their threads are not there.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "engine/base/status.h"
#include "kernels/thread_pool.h"

namespace oar::capi {

class Model;
class Generation;
class PredictorObject;
class OutputsObject;
class EncoderObject;

enum class Kind : uint8_t { kModel = 1, kGeneration = 2, kPredictor = 3, kOutputs = 4, kEncoder = 5 };
inline constexpr Kind kLastKind = Kind::kEncoder;

template <class T>
struct KindOf;
template <>
struct KindOf<Model> {
  static constexpr Kind value = Kind::kModel;
};
template <>
struct KindOf<Generation> {
  static constexpr Kind value = Kind::kGeneration;
};
template <>
struct KindOf<PredictorObject> {
  static constexpr Kind value = Kind::kPredictor;
};
template <>
struct KindOf<OutputsObject> {
  static constexpr Kind value = Kind::kOutputs;
};
template <>
struct KindOf<EncoderObject> {
  static constexpr Kind value = Kind::kEncoder;
};

// FAILED_PRECONDITION after oar_shutdown().
Status check_open();
Result<uint64_t> put_handle(Kind kind, std::shared_ptr<void> object);
Result<std::shared_ptr<void>> find_handle(Kind kind, uint64_t handle);
// Finds it and forgets the handle; of several threads that try, one succeeds.
Result<std::shared_ptr<void>> take_handle(Kind kind, uint64_t handle);
// Workers with room for a share of `threads` (0: all usable processors): a set of their own as long as all
// sets together have processors enough, else one that other models have shares of, which take turns. Null for
// one thread, the caller's. A set goes with the last Resources that hold it.
std::shared_ptr<ThreadPool> shared_pool(int threads);
// Every object of a kind that belongs to this process.
std::vector<std::pair<uint64_t, std::shared_ptr<void>>> all_handles(Kind kind);
// From now on check_open() fails. False when it did already.
bool shut_down();
// Forgets every object of this process, after shut_down().
void drop_handles();

template <class T>
Result<uint64_t> put(std::shared_ptr<T> object) {
  return put_handle(KindOf<T>::value, std::move(object));
}
template <class T>
Result<std::shared_ptr<T>> find(uint64_t handle) {
  OAR_ASSIGN(auto object, find_handle(KindOf<T>::value, handle));
  return std::static_pointer_cast<T>(std::move(object));
}
template <class T>
Result<std::shared_ptr<T>> take(uint64_t handle) {
  OAR_ASSIGN(auto object, take_handle(KindOf<T>::value, handle));
  return std::static_pointer_cast<T>(std::move(object));
}

}  // namespace oar::capi
