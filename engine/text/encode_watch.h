// Long texts are tokenized in slices: between two of them whoever asked looks whether to go on, and may do
// something else meanwhile. The ids do not depend on it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/status.h"

namespace oar {

class EncodeWatch {
 public:
  virtual ~EncodeWatch() = default;
  // `ids` have been found so far. Not ok: encode() ends with that.
  virtual Status look(size_t ids) = 0;
};

// Counts what one encode() call has done.
class EncodeSlices {
 public:
  static constexpr size_t kSlice = 64 << 10;  // bytes of text, or merges: a few milliseconds

  EncodeSlices() = default;
  EncodeSlices(EncodeWatch* watch, const std::vector<int32_t>& ids)
      : watch_(watch), ids_(&ids), left_(watch == nullptr ? SIZE_MAX : kSlice) {}

  // False: leave off, at once and with anything in the output.
  bool spend(size_t work) {
    if (work < left_) {
      left_ -= work;
      return true;
    }
    return look();
  }
  const Status& status() const { return status_; }

 private:
  bool look() {
    if (watch_ == nullptr) return true;
    if (status_.ok()) status_ = watch_->look(ids_->size());
    left_ = status_.ok() ? kSlice : 0;
    return status_.ok();
  }

  EncodeWatch* watch_ = nullptr;
  const std::vector<int32_t>* ids_ = nullptr;
  size_t left_ = SIZE_MAX;
  Status status_;
};

}  // namespace oar
