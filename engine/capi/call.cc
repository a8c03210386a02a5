#include "engine/capi/call.h"

namespace oar::capi {
namespace {

struct LastError {
  std::string message, param;
  bool out_of_memory = false;
};

LastError& mine() {
  thread_local LastError error;
  return error;
}

}  // namespace

oar_status finish_call(const Status& status) noexcept {
  LastError& e = mine();
  e.out_of_memory = false;
  try {
    e.message = status.message();
    e.param = status.param();
  } catch (...) { return finish_call_out_of_memory(); }
  return static_cast<oar_status>(status.code());
}

oar_status finish_call_out_of_memory() noexcept {
  mine().out_of_memory = true;
  return OAR_RESOURCE_EXHAUSTED;
}

const char* last_error() noexcept {
  const LastError& e = mine();
  return e.out_of_memory ? "out of memory" : e.message.c_str();
}

const char* last_error_param() noexcept { return mine().out_of_memory ? "" : mine().param.c_str(); }

Status write_text(std::string_view text, char* buffer, size_t capacity, size_t* length) {
  if (length == nullptr) return null_argument("length");
  *length = text.size();
  if (buffer == nullptr && capacity == 0) return ok_status();
  if (buffer == nullptr) return null_argument("text");
  if (capacity <= text.size())
    return Status(StatusCode::kOutOfRange,
                  cat("capacity is ", capacity, " but the text takes ", text.size() + 1,
                      " bytes with its zero byte; give a larger buffer"),
                  "capacity");
  std::memcpy(buffer, text.data(), text.size());
  buffer[text.size()] = '\0';
  return ok_status();
}

}  // namespace oar::capi
